"""Random sequences of everything users, machines and crashes do: the rules hold after every step.

At the end all work is told to end and every cluster is removed: then nothing may be left that anybody holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specification import spec
from tests.users import PROVIDER, Users
from tests.world import World

pytestmark = spec("5.conservation", "9.conserving", "12.daemon-death", "12.doctor")

STEPS = 200
IN_CI = (
    *range(10),
    14,
    60,
    162,
    167,
)  # 162: a part moves to where its parent has grown; 167: it has two lenders
ALL = range(10, 200)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "state"


def run(home: Path, seed: int) -> None:
    """Every third sequence has a node provider."""
    provider = PROVIDER if seed % 3 == 0 else None
    with World(home, provider=provider) as world:
        users = Users(world, seed)
        for _ in range(3):
            users.join()
        world.turn()
        try:
            for _ in range(STEPS):
                users.step()
            users.end_everything()
            users.nothing_is_left()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {len(users.done)}, the last ones: {users.done[-8:]}")
            raise


@pytest.mark.parametrize("seed", IN_CI)
def test_a_random_sequence_keeps_all_rules(home: Path, seed: int) -> None:
    run(home, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", ALL)
def test_many_random_sequences_keep_all_rules(home: Path, seed: int) -> None:
    run(home, seed)
