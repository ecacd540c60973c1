"""Random sequences in which devices are fenced and released at any moment: the rules hold after every step.

What held a device when its fence began goes on; nothing that starts gets it; state, tables and journal agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.users import Users, play
from tests.world import World
from vctl.core.nodes import FOREIGN, LEFT, Fence
from vctl.core.resources import GPU
from vctl.daemon.scheduler import Scheduler
from vctl.engine.stimuli import DevicesObserved, Now, Stimulus
from vctl.store import clusters, rows

pytestmark = spec("19.devices", "5.conservation")

STEPS = 120
IN_CI = range(6)


class Played:
    """An observer of devices that sees what a test says: node -> number -> why."""

    def __init__(self, fences: dict[str, dict[int, str]]) -> None:
        self.fences = fences

    def begin(self) -> None:
        pass

    def due(self) -> list[int]:
        return []

    def observe(self, state: Any, stimuli: Iterable[Stimulus], now: Now, *, has_work: bool) -> list[Stimulus]:
        return [
            DevicesObserved(
                node.node_id,
                tuple(
                    Fence(GPU, number, why, (100 + number,), "bob", 1 << 30, 0)
                    for number, why in self.fences.get(node.node_id, {}).items()
                ),
            )
            for node in state.ledger.nodes.values()
            if node.fences or self.fences.get(node.node_id)
        ]


class Fenced(World):
    """A world whose scheduler sees fences."""

    def start(self) -> Scheduler:
        scheduler = super().start()
        if not hasattr(self, "fences"):
            self.fences: dict[str, dict[int, str]] = {}
        scheduler.observer.devices = Played(self.fences)  # type: ignore[assignment]
        return scheduler


class Strangers(Users):
    """Users, and processes from outside that come to devices and go."""

    world: Fenced

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.actions += [(12, self.come), (6, self.go)]

    def come(self) -> None:
        """A process from outside is seen on a device, or one of a run that is over."""
        if node := self.one("SELECT node_id FROM nodes WHERE instr(instances, 'GPU')"):
            instances = self.store.value("SELECT instances FROM nodes WHERE node_id = ?", node)
            number = int(self.dice.choice(sorted(rows.loads(str(instances))[GPU])))
            self.world.fences.setdefault(node, {})[number] = self.dice.choice([FOREIGN, LEFT])

    def go(self) -> None:
        some = self.dice.choice(list(self.world.fences.values()) or [{}])
        if some:
            del some[self.dice.choice(sorted(some))]

    def fenced(self) -> set[tuple[str, str]]:
        found = self.store.rows("SELECT node_id, fences FROM nodes")
        return {(row["node_id"], str(one.number)) for row in found for one in rows.fences(row["fences"])}

    def step(self) -> None:
        """No job gets a device, or more of one, that was fenced before and after the step."""
        slots = self.store.rows("SELECT vnode_id, instances FROM vnodes")
        before = {row["vnode_id"]: rows.loads(row["instances"]).get(GPU, {}) for row in slots}
        fenced = self.fenced()
        super().step()
        fenced &= self.fenced()
        for row in self.store.rows(
            "SELECT vnode_id, node_id, v.instances FROM vnodes v JOIN clusters c USING (cluster_id)"
            " WHERE c.kind = 'job'"
        ):
            for number, share in rows.loads(row["instances"]).get(GPU, {}).items():
                if (row["node_id"], number) in fenced:
                    assert share <= before.get(row["vnode_id"], {}).get(number, 0), dict(row)

    def end_everything(self) -> None:
        for some in self.world.fences.values():
            some.clear()
        super().end_everything()

    def nothing_is_left(self) -> None:
        super().nothing_is_left()
        assert all(not node.fences for node in clusters.load_ledger(self.store).nodes.values())


@pytest.mark.parametrize("seed", IN_CI)
def test_fences_come_and_go_and_all_rules_hold(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.users.World", Fenced)
    play(tmp_path / "state", seed, STEPS, Strangers)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6, 200))
def test_fences_come_and_go_in_many_sequences(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.users.World", Fenced)
    play(tmp_path / "state", seed, STEPS, Strangers)
