"""Random sequences of users who also book: the rules hold after each step, whatever dies, and a booking is kept.

The scheduler's state is compared with the tables after each turn, and so is the journal, folded (``World.check``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specification import spec
from tests.users import Users, play
from tests.world import World, amounts
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.ops import bookings
from vctl.ops import clusters as cluster_ops

pytestmark = spec("19.booking", "12.daemon-death")

STEPS = 120


class Booking(Users):
    """Users who book, cancel, and submit to what they have booked."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.booked = 0
        self.actions += [(14, self.reserve), (2, self.cancel), (6, self.pass_time)]

    def step(self) -> None:
        super().step()
        scheduler = self.world.scheduler
        assert scheduler is None or scheduler.work.refused[1] < 2, "search and commit disagree"

    def reserve(self) -> None:
        parents = ["primary", *self.names("kind = 'logical' AND divisible AND state <> 'REMOVING'")]
        count = self.dice.choice([1, 1, 2])
        each = FixedNode(amounts(self.dice.choice([1, 2, 3]), self.dice.choice([0, 0, 1])))
        group = Group((each,) * count, "STRICT_SPREAD" if count > 1 else "PACK")
        begin_s = self.world.elapsed_s + self.dice.choice([0, 8, 20, 40])
        bookings.reserve(
            self.store, ClusterSpec(groups=(group,), flexible=False), begin_s=begin_s,
            length_s=self.dice.choice([5, 30]), name=f"b{self.number():03}", parent_id=self.dice.choice(parents),
            divisible=self.dice.random() < 0.7,
        )  # fmt: skip
        self.booked += 1

    def cancel(self) -> None:
        if names := self.names("json_extract(settings, '$.booking') IS NOT NULL AND state <> 'REMOVING'"):
            cluster_ops.delete(self.store, self.dice.choice(names), force=self.dice.random() < 0.8)

    def names(self, which: str) -> list[str]:
        return [
            str(row[0])
            for row in self.store.rows(f"SELECT cluster_id FROM clusters WHERE {which} ORDER BY cluster_id")
        ]

    def pass_time(self) -> None:
        self.world.sleep(self.dice.choice([5, 10, 30]))


@pytest.mark.parametrize("seed", [*range(4), 62])  # 62: a part of a loan is booked
def test_a_random_sequence_with_bookings_keeps_all_rules(tmp_path: Path, seed: int) -> None:
    made: list[Booking] = []

    def make(world: World, seed: int) -> Users:
        made.append(Booking(world, seed))
        return made[0]

    play(tmp_path / "state", seed, STEPS, make)
    assert made[0].booked


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4, 100))
def test_many_random_sequences_with_bookings_keep_all_rules(tmp_path: Path, seed: int) -> None:
    play(tmp_path / "state", seed, STEPS, Booking)
