"""Numbers of supervisors: whatever is killed, each run is taken once, and nobody waits for ever (``seats.py``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.seats import play
from tests.specification import spec

pytestmark = spec("12.daemon-death", "16.local", "8.arrays")

FOUND = (0, 20, 33, 56, 94, 873, 1021)
"""Seeds that found something."""


@pytest.mark.parametrize("seeds", [FOUND, range(100, 115)], ids=["found", "others"])
def test_each_run_is_taken_once_and_ends(tmp_path: Path, seeds: range | tuple[int, ...]) -> None:
    for seed in seeds:
        play(tmp_path / str(seed), seed)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_seeds(tmp_path: Path) -> None:
    """``SIMULATION_SEEDS=FROM:TO``, two thousand if not said otherwise."""
    first, last = map(int, os.environ.get("SIMULATION_SEEDS", "0:2000").split(":"))
    failed: list[str] = []
    for seed in range(first, last):
        try:
            play(tmp_path / str(seed), seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the code under test has failed
            failed.append(f"seed {seed}: {error!r}"[:300])
    assert not failed, "\n".join(failed)
