"""The numbers of supervisors, given out, followed and given back by the real ``LocalRuntime`` over a simulated kernel.

A small model of the scheduler drives it: tables are dictionaries, a transaction is a copy of them. It does what
``vctl/daemon`` does with the runtime and with offers, and nothing else, so thousands of runs fit into a second.
"""

from __future__ import annotations

import heapq
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.simulation.kernel import Kernel, Violation
from vctl.runtime import supervisors
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import LaunchRequest, RunState
from vctl.runtime.worker_slot import ASSIGNED, BUSY, FREE, PAUSED, REQUESTED
from vctl.store import ahead

SAFETY_S, LATE_S, PATIENCE_S = 5.0, 0.5, 150.0
DEPTH = 3


class Killed(BaseException):
    """The scheduler is gone, as after kill -9."""


@dataclass
class Row:
    """A run in the tables: live, or ahead of its start behind ``follows``."""

    run_id: str
    job: int
    number: int
    follows: str = ""
    started: bool = False
    at_s: float = 0.0
    killed: int = 0
    """How many processes that had its number were killed before it had it."""


@dataclass
class Tables:
    """What commits leave."""

    pending: list[int]
    runs: dict[str, Row] = field(default_factory=dict)
    ahead: dict[str, Row] = field(default_factory=dict)
    over: dict[int, str] = field(default_factory=dict)
    """Job -> the run with which it ended."""
    made: int = 0


