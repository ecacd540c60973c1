"""The turns of a scheduler, of which each call and each allocation fails once; time and processes are simulated.

The turns cover starts, ends, a stop, a retry, an array, a dependency, the growth of an elastic cluster and what it
gives back. What must hold: a turn either rests after an error that passes, or ends with a sentence, as a daemon does
(then another scheduler begins). After that all work comes to the end that it has without a fault, nothing starts twice,
and all rules hold.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.faults.commands import Ended, play, warm
from tests.faults.points import Points
from tests.world import World
from vctl.config import load
from vctl.errors import VctlError, known
from vctl.operations import clusters, jobs, nodes
from vctl.operations.declare import Context
from vctl.ops.prove import prove
from vctl.store.store import Store

ENDS = {
    "one": ("SUCCEEDED", 0), "stopped": ("STOPPED", 143), "again": ("SUCCEEDED", 0), "behind": ("SUCCEEDED", 0),
    "grows": ("FAILED", 3), "arr_0": ("SUCCEEDED", 0), "arr_1": ("SUCCEEDED", 0), "arr_2": ("SUCCEEDED", 0),
}  # fmt: skip
MOST_TURNS = 60


class Turns:
    """A small cluster whose scheduler takes its turns one by one."""

    def __init__(self, work: Path, *, cold: bool = False) -> None:
        """``cold``: the turns import modules, too; otherwise this process has done that."""
        self.work = work
        self.windows = Counter[int]()
        """Turn -> its allocations."""
        self.base = work / "base"
        with World(self.base) as world:
            self._submit_all(world)
            world.store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (self.base / "changes").unlink()
        if not cold:
            warm(lambda: _Playing(self._fresh(), "none", Points(), 0).go(), work, dict(os.environ))

    @staticmethod
    def _submit_all(world: World) -> None:
        context = Context(world.store, load(env={"VCTL_HOME": str(world.home), "VCTL_LOCAL_NODE": "0"}))

        def submit(name: str, **more: object) -> None:
            more = {"cwd": "/", "environment": {"PATH": "/bin"}, "submission_id": name, "num_cpus": 1, **more}
            jobs.submit.run(context, ["true"], **more)  # type: ignore[arg-type]

        nodes.add.run(context, resources={"CPU": 4}, count=2)
        clusters.create.run(context, cluster_id="room", spec={"flexible_resource_max": {"CPU": 4}})
        submit("one")
        submit("stopped", num_cpus=2)
        submit("again", max_retries=1, retry_on=["ExitCode"], backoff_s=0)
        submit("behind", after=["ok:one"])
        submit("grows", cluster="room", num_cpus=None, entrypoint_num_cpus=1)
        submit("arr", array="0-2%2")

    # ---- one play ----

    def _play(self, kind: str, failing: Points, window: int, notes: Path | None = None) -> Ended:
        """All turns, in a process of its own."""
        home = self._fresh()
        return play(lambda: _Playing(home, kind, failing, window).go(), self.work, dict(os.environ), "none",
                    failing, notes, within_s=60)  # fmt: skip

    def _fresh(self) -> Path:
        home = self.work / "state"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.base, home)
        return home

    def counted(self, kind: str) -> list[str]:
        notes = self.work / ".points"
        ended = self._play(kind, Points(), 0, notes)
        assert ended.code == 0, ended
        passed: list[str] = json.loads(notes.read_text())
        if kind == "memory":
            self.windows = Counter(int(name.split()[1]) for name in passed)
        return passed

    def fails(self, kind: str, at: int, turn: int) -> list[str]:
        """What does not hold when the point of this number fails."""
        window = 0
        if kind == "memory":
            for window, count in self.windows.items():  # noqa: B007 - of the last one
                if at <= count:
                    break
                at -= count
        ended = self._play(kind, Points(at, turn), window)
        if ended.code == 0:
            return []
        if ended.code < 0 and kind == "memory":  # CPython itself does not survive it: as a kill
            return self._after_a_kill()
        return [f"{ended.err[-2500:]}"]

    def _after_a_kill(self) -> list[str]:
        with closing(Store.open(self.work / "state")) as store:
            return prove(store)


class _Playing:
    """The turns, in the process in which one point fails."""

    def __init__(self, home: Path, kind: str, failing: Points, window: int) -> None:
        self.world = World(home)
        self.kind, self.failing, self.window = kind, failing, window
        self.turns = 0
        self.ended: set[str] = set()
        if kind in ("io", "sqlite"):
            failing.is_paused = True
            failing.watch(kind)

    def go(self) -> None:
        world, asked = self.world, False
        for _ in range(MOST_TURNS):
            self._turn()
            names = {row[0]: row[1] for row in world.store.rows(
                "SELECT run_id, submission_id FROM runs JOIN jobs USING (job_id)"
            )}  # fmt: skip
            if not asked and "stopped" in names.values():
                context = Context(world.store, load(env={"VCTL_HOME": str(world.home)}))
                jobs.stop.run(context, "stopped")
                asked = True
            world.processes.obey()
            for run_id in world.processes.running():
                name = names.get(run_id, "")
                if name != "stopped":
                    attempt = world.store.value("SELECT attempt FROM runs WHERE run_id = ?", run_id)
                    world.processes.end(run_id, {"grows": 3, "again": 2 - int(attempt or 2)}.get(name, 0))
            world.elapsed_s += 2
            if not world.store.value("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')"):
                break
        self.failing.finish()
        self.failing.is_paused = True
        world.elapsed_s += 30  # whatever is borrowed goes home
        world.turn()
        found = {row[0]: (row[1], row[2]) for row in world.store.rows(
            "SELECT submission_id, status, exit_code FROM jobs"
        )}  # fmt: skip
        assert found == ENDS, found
        twice = world.store.rows(
            "SELECT object_id, kind FROM events WHERE kind IN ('job.submitted', 'job.ended')"
        )
        assert len(twice) == len(set(map(tuple, twice)))
        starts = world.store.rows("SELECT object_id FROM events WHERE kind = 'job.started'")
        assert sorted(row[0] for row in starts) == sorted([*ENDS, "again"]), sorted(row[0] for row in starts)
        assert world.store.value("SELECT count(*) FROM leases") == 0
        world.close()
        raise SystemExit(0)

    def _turn(self) -> None:
        """One turn. A scheduler that ends is followed by another one."""
        world, error = self.world, None
        self.turns += 1
        try:
            self._fails_inside(
                lambda: (world.scheduler or world.start()).turn()  # noqa: PLW0108 - a start has points, too
            )
        except Exception as caught:  # noqa: BLE001 - what a daemon does with it is what is judged here
            error = caught
        if error is None:
            rest_s = 0.0 if world.scheduler is None else world.scheduler.trouble.rest_s()
            world.elapsed_s += rest_s
            return
        is_cpythons = self.kind == "memory" and isinstance(
            error, SystemError
        )  # an error of its own without a memory
        reason = error if isinstance(error, VctlError) else known(error)
        assert is_cpythons or (reason is not None and "malformed" not in reason.problem), repr(error)
        if world.scheduler is not None:
            world.die()

    def _fails_inside(self, do: Callable[[], object]) -> None:
        failing = self.failing
        if self.kind == "call":
            failing.watch_calls()
        elif self.kind == "memory" and self.turns == (self.window or self.turns):
            failing.watch_memory()
        failing.is_paused = False
        try:
            do()
        finally:
            failing.is_paused = True
            if self.kind in ("call", "memory"):
                failing.finish(f"turn {self.turns}")
