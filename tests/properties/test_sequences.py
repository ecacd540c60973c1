"""Random sequences of everything users, machines and crashes do: the rules hold after every step.

At the end all work is told to end and every cluster is removed: then nothing may be left that anybody holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specification import spec
from tests.users import play

pytestmark = spec("5.conservation", "9.conserving", "12.daemon-death", "12.doctor")

STEPS = 200
IN_CI = (
    *range(10),
    14,
    60,
    162,
    163,
    167,
)  # 162: a part moves to where its parent has grown; 163: it needs a device and a half; 167: it has two lenders
ALL = range(10, 200)


@pytest.mark.parametrize("seed", IN_CI)
def test_a_random_sequence_keeps_all_rules(tmp_path: Path, seed: int) -> None:
    play(tmp_path / "state", seed, STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", ALL)
def test_many_random_sequences_keep_all_rules(tmp_path: Path, seed: int) -> None:
    play(tmp_path / "state", seed, STEPS)
