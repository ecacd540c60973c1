"""Numbers of supervisors: whatever is killed, each run is taken once, and nobody waits for ever (``seats.py``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.seats import play
from tests.specification import spec
from vctl.runtime.supervisors import MAX_TRIES

pytestmark = spec("12.daemon-death", "16.local", "8.arrays")

FOUND = (0, 20, 33, 56, 94, 873, 1021, 2168)
"""Seeds that found something, with the usual number of tries."""
GIVES_UP = {51: 1, 2030: 2, 2056: 1}
"""Seed -> so many tries, with which runs are given up; 2056 found one that was started after that."""


def test_what_was_found_is_mended(tmp_path: Path) -> None:
    for seed in FOUND:
        play(tmp_path / str(seed), seed, tries=MAX_TRIES)


def test_each_run_is_taken_once_and_ends(tmp_path: Path) -> None:
    for seed in range(100, 115):
        play(tmp_path / str(seed), seed)


def test_a_run_is_given_up_only_after_all_its_tries(tmp_path: Path) -> None:
    """As each process that was to take it was killed; nobody takes it later, and its number goes back."""
    given_up = [play(tmp_path / str(seed), seed, tries=tries).given_up for seed, tries in GIVES_UP.items()]
    assert all(given_up), given_up


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
