"""The growth of a job's own Ray: what it reads of the demand (specification, section 16)."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.specification import spec
from vctl.ray.private import ray_growth

pytestmark = spec("16.ray")
PATIENCE_S = 20.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the keeper reaps every child
def test_a_watcher_that_ends_within_a_line_leaves_nothing_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its half line was put before the first line of the next one, and the Ray of a running job was ended."""
    watcher = tmp_path / "watcher"
    watcher.write_text(f"""#!/bin/sh
[ -e {tmp_path}/second ] && echo '{{"whole": 2}}' && exec sleep 60
touch {tmp_path}/second; printf '{{"half": '
""")
    watcher.chmod(0o755)
    monkeypatch.setattr(ray_growth, "AGAIN_S", 0.01)
    seen: list[Any] = []
    monkeypatch.setattr(ray_growth.RayletGrowth, "act", lambda _, one, shown: seen.append(one))
    parent: Any = SimpleNamespace(
        python=str(watcher), address="", log=tmp_path / "log", env={"PATH": "/usr/bin:/bin"}, last_lines=str
    )
    growth = ray_growth.RayletGrowth(parent, "", {})
    give_up = time.monotonic() + PATIENCE_S
    while not seen:
        assert time.monotonic() < give_up
        growth.turn({})
        time.sleep(0.01)
    assert growth.watch is not None
    growth.watch.kill()
    growth.watch.wait(PATIENCE_S)
    assert seen == [{"whole": 2}]
