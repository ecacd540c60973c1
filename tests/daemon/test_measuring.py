"""Measuring what tasks left, beside the scheduler's work (spec 10: objects are counted)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.specification import spec
from vctl.daemon.measuring import AT_ONCE_S, Measuring

pytestmark = spec("10.objects")


def grove(place: Path, files: int) -> None:
    """A tree of many small files under the name ``many``."""
    for n in range(files):
        folder = place / "many" / str(n // 500)
        if n % 500 == 0:
            folder.mkdir(parents=True)
        (folder / str(n)).write_bytes(b"x")


def test_a_large_tree_is_measured_while_its_task_is_waited_for(tmp_path: Path) -> None:
    woken = threading.Event()
    measuring = Measuring(woken.set)
    grove(tmp_path, 10_000)
    (tmp_path / "one").write_bytes(b"12345")
    began = time.monotonic()
    assert measuring.result("large", tmp_path, ["many"]) is None
    assert time.monotonic() - began < 10 * AT_ONCE_S
    assert woken.wait(30)
    assert measuring.ready() == {"large"}
    assert measuring.result("large", tmp_path, ["many"]) == {"many": 10_000}
    assert measuring.ready() == set()
    left = measuring.result("lost", tmp_path, ["one", "none"])
    assert isinstance(left, str)
    assert "none" in left
