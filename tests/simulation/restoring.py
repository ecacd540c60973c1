"""Somebody puts an earlier backup in place: others go on with the state of then, a server with its open tables too.

The scheduler is ended for that, or was killed. What the tables have forgotten is forgotten by the rules as well: jobs
that clients know of are gone, and a process whose run is in no row is ended by the next scheduler. What a restore
promises is checked: no run that the copy has is started again, and its process, if it lives, is still its own.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.kernel import Violation
from vctl.errors import VctlError
from vctl.ops.backup import backup, restore
from vctl.ops.prove import prove

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

RESTORE = "restore"
MOST = 4
"""Restores of one seed."""


class Restores:
    """The admin of one seed."""

    def __init__(self, world: Simulation, seed: int, without: frozenset[str]) -> None:
        self.world = world
        self.dice = random.Random(f"{seed} restores")
        drawn = (
            {RESTORE: world.user_gap_s * self.dice.choice([10, 30, 90])} if self.dice.random() < 0.3 else {}
        )
        self.faults = {name: s for name, s in drawn.items() if name not in without}
        self.path: Path | None = None
        """The newest backup."""
        self.made = self.count = 0
        self.forgotten: set[str] = set()
        """Runs that a restore has taken from the tables; their processes may still begin, and are ended then."""
        self.kept: set[str] = set()
        """Runs that restored tables have, and whose ends may be lost."""

    def start(self) -> None:
        for name in self.faults:
            self._plan(name)

    def _plan(self, name: str) -> None:
        self.world.after(self.dice.expovariate(1 / self.faults[name]), "an admin", self._act)

    def _act(self) -> None:
        if self.world.calm:
            return
        self._plan(RESTORE)
        if self.path is None or self.dice.random() < 0.5:
            self._backup()
        elif self.count < MOST and self.world.depth == 0 and not self.world.in_turn:
            self._restore(self.path)

    def _backup(self) -> None:
        self.made += 1
        path = self.world.home.with_name(f"kept{self.made}")
        self.world.command("backup", lambda: backup(self.world.users.store, path))
        if path.exists():  # else its command was killed
            self.path = path

    def _restore(self, path: Path) -> None:
        world = self.world
        self.count += 1
        before = {*world.processes.processes, *self._runs()}
        if world.scheduler is not None and self.dice.random() < 0.7:
            world._stop_daemon()
        world.die()
        world.check_tables()  # what was there before the restore
        world.note(f"restore of {path.name}")
        try:
            restore(world.home, path)
        except VctlError as error:
            raise Violation(f"a backup cannot be restored in place: {error.problem}") from error
        self.kept |= (live := self._runs())
        self.forgotten = (self.forgotten | before) - live
        world.rewound()
        world.clients.rewound()
        if problems := prove(world.store):
            raise Violation(f"restored tables have {problems}")
        world.daemon_due = world.elapsed_s + self.dice.choice([0.0, 2.0, 20.0])

    def _runs(self) -> set[str]:
        return {
            row[0]
            for row in self.world.store.rows("SELECT run_id FROM runs UNION SELECT run_id FROM runs_ahead")
        }