class Seats:
    """One seed. The faults are kinds of events; each seed draws which there are."""

    FAULTS = (
        "kill supervisor", "suspend supervisor", "kill launcher", "kill daemon", "suspend daemon", "restart",
        "command", "refused command", "other change", "failed commit", "displaced", "stop", "no follower",
    )  # fmt: skip

    def __init__(
        self,
        home: Path,
        seed: int,
        *,
        jobs: int = 60,
        without: frozenset[str] = frozenset(),
        tries: int | None = None,
    ) -> None:
        self.home = home
        self.dice = random.Random(f"{seed} seats")
        swarm = random.Random(f"{seed} swarm")
        self.latency = swarm.choice([0.1, 1, 1, 5])
        self.slots = swarm.choice([1, 2, 4])
        self.jobs = jobs
        self.faults = {
            name: swarm.choice([0.05, 0.3, 1.0, 5.0]) for name in self.FAULTS if swarm.random() < 0.4
        }
        self.faults = {name: gap for name, gap in self.faults.items() if name not in without}
        self.elapsed_s = 1000.0
        self.heap: list[tuple[float, int, str, Callable[[], object]]] = []
        self.events = 0
        self.trace: list[str] = []
        self.tables = Tables(list(range(1, jobs + 1)))
        self.kernel = Kernel(self)
        self.kernel.lasts_s = swarm.choice([[0.001], [0.001, 0.1], [0.001, 0.1, 1.0, 3.0]])
        self.tries = tries or swarm.choice([1, 2, supervisors.MAX_TRIES])
        """So many processes that end without taking a run, and it is given up."""
        self.given_up = 0
        """Runs that were given up like this."""
        self.model: Model | None = None
        self.turns = 0
        self.displaced: set[str] = set()
        """Runs without a place, which may have started all the same."""
        self.turn_at = float("inf")
        self.calm = self.in_turn = False

    # ---- what the kernel asks ----

    def after(self, seconds: float, what: str, do: Callable[[], object]) -> None:
        self.events += 1
        heapq.heappush(self.heap, (self.elapsed_s + seconds, self.events, what, do))

    def now(self) -> int:
        return int(self.elapsed_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.elapsed_s += seconds

    def wake(self) -> None:
        self.turn_at = min(self.turn_at, self.elapsed_s + 0.002 * self.dice.random())

    def runtime(self) -> LocalRuntime | None:
        return None if self.model is None else self.model.runtime

    def disk_is_full(self) -> bool:
        return False

    def can_fork(self) -> bool:
        return True

    def boundary(self, actor: object, where: str) -> None: ...

    def left(self, run_id: str) -> None: ...
    def killed(self, run_id: str) -> None: ...

    def taken(self, run_id: str) -> None:
        tables = self.tables
        if run_id not in tables.runs and run_id not in tables.ahead and not self.is_displaced(run_id):
            raise Violation(f"{run_id} is started, and no row knows it")
        number = self.kernel_number(run_id)
        for row in tables.runs.values():
            if row.run_id == run_id and row.number != number:
                raise Violation(f"{run_id} is started by {number}, not {row.number}")

    def is_displaced(self, run_id: str) -> bool:
        return run_id in self.displaced

    def kernel_number(self, run_id: str) -> int:
        return next(one.number for one in self.kernel.numbers() if one.name == run_id)

    # ---- what happens ----

    def note(self, what: str) -> None:
        self.trace.append(f"{self.elapsed_s:.4f} {what}")

    def run(self) -> None:
        """Until all jobs are over; then nothing may be left."""
        for name in self.faults:
            self._plan(name)
        self.turn_at = self.elapsed_s
        most = self.events + 400 * self.jobs
        while len(self.tables.over) < self.jobs:
            self.event()
            if not self.calm and self.events > most:
                self.calm, calm_at = True, self.elapsed_s
                self.note("calm")
                for one in self.kernel.supervisors():
                    one.signal(signal.SIGCONT)
            if self.calm and self.elapsed_s > calm_at + PATIENCE_S:
                raise Violation(f"waits for ever: {self.tables}")
        self.calm = True
        self._rest()

    def event(self) -> None:
        if self.heap and self.heap[0][0] < self.turn_at:
            at, _, what, do = heapq.heappop(self.heap)
            self.elapsed_s = max(self.elapsed_s, at)
            self.note(what)
            do()
        else:
            self.elapsed_s = max(self.elapsed_s, self.turn_at)
            self._turn()
        self.kernel.pump()
        self._check_slots()

    def _check_slots(self) -> None:
        """The state of each slot is what its run, its request and the indexes say."""
        known = None if self.model is None else self.model.runtime._supervisors
        for number, slot in () if known is None else known.slots.items():
            has = bool(slot.run), bool(slot.request), number in known.untaken, number in known.idle
            expected = {
                FREE: (False, False, False, True), ASSIGNED: (False, False, False, False),
                REQUESTED: (True, True, True, False), PAUSED: (True, True, True, False),
                BUSY: (True, False, False, False),
            }  # fmt: skip
            if has != expected.get(slot.state) or (slot.queue and not slot.run):
                raise Violation(f"slot {number} is {slot.state}, and {has}, {list(slot.queue)}")
            if slot.line is not None and slot.state is PAUSED:
                raise Violation(f"slot {number} waits for a process and has one")

    def _turn(self) -> None:
        self.turns += 1
        if self.turns > 40_000:
            raise Violation("it turns without a pause")
        self.turn_at = float("inf")
        try:
            if self.model is None:
                self.model = Model(self)
            self.model.turn()
            self.turn_at = min(self.turn_at, self.elapsed_s + max(self.model.due_s(), 0.0005))
        except Killed:
            self.note("daemon is gone")
            if self.model is not None:
                self.model.runtime.close()
            self.model = None
            self.turn_at = self.elapsed_s + self.dice.choice([0.0, 0.01, 1.0])

    def _rest(self) -> None:
        until = self.elapsed_s + 60
        while self.elapsed_s < until:
            self.event()
        model = self.model
        assert model is not None
        busy = [
            one for one in model.runtime._supervisors.slots.values() if one.run or one.request or one.queue
        ]
        if busy or model.runtime._supervisors.untaken:
            raise Violation(f"numbers are still given to {[one.run for one in busy]}")
        if self.kernel.running():
            raise Violation(f"processes are left: {self.kernel.running()}")
        if len(model.runtime._supervisors.slots) != len(model.runtime._supervisors.idle):
            raise Violation("a number is neither given nor free")

    # ---- faults ----

    def _plan(self, name: str) -> None:
        self.after(self.dice.expovariate(1 / self.faults[name]), name, lambda: self._fail(name))

    def happens(self, name: str, chance: float) -> bool:
        """A fault at a place of its own."""
        return not self.calm and name in self.faults and self.dice.random() < chance

    def _fail(self, name: str) -> None:
        if self.calm:
            return
        self._plan(name)
        supervisors = self.kernel.supervisors()
        match name:
            case "kill supervisor" if supervisors:
                self.dice.choice(supervisors).signal(signal.SIGKILL)
            case "suspend supervisor" if supervisors:
                one = self.dice.choice(supervisors)
                one.signal(signal.SIGSTOP)
                self.after(self.dice.choice([0.01, 0.3, 10.0]), "resume", lambda: one.signal(signal.SIGCONT))
            case "kill launcher":
                self.kernel.kill_launcher()
            case "restart" if self.model is not None:
                self.model.runtime.close()
                self.model = None
                self.turn_at = self.elapsed_s + self.dice.choice([0.0, 1.0])
            case "command" | "refused command":
                self._command(rolls_back=name == "refused command")
            case "other change" if self.model is not None:
                self.model.other_change()
            case "stop" if self.model is not None and self.tables.runs:
                run_id = self.dice.choice(sorted(self.tables.runs))
                self.model.runtime.stop(run_id, grace_s=self.dice.choice([0.0, 1.0]))

    def _command(self, *, rolls_back: bool) -> None:
        """It takes back all that has not started; where it is refused its rows come back, and no offer does."""
        before = deepcopy(self.tables)
        for run_id in list(self.tables.ahead):
            if ahead.withdraw(self.home, run_id):
                self.drop(run_id)
        if rolls_back:
            self.tables = before
        self.wake()

    def drop(self, run_id: str) -> None:
        """A run ahead has not started: its job waits again."""
        row = self.tables.ahead.pop(run_id)
        self.tables.pending.insert(0, row.job)


class Model:
    """What a scheduler does with the runtime (``vctl/daemon``: scheduler, ahead, carrying, remains)."""

    def __init__(self, world: Seats) -> None:
        self.world = world
        self.runtime = LocalRuntime(world.home)
        self.runtime.prepare()
        self.done: set[str] = set()
        self.unsent: list[str] = []
        self.displaced: set[str] = set()
        self.early: set[str] = set()
        self.over: list[str] = []
        self.last_sweep = float("-inf")
        self.loaded = False

    @property
    def tables(self) -> Tables:
        return self.world.tables

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A commit that fails takes all back, and the state is loaded anew."""
        before = deepcopy(self.tables) if "failed commit" in self.world.faults else self.tables
        yield
        if self.world.happens("failed commit", 0.02):
            self.world.note("commit fails")
            self.world.tables = before
            raise Reload

    def boundary(self) -> None:
        """Here it may be killed, or suspended until another one has taken over."""
        if self.world.happens("kill daemon", 0.01):
            raise Killed

    def begin(self) -> None:
        """``Scheduler._load``."""
        world, tables = self.world, self.tables
        self.done, self.unsent, self.displaced = set(tables.runs), [], set()
        ahead.tidy(world.home, list(tables.ahead))
        self.boundary()
        self.take_back(list(tables.ahead))
        while lost := [one for one in self.tables.ahead.values() if one.follows not in self._known()]:
            for row in lost:
                ahead.withdraw(world.home, row.run_id)
                world.drop(row.run_id)
        self.sweep(relaunch=True)

    def _known(self) -> set[str]:
        return {*self.tables.runs, *self.tables.ahead}

    def turn(self) -> None:
        """``Scheduler._turn``."""
        try:
            if not self.loaded:
                self.begin()
                self.loaded = True
            self._turn()
        except Reload:
            self.loaded = False

    def _turn(self) -> None:
        self.observe(self.runtime.changes())
        if self.world.elapsed_s - self.last_sweep > SAFETY_S:
            self.sweep()
        for run_id in list(self.displaced):
            seen = self.runtime.observe(run_id).state
            if seen in (RunState.STARTING, RunState.RUNNING):
                self.runtime.stop(run_id, grace_s=0.0)
            elif seen is not RunState.NEVER_STARTED or self.runtime.was_declined(run_id):
                self.displaced.discard(run_id)
                self.runtime.let_next_go(run_id)
        late = self.world.elapsed_s - LATE_S
        if due := [row.run_id for row in self.tables.ahead.values() if row.at_s <= late]:
            self.take_back(due)
            for run_id in due:
                if run_id in self.tables.ahead:
                    self.tables.ahead[run_id].at_s = float("inf")
        with self.transaction():
            self.start()
        self.carry_out()
        for run_id in self.over:
            self.runtime.forget(run_id)
        self.over.clear()

    def due_s(self) -> float:
        waits = [row.at_s + LATE_S - self.world.elapsed_s for row in self.tables.ahead.values()]
        return max(0.0, min([SAFETY_S, self.runtime.due_s(), *waits]))

    def other_change(self) -> None:
        """Anything but an end or a start takes all back that has not started."""
        try:
            self.take_back(list(self.tables.ahead))
        except Reload:
            self.loaded = False

    def take_back(self, run_ids: list[str], *, for_certain: bool = False) -> None:
        """``NextRuns._take_back``."""
        with self.transaction():
            for run_id in run_ids:
                has_not_started = ahead.withdraw(self.world.home, run_id) or for_certain
                if has_not_started and run_id in self.tables.ahead:
                    self.world.drop(run_id)

    def declined(self, run_id: str) -> bool:
        """``NextRuns.declined``."""
        if run_id in self.tables.runs:
            return True
        if run_id in self.tables.ahead:
            self.take_back([run_id], for_certain=True)
        self.runtime.let_next_go(run_id)
        self.done.discard(run_id)
        return False

    def observe(self, names: set[str], *, relaunch: bool = False) -> None:
        """``Observer.look``."""
        ended: list[tuple[int, str]] = []
        early, self.early = self.early, set()
        for run_id in sorted(names | early):
            self.boundary()
            row = self.tables.runs.get(run_id) or self.tables.ahead.get(run_id)
            again = self.runtime.was_declined(run_id) and self.declined(run_id)
            if row is None:
                continue
            seen = self.runtime.observe(run_id)
            if seen.state is RunState.EXITED:
                assert seen.exit is not None
                ended.append((seen.exit.ended_at, run_id))
                if seen.exit.exit_code != self.world.kernel.truth.get(run_id, seen.exit.exit_code):
                    raise Violation(f"{run_id} ended with {seen.exit}")
            elif seen.state is RunState.LOST or (seen.state is RunState.NEVER_STARTED and row.started):
                kernel = self.world.kernel
                killed = kernel.killed[row.number] - row.killed
                if run_id not in kernel.orphaned and killed < self.world.tries:
                    raise Violation(f"{run_id} is lost, and nobody killed its supervisor: {seen}")
                self.world.given_up += run_id not in kernel.orphaned
                if not self.runtime.clear_lost(run_id):
                    ended.append((0, run_id))
            elif seen.state is RunState.RUNNING:
                row.started = True
            elif seen.state is RunState.NEVER_STARTED and (
                again or (relaunch and run_id in self.tables.runs)
            ):
                self.done.discard(run_id)
        if ended:
            self.follow_up(sorted(ended))

    def follow_up(self, ended: list[tuple[int, str]]) -> None:
        """``Turn._decide``: what has ended, who follows, who else starts, in one commit."""
        gone: list[str] = []
        with self.transaction():
            while ends := [run_id for _, run_id in ended if run_id in self.tables.runs]:
                for run_id in ends:
                    row = self.tables.runs.pop(run_id)
                    if row.job in self.tables.over:
                        raise Violation(f"job {row.job} ended twice")
                    self.tables.over[row.job] = run_id
                    gone.append(run_id)
                for run_id in ends:
                    self._promote(run_id)
            self.start()
            self._assign_ahead()
        self.early |= {run_id for _, run_id in ended if run_id in self.tables.ahead}
        for run_id in gone:
            self.done.discard(run_id)
            self.over.append(run_id)
        self.boundary()
        self.carry_out()
        self._send()

    def _promote(self, run_id: str) -> None:
        chain = self._chain(run_id)
        if not chain:
            return
        if self.world.happens("displaced", 0.1):
            for row in chain:
                if not ahead.withdraw(self.world.home, row.run_id):
                    self.displaced.add(row.run_id)
                    self.world.displaced.add(row.run_id)
                self.world.drop(row.run_id)
            return
        row = self.tables.ahead.pop(chain[0].run_id)
        self._put(row)

    def _chain(self, run_id: str) -> list[Row]:
        found: list[Row] = []
        while following := [row for row in self.tables.ahead.values() if row.follows == run_id]:
            if len(following) > 1:
                raise Violation(f"{following} follow {run_id}")
            found += following
            run_id = following[0].run_id
        return found

    def _put(self, row: Row) -> None:
        for other in self.tables.runs.values():
            if other.number == row.number:
                raise Violation(f"{row} has the number of {other}")
        self.tables.runs[row.run_id] = row

    def start(self) -> None:
        """Jobs that wait start in free slots."""
        while len(self.tables.runs) < self.world.slots and self.tables.pending:
            job = self.tables.pending.pop(0)
            number = self.runtime.assign()
            self._put(Row(self._name(job), job, number, killed=self.world.kernel.killed[number]))

    def _name(self, job: int) -> str:
        self.tables.made += 1
        return f"{job}.{self.tables.made}.{self.world.events}"

    def _assign_ahead(self) -> None:
        if self.world.happens("no follower", 0.5):
            return
        for depth in range(1, DEPTH + 1):
            for run in list(self.tables.runs.values()):
                chain = self._chain(run.run_id)
                if len(chain) >= depth or not self.tables.pending:
                    continue
                before = chain[-1] if chain else run
                job = self.tables.pending.pop(0)
                row = Row(
                    self._name(job), job, run.number, before.run_id,
                    at_s=self.world.elapsed_s, killed=self.world.kernel.killed[run.number],
                )  # fmt: skip
                ahead.offer(self.world.home, row.run_id)
                self.tables.ahead[row.run_id] = row
                self.unsent.append(row.run_id)

    def carry_out(self) -> None:
        """``Carrier.carry_out``."""
        due = [row for run_id, row in self.tables.runs.items() if run_id not in self.done]
        if due and self.world.happens("suspend daemon", 0.02):
            runtime, world = self.runtime, self.world
            world.after(
                self.world.dice.choice([0.01, 1.0]), "the old daemon goes on", lambda: old(runtime, due)
            )
            world.model = None
            raise Suspended
        for row in due:
            self.boundary()
            self.done.add(row.run_id)
            self.world.note(f"launch {row.run_id}")
            self.runtime.launch(request(row))
            self.boundary()

    def _send(self) -> None:
        unsent, self.unsent = self.unsent, []
        failed = []
        for run_id in unsent:
            self.boundary()
            if (row := self.tables.ahead.get(run_id)) is not None:
                if self.runtime.launch_next(request(row), row.follows):
                    self.done.add(run_id)
                else:
                    failed.append(run_id)
        if failed:
            self.take_back(failed, for_certain=True)

    def sweep(self, *, relaunch: bool = False) -> None:
        """``Carrier.settle``."""
        self.last_sweep = self.world.elapsed_s
        self.observe(self._known(), relaunch=relaunch)
        if relaunch:
            for run_id in self.runtime.known_runs():
                if run_id not in self._known():
                    self._end_unknown(run_id)
        rows = {**self.tables.runs, **self.tables.ahead}
        self.runtime.settle({run_id: row.number for run_id, row in rows.items()})
        self.carry_out()

    def _end_unknown(self, run_id: str) -> None:
        """``Remains._end``."""
        state = self.runtime.observe(run_id).state
        if state in (RunState.STARTING, RunState.RUNNING):
            self.runtime.stop(run_id, grace_s=3.0)
        elif state is not RunState.LOST or not self.runtime.clear_lost(run_id):
            self.runtime.forget(run_id)


class Reload(Exception):
    """A commit has failed: the state is loaded anew."""


class Suspended(Killed):
    """Another scheduler takes over; this one goes on later."""


def old(runtime: LocalRuntime, due: list[Row]) -> None:
    """A scheduler that was suspended after a commit launches what it had committed, and finds out that it is fenced."""
    for row in due:
        runtime.launch(request(row))
    runtime.close()


def request(row: Row) -> LaunchRequest:
    return LaunchRequest(
        run_id=row.run_id, argv=("true",), own={}, cwd="/", log_path="/dev/null", supervisor=row.number
    )


def play(
    home: Path,
    seed: int,
    *,
    jobs: int = 60,
    without: frozenset[str] = frozenset(),
    tries: int | None = None,
) -> Seats:
    """Play a seed to its end; raises Violation. ``tries``: of a run before it is given up; else the seed draws."""
    noise = random.Random(f"{seed} noise")
    world = Seats(home, seed, jobs=jobs, without=without, tries=tries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisors, "MAX_TRIES", world.tries)
        patch.setattr("os.urandom", noise.randbytes)
        world.kernel.install(patch)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}, faults {world.faults}\n" + "\n".join(world.trace[-60:]))
            raise
        finally:
            if world.model is not None:
                world.model.runtime.close()
            world.kernel.close()
    return world
