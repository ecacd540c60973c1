"""A seed decides everything: who acts when, what takes how long, what fails. The same seed repeats the run exactly.

One timeline of events on a virtual clock. The scheduler, the store, the runtime and the operations of commands are
real; the kernel (``kernel.py``), the clock, wake-ups and failures are simulated. The rules are checked all the time.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contents import JOURNAL
from tests.simulation.connections import FULL, IOERR, Actor, SimulatedStore, opened
from tests.simulation.http_clients import SERVER_FAULTS, Clients
from tests.simulation.kernel import Kernel, Runtime, Violation
from tests.users import PROVIDER, Users
from tests.world import Killed, ShortRuns, World, amounts, loaded, picture_of, unlike
from vctl.core.spans import numbers_of
from vctl.core.values import replace
from vctl.daemon.ahead import LONGEST_S
from vctl.daemon.following import FollowedState
from vctl.daemon.measuring import measure
from vctl.daemon.scheduler import Scheduler
from vctl.daemon.turn import Turn
from vctl.engine import array_limits
from vctl.engine.changes import (
    ArrayForgotten,
    ArrayLimited,
    ArraySubmitted,
    Change,
    JobForgotten,
    JobsEdited,
    JobsPruned,
    JobStarted,
    JobSubmitted,
    RunEnded,
    RunStopping,
    TaskStarted,
)
from vctl.engine.codec import decode, encode
from vctl.engine.settings import LeaseTerms
from vctl.engine.stimuli import Outputs
from vctl.errors import VctlError
from vctl.ops import clusters as cluster_ops
from vctl.ops import job_edits, submitting
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.ops import tasks as task_ops
from vctl.ops.handing import TAKE_S, Handed
from vctl.ops.prove import prove
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store import clusters
from vctl.store.store import Fenced, Store

FAULTS = (
    "kill daemon", "kill command", "suspend daemon", "restart daemon", "interleave", "kill supervisor",
    "suspend supervisor", "kill launcher", "no launcher", "power cut", "disk full", "write error", "commit lost",
    "commit kept", "clock jump", "drop wake-ups",
)  # fmt: skip
"""What can go wrong; each seed draws which of them and how often."""
ALL_FAULTS = (*FAULTS, *SERVER_FAULTS)
MOST_EVENTS = 400_000
MOST_MEMBERS = 40
MOST_STEPS = 1_000
"""Of one turn: it stands still on the virtual clock, so one that finds no end would never end."""
OFTEN = 4
"""Everything is checked after so many commits; a seed that fails is played again with a check after each one."""
TURN_S = 0.0001
"""What a turn takes."""
IDLE_TURNS = 20
"""After so many turns in which nothing changed, the state is compared with the tables all the same."""


class Watch:
    """The scheduler's look at the file ``changes``; wake-ups get lost."""

    def __init__(self) -> None:
        self.pending = False

    def add(self, path: Path, mask: int) -> None: ...
    def close(self) -> None: ...

    def fileno(self) -> int:
        return -1

    def read(self) -> list[bool]:
        found, self.pending = [True] * self.pending, False
        return found


class Measuring:
    """Outputs are measured at once."""

    def result(self, run_id: str, place: Path, names: list[str]) -> Outputs:
        return measure(place, names)

    def ready(self) -> set[str]:
        return set()


class Waiting(Handed):
    """A command that waits until the scheduler has written its job, has said that it will, or was too slow."""

    def __init__(self, change: JobSubmitted, judged: int | None) -> None:
        self.change, self.capacity = change, judged
        self.is_over = self.is_taken = self.is_written = False

    def take(self) -> bool:
        self.is_taken = self.is_taken or not self.is_over
        return not self.is_over

    def answer(self) -> None:
        self.is_written = not self.is_over

    def drop(self) -> None:
        self.is_over = True

    def give_up(self) -> None:
        self.is_over = self.is_over or not self.is_taken


class Simulation(World):
    """One seed. ``without``: faults that are left out, to find those that matter."""

    def __init__(
        self, home: Path, seed: int, *, without: frozenset[str] = frozenset(), often: int = OFTEN
    ) -> None:
        self.often = often
        self.dice = random.Random(f"{seed} world")
        swarm = random.Random(f"{seed} swarm")
        self.user_gap_s = swarm.choice([0.1, 0.5, 2.0, 5.0])
        self.faults = {
            name: self.user_gap_s * swarm.choice([1, 5, 15, 50, 150]) * (4 if name == "power cut" else 1)
            for name in FAULTS
            if swarm.random() < 0.5 and name not in without
        }
        self.latency = swarm.choice([1, 1, 10, 50])
        self.drops = swarm.choice([0.1, 0.5, 1.0]) if "drop wake-ups" in self.faults else 0.0
        self.heap: list[tuple[float, int, str, Callable[[], object]]] = []
        self.events = self.steps = self.boundaries = 0
        self.trace: list[str] = []
        self.digest = hashlib.sha256()
        self.skew_s = 0.0
        self.writer: Actor | None = None
        self.spare: list[sqlite3.Connection] = []
        self.actors = 0
        self.depth = 0
        self.nest: int | None = None
        """At how many boundaries from now others act inside of what somebody does."""
        self.suspend = False
        self.full_until = self.no_launcher_until = float("-inf")
        self.commit_fault: str | None = None
        self.write_fault = False
        self.changed = True
        self.daemon: Actor | None = None
        self.daemon_due = 0.0
        self.in_turn = False
        self.woken = False
        self.calm = False
        self.turns = self.commits = self.states = self.read_to = 0
        self.checked: object = None
        self.behind: dict[str, float] = {}
        """Runs assigned ahead -> since when the scheduler that rules is seen to know them."""
        provider = PROVIDER if swarm.random() < 0.3 else None
        super().__init__(
            home, terms=LeaseTerms(idle_s=10, cooldown_s=2, reclaim_grace_s=5), provider=provider
        )
        self.processes: Any = Kernel(self)  # type: ignore[assignment]
        self.users = Users(self, seed)
        self.users.actions = [
            (weight * swarm.choice([0, 0.5, 1, 3]) * (0.3 if action == self.users.run_task else 1), action)
            for weight, action in self.users.actions
            if action.__name__ not in ("exit_process", "end_task", "lose_process", "restart", "crash", "wait")
        ]
        self.users.actions += [(8, self.users.submit), (3, self.submit_quickly), (1, self.users.join)]
        self.clients = Clients(self, seed, without)
        self.mail: list[tuple[Scheduler, Waiting]] = []
        """Jobs on their way to a scheduler."""
        self.submitted: set[str] = set()
        self.stopping: set[str] = set()
        self.granted: dict[int, int] = {}
        """Job whose rules were edited -> the attempt, preempted ones not counted, for which it waited then.

        That one comes whatever the job has left after it: an edit of the retries counts from the next failure on.
        """
        """Jobs that were submitted without a name of their own."""
        self.follows = swarm.random() < 0.5
        """Whether runs count as short, so that others are assigned to follow them."""
        self.short_arrays = swarm.random() < 0.25
        if self.short_arrays:  # they do only where arrays wait and little else happens
            self.follows = True
            array_limits.WINDOW = 8
            self.user_gap_s = max(1.0, self.user_gap_s)
            self.processes.lasts_s = [0.001, 0.001, 0.01, 0.01, 0.1, 0.3]
            few = (
                self.users.hold,
                self.users.release,
                self.users.stop_job,
                self.users.drain,
                self.users.undrain,
            )
            self.users.actions = [
                (12, self.submit_many),
                (0.5, self.users.join),
                *((1, action) for action in few),
                *((0.3, action) for action in (self.users.kill, self.users.create, self.users.update)),
            ]

    # ---- time ----

    def now(self) -> int:
        """The wall clock, which somebody may set."""
        return int((self.elapsed_s + self.skew_s) * 1e9) + 1_700_000_000_000_000_000

    def after(self, seconds: float, what: str, do: Callable[[], object]) -> None:
        self.events += 1
        heapq.heappush(self.heap, (self.elapsed_s + seconds, self.events, what, do))

    def note(self, what: str) -> None:
        line = f"{self.elapsed_s:.6f} {'  ' * self.depth}{what}"
        self.trace.append(line)
        self.digest.update(line.encode())

    def sleep(self, seconds: float) -> None:
        """Others act while somebody sleeps, unless he has the tables locked."""
        until = self.elapsed_s + seconds
        self.depth += 1
        while self.writer is None and self.heap and self.heap[0][0] <= until:
            self._event()
        self.depth -= 1
        self.elapsed_s = max(self.elapsed_s, until)

    def disk_is_full(self) -> bool:
        return self.elapsed_s < self.full_until

    def can_fork(self) -> bool:
        return self.elapsed_s >= self.no_launcher_until

    def runtime(self) -> Runtime | None:
        return None if self.scheduler is None else self.scheduler.runtime  # type: ignore[return-value]

    # ---- boundaries ----

    def boundary(self, actor: Actor, where: str) -> None:
        """Between two things that a process does: here it dies, or others act, or it is suspended."""
        if actor.dead:
            raise Killed
        self.boundaries += 1
        if actor.fuse is not None:
            actor.fuse -= 1
            if actor.fuse <= 0:
                actor.dead = True
                self.note(f"{actor.name} dies at {where}")
                raise Killed
        if self.nest is None or self.writer is not None or self.depth > 0:
            return
        if self.suspend and not actor.is_daemon:
            return
        self.nest -= 1
        if self.nest <= 0:
            self.nest = None
            self._nested(actor, where)

    def _nested(self, actor: Actor, where: str) -> None:
        suspended, self.suspend = self.suspend, False
        self.note(f"meanwhile, at {where} of {actor.name}{', suspended' if suspended else ''}")
        self.depth += 1
        held = self.daemon, self.scheduler, self.in_turn, self.woken
        if suspended:
            self.daemon, self.scheduler, self.in_turn = None, None, False
            self.daemon_due = self.elapsed_s + self.dice.random()
        for _ in range(self.dice.choice([1, 2, 5, 20 if suspended else 5, 60 if suspended else 5])):
            self._event()
        self.depth -= 1
        if not suspended or self.scheduler is None:
            other = self.scheduler
            self.daemon, self.scheduler, self.in_turn, _ = held
            if other is not None and other is not self.scheduler:
                self._bury(other)  # it began meanwhile
        else:
            self.in_turn = False  # the new one goes on, and the old one finds out

    def write_error(self, actor: Actor) -> int | None:
        if self.disk_is_full():
            return FULL
        if self.write_fault:
            self.write_fault = False
            self.note(f"{actor.name}: I/O error")
            return IOERR
        return None

    def commit_error(self, actor: Actor) -> str | None:
        found, self.commit_fault = self.commit_fault, None
        if found is not None:
            self.note(f"{actor.name}: commit fails, {found}")
        return found

    def committed(self) -> None:
        self.changed = True

    def announced(self, actor: Actor) -> None:
        if self.dice.random() >= self.drops and isinstance(
            watch := getattr(self.scheduler, "watch", None), Watch
        ):
            watch.pending = True
            self.wake()
            self.clients.wake()

    def wake(self) -> None:
        if self.in_turn:
            self.woken = True
        elif self.scheduler is None or not self.scheduler.trouble.rest_s():  # it looks after its rest
            self.daemon_due = min(self.daemon_due, self.elapsed_s + 0.001 * self.dice.random())

    # ---- the scheduler ----

    def start(self) -> Scheduler:
        self.actors += 1
        actor = self.daemon = Actor(f"daemon {self.actors}", is_daemon=True)
        store = opened(self.home, self, actor)
        store.clock = self.now
        scheduler = Scheduler(
            store,
            kind="foreground",
            local_node=False,
            terms=self.terms,
            provider=self.provider,
            runtime=Runtime(self, actor),
            clock=self,
            durations=ShortRuns(self) if self.follows else None,
        )
        scheduler.watch.close()
        scheduler.watch = Watch()  # type: ignore[assignment]
        scheduler.observer.measuring = Measuring()  # type: ignore[assignment]
        self.scheduler = scheduler
        try:
            scheduler.start()
        except BaseException:
            self._leave(scheduler)
            raise
        return scheduler

    def die(self) -> None:
        """The scheduler is gone, and all that it held."""
        if self.scheduler is not None:
            scheduler, self.scheduler, self.daemon = self.scheduler, None, None
            self._bury(scheduler)

    def _leave(self, scheduler: Scheduler) -> None:
        """A scheduler is gone, be it the one that rules or one that was overtaken while it was suspended."""
        if scheduler is self.scheduler:
            self.scheduler = self.daemon = None
        self._bury(scheduler)

    def _bury(self, scheduler: Scheduler) -> None:
        scheduler.runtime.close()
        store = scheduler.store
        assert isinstance(store, SimulatedStore)
        store.actor.dead = True
        _close(store)

    @staticmethod
    def _take_turn(scheduler: Scheduler) -> None:
        steps, step = itertools.count(1), Turn._step

        def counted(turn: Turn, state: FollowedState) -> bool:
            if next(steps) > MOST_STEPS:
                raise Violation(f"a turn has taken {MOST_STEPS} steps and finds no end")
            return step(turn, state)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Turn, "_step", counted)
            scheduler.turn()
        if scheduler.work.refused[1] > 1:
            raise Violation("a plan was refused whole, twice, and nothing had changed")

    def turn(self) -> None:
        """The scheduler takes a turn, or one is started."""
        self.in_turn, self.woken = True, False
        scheduler = self.scheduler
        try:
            if scheduler is None:
                scheduler = self.start()
            mail, self.mail = self.mail, []
            scheduler.work.handed += [one for to, one in mail if to is scheduler]
            self._take_turn(scheduler)
            sleep_s = scheduler.sleep_s()
        except (Killed, Fenced, VctlError) as error:
            self.note(f"daemon ends: {type(error).__name__} {error}")
            if isinstance(error, VctlError) and not isinstance(error, Fenced) and scheduler is not None:
                raise Violation(f"a turn ended with {error!r}") from error
            if scheduler is not None:
                self._leave(scheduler)
            self.daemon_due = self.elapsed_s + (0.1 if self.calm else self.dice.choice([0.0, 0.5, 5.0, 30.0]))
            self.in_turn = False
            if self.scheduler is not None:  # the one that has taken over
                self.daemon_due = self.elapsed_s
            return
        self.in_turn = False
        if scheduler is self.scheduler:
            self.daemon_due = self.elapsed_s + (0.001 if self.woken else max(sleep_s, TURN_S))
            self._check_behind(scheduler)
            self._check_state(scheduler)
        else:
            self._bury(scheduler)  # it has noticed nothing, and done nothing
            self.daemon_due = self.elapsed_s

    # ---- users ----

    def act(self) -> None:
        """A command, from its first statement to its last; unless it dies on the way."""
        weights, actions = zip(*self.users.actions, strict=True)
        action = self.users.dice.choices(actions, weights)[0]
        self.command(action.__name__, action)

    def command(self, name: str, action: Callable[[], object]) -> None:
        self.actors += 1
        actor = Actor(f"command {self.actors}")
        if "kill command" in self.faults and not self.calm and self.dice.random() < 0.2:
            actor.fuse = self.dice.randint(1, 80)
        self.note(f"{actor.name}: {name}")
        before, made = self.users.store, self.users.made
        self.users.store = store = opened(self.home, self, actor)
        store.clock = self.now
        try:
            action()
        except Killed:
            self.note(f"{actor.name} was killed")
        except VctlError as error:
            self.note(f"{actor.name} refused: {error.problem}")
        finally:
            assert self.users.made >= made
            self.users.store = before
            actor.dead = True
            _close(store)

    def submit_many(self) -> None:
        """An array whose members can follow each other."""
        if (
            self.users.count("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')")
            < MOST_MEMBERS
        ):
            name, array = f"m{self.users.number():03}", parse_array("1-30")
            request = JobRequest(
                argv=("x",), submission_id=name, cwd="/", entry=amounts(0.5), array=array, grace_s=0
            )
            submitting.submit(self.users.store, request, environment={})

    def submit_quickly(self) -> None:
        """A job that the scheduler writes, or its command where that does not answer. No name comes twice."""
        if (
            self.users.count("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')")
            >= MOST_MEMBERS
        ):
            return
        request = JobRequest(
            argv=("x",), cwd="/", entry=amounts(0.5), grace_s=0, priority=self.dice.choice([0, 0, 1])
        )
        submitting.hand_over = self._hand_over
        try:
            name = submitting.submit(self.users.store, request, environment={})["submission_id"]
        finally:
            submitting.hand_over = None
        if not self.store.row("SELECT 1 FROM events WHERE kind = 'job.submitted' AND object_id = ?", name):
            raise Violation(f"{name} was acknowledged and is not there")

    def _hand_over(self, store: Store, change: JobSubmitted, judged: int | None) -> bool:
        submitting.hand_over = None  # of others who act meanwhile
        assert isinstance(store, SimulatedStore)
        if self.scheduler is None or self.dice.random() < 0.1:
            return False
        one = Waiting(decode(encode(change)), judged)  # type: ignore[arg-type]
        one.change = replace(one.change, launch=change.launch)
        self.mail.append((self.scheduler, one))
        self.wake()
        self.boundary(store.actor, "handed over")
        wait_s = self.dice.choice([TAKE_S, 0.0005, 0.0])
        self.after(wait_s, "waits no longer", one.give_up)
        self.sleep(wait_s)
        one.give_up()
        self.boundary(store.actor, "answered")
        return one.is_written

    # ---- what goes wrong ----

    def plan_faults(self) -> None:
        """The first of each kind; each plans the next one."""
        for name in self.faults:
            if name not in ("kill command", "drop wake-ups"):
                self._plan(name)

    def _plan(self, name: str) -> None:
        self.after(self.dice.expovariate(1 / self.faults[name]), name, lambda: self._fail(name))

    def _fail(self, name: str) -> None:
        if self.calm:
            return
        self._plan(name)
        match name.split():
            case ["kill", what] | ["suspend", "supervisor" as what]:
                self._strike(what, kills=name.startswith("kill"))
            case "commit", how:
                self.commit_fault = how
            case "write", "error":
                self.write_fault = True
            case ("interleave",) | ("suspend", "daemon") if self.depth == 0:
                self.nest, self.suspend = self._some(), name == "suspend daemon"
            case "restart", "daemon" if self.scheduler is not None and not self.in_turn:
                self._stop_daemon()
            case "power", "cut" if self.depth == 0:
                self.die()
                self.clients.lose_server()
                self.processes.power_cut()
                self.daemon_due = self.elapsed_s + 5
            case "clock", "jump":
                self.skew_s += self.dice.choice([-3600.0, -60.0, -1.0, 0.5, 10.0, 600.0, 86_400.0])
            case "no", "launcher":
                self.no_launcher_until = self.elapsed_s + self.dice.choice([0.1, 1.0, 5.0])
            case "disk", "full":
                self.full_until = self.elapsed_s + self.dice.choice([0.01, 0.1, 1.0, 5.0])

    def _strike(self, what: str, *, kills: bool) -> None:
        """Kill a process of the system, or suspend a supervisor."""
        kernel: Kernel = self.processes
        if what == "launcher":
            kernel.kill_launcher()
        elif what == "daemon":
            if self.daemon is not None:
                self.daemon.fuse = self._some()
        elif alive := kernel.supervisors():
            one = self.dice.choice(alive)
            one.signal(signal.SIGKILL if kills else signal.SIGSTOP)
            if not kills:
                self.after(self.dice.choice([0.01, 0.3, 10.0]), "resume", lambda: one.signal(signal.SIGCONT))

    def _some(self) -> int:
        """How many boundaries away: mostly near."""
        return self.dice.randint(1, self.dice.choice([10, 60, 200]))

    def _stop_daemon(self) -> None:
        scheduler, self.scheduler, self.daemon = self.scheduler, None, None
        assert scheduler is not None
        self.in_turn = True
        try:
            scheduler.close()
        except (Killed, VctlError) as error:
            self.note(f"it ends with {error!r}")
        self.in_turn = False
        self._bury(scheduler)
        self.daemon_due = self.elapsed_s + self.dice.choice([0.0, 2.0, 20.0])

    # ---- events ----

    def run(self, steps: int) -> str:
        """Let things happen, then let all faults heal and everything end. The fingerprint of all that happened."""
        for _ in range(1 if self.short_arrays else self.dice.choice([3, 5, 8])):
            self.users.join()
        if self.short_arrays:
            self.submit_many()
        self.after(0.0, "users", self._users)
        self.plan_faults()
        self.clients.start()
        for self.steps in range(steps):
            self._event()
        self.heal()
        return self.digest.hexdigest()

    def _users(self) -> None:
        if not self.calm:
            self.after(self.dice.expovariate(1 / self.user_gap_s), "users", self._users)
            self.act()

    def _event(self) -> None:
        """The next thing that happens, whoever does it."""
        if self.heap and (self.in_turn or self.heap[0][0] < self.daemon_due):
            at, _, what, do = heapq.heappop(self.heap)
            self.elapsed_s = max(self.elapsed_s, at)
            self.note(what)
            do()
        elif not self.in_turn:
            self.elapsed_s = max(self.elapsed_s, self.daemon_due)
            self.note("turn")
            self.turn()
        self.processes.pump()
        if self.depth == 0 or self.writer is None:
            self.check_tables()

    def taken(self, run_id: str) -> None:
        """A supervisor takes a run: it must have been decided and written before, and not be over."""
        of_job = "JOIN commands USING (command_id) JOIN requests q USING (request_id)"
        row = self.store.row(
            "SELECT j.job_id, r.task_id IS NOT NULL OR r.attempt = j.attempt AS current,"
            " iif(r.task_id IS NULL, r.attempt - j.preemptions, 0) AS attempt,"
            " 1 + coalesce(json_extract(q.rules, '$.max_retries'), 0) AS most"
            f" FROM runs r JOIN jobs j USING (job_id) {of_job} WHERE run_id = ?1"
            " UNION ALL SELECT j.job_id, 1, j.attempt + 1 - j.preemptions,"
            " 1 + coalesce(json_extract(q.rules, '$.max_retries'), 0)"
            f" FROM runs_ahead JOIN jobs j USING (job_id) {of_job} WHERE run_id = ?1",
            run_id,
        )
        if row is None and self.store.row("SELECT 1 FROM runs_ahead WHERE run_id = ?", run_id):
            return
        if row is None and run_id in self.processes.accepted:
            return  # its place was given to another run meanwhile
        if row is None:
            raise Violation(f"{run_id} was launched before it was in the tables, or after its end")
        if row["attempt"] > max(row["most"], self.granted.get(row["job_id"], 0)):
            raise Violation(f"{run_id} is one attempt more than its job has")
        if not row["current"]:
            raise Violation(f"{run_id} is of an earlier attempt")

    def killed(self, run_id: str) -> None:
        """A process is to end: somebody must have asked for it, or its supervisor is gone."""
        row = self.store.row("SELECT stop_reason FROM runs WHERE run_id = ?", run_id)
        if row is not None and row["stop_reason"] is None:
            if run_id not in self.processes.orphaned:
                raise Violation(f"{run_id} is killed, and nobody has asked for it")

    def left(self, run_id: str) -> None:
        """A process leaves its outputs."""
        before, self.users.store = self.users.store, self.store
        self.users._leave_outputs(run_id)
        self.users.store = before

    # ---- the rules ----

    def check_tables(self) -> None:
        """What holds whatever is going on: of what has changed after each step, of everything now and then."""
        if not self.changed:
            return
        self.changed = False
        started: set[str] = set()
        for row in self.store.rows(f"SELECT seq, change FROM {JOURNAL} WHERE seq > ?", self.read_to):
            self.note(f"{row['seq']} {row['change']}")
            self.read_to = row["seq"]
            if row["change"] is not None:
                change = decode(row["change"])
                self._check_change(change)
                if isinstance(change, JobStarted) and change.job.array_id is not None:
                    started.add(change.job.array_id)
                elif isinstance(change, ArrayLimited):  # what runs may be more than what may start since then
                    started.discard(change.array_id)
        for array_id in sorted(started):
            self._check_array(array_id)
        self.commits += 1
        if self.commits % self.often:
            self.folding.check(None, compare=False)
        else:
            self.check_everything()

    def _note_granted(self, change: JobsEdited) -> None:
        attempt = "SELECT attempt - preemptions + (status = 'PENDING') FROM jobs WHERE job_id = ?"
        for job_id in numbers_of(change.spans):
            self.granted[job_id] = self.store.value(attempt, job_id) or 0

    def _check_change(self, change: Change) -> None:
        match change:
            case JobStarted():
                members = len(change.vnodes) if change.job.per_node else 1
                if len(change.runs) != members:
                    raise Violation(f"{len(change.runs)} of {members} members start: {change}")
                self._check_numbers()
            case TaskStarted():
                self._check_numbers()
            case ArraySubmitted():
                self.clients.submitted(change.details.metadata)
            case JobsPruned() | JobForgotten() | ArrayForgotten():
                self.clients.prunes += 1
            case JobSubmitted() if change.job.submission_id.startswith("job-"):
                self.clients.submitted(change.details.metadata)
                if change.job.submission_id in self.submitted:
                    raise Violation(f"{change.job.submission_id} was submitted twice")
                self.submitted.add(change.job.submission_id)
            case JobSubmitted():
                self.clients.submitted(change.details.metadata)
            case JobsEdited() if "rules" in change.edited:
                self._note_granted(change)
            case RunStopping():
                self.stopping.add(change.run_id)
            case RunEnded():
                self._check_end(change)

    def _check_numbers(self) -> None:
        """No supervisor has two runs; one of which the end is known, and not in the tables yet, does not count."""
        runs: dict[int, str] = {}
        for row in self.store.rows("SELECT supervisor, run_id FROM runs"):
            if row["run_id"] not in self.processes.over:
                if row["supervisor"] in runs:
                    raise Violation(f"{row['run_id']} has the supervisor of {runs[row['supervisor']]}")
                runs[row["supervisor"]] = row["run_id"]

    def _check_end(self, end: RunEnded) -> None:
        run_id, kernel = end.run_id, self.processes
        if (process := kernel.processes.get(run_id)) is not None and process.alive:
            raise Violation(f"{run_id} has ended, and its process lives")
        if run_id not in self.stopping and end.exit_code != kernel.truth.get(run_id, end.exit_code):
            raise Violation(f"{run_id} ended with {kernel.truth[run_id]}, not {end}")

    def _check_array(self, array_id: str) -> None:
        at_once, running = self.store.rows(
            "SELECT a.at_once, count(*) FROM arrays a JOIN jobs j USING (array_id)"
            " WHERE j.status = 'RUNNING' AND array_id = ?",
            array_id,
        )[0]
        if at_once is not None and running > at_once:
            raise Violation(f"{running} of {array_id} run")

    def check_everything(self) -> None:
        """The rules from the raw tables; and the journal, folded, gives the tables."""
        self.folding.check(None)
        if problems := prove(self.store):
            raise Violation(problems)

    def _check_behind(self, scheduler: Scheduler) -> None:
        """A run assigned ahead is taken back once the one before it takes long, whichever command was refused or killed
        in between. A scheduler in trouble rests and takes nothing back: then the time begins anew.
        """
        resting = scheduler.state is None or scheduler.trouble.rest_s() > 0
        ahead = {} if resting else scheduler.state.ahead.runs
        self.behind = {run_id: self.behind.get(run_id, self.elapsed_s) for run_id in ahead}
        for run_id, since in self.behind.items():
            process = self.processes.processes.get(ahead[run_id].follows)
            if self.elapsed_s - since > 2 * LONGEST_S and process is not None and process.alive:
                raise Violation(f"{run_id} waits behind {ahead[run_id].follows}, which takes long")

    def _check_state(self, scheduler: Scheduler) -> None:
        """What the scheduler knows is what the tables say, once it has read all of the journal."""
        state = scheduler.state
        newest = self.store.value("SELECT max(seq) FROM events") if self.changed else self.read_to
        if state is None or state.seen != newest:
            return
        checked = id(state), state.seen, self.turns // IDLE_TURNS
        self.turns += 1
        if checked != self.checked:
            self.checked = checked
            self.states += 1
            if self.states % self.often == 0:
                if problems := unlike(picture_of(state), picture_of(loaded(self.store))):
                    raise Violation(problems[:5])

    # ---- the end ----

    def settle(self, seconds: float) -> None:
        """Let time pass."""
        until = self.elapsed_s + seconds
        while min(self.daemon_due, self.heap[0][0] if self.heap else until) < until:
            self._event()
            if self.events > MOST_EVENTS:
                raise Violation("it does not come to rest")
        self.elapsed_s = max(self.elapsed_s, until)

    def heal(self) -> None:
        """No faults any more, and no orders but to let everything go on: what can start starts, and all ends."""
        self.note("heal")
        self.calm = True
        self.drops, self.nest, self.commit_fault, self.write_fault = 0.0, None, None, False
        self.full_until = self.no_launcher_until = float("-inf")
        if self.daemon is not None:
            self.daemon.fuse = None
        self.clients.heal()
        self.settle(60)
        self.users.store = self.store
        for row in self.store.rows("SELECT node_id FROM nodes WHERE state IN ('DRAINING', 'DRAINED')"):
            self._ask(lambda node=row[0]: node_ops.undrain(self.store, node))
        for row in self.store.rows("SELECT cluster_id FROM clusters WHERE kind = 'logical'"):
            self._ask(lambda cluster=row[0]: cluster_ops.resume(self.store, cluster))
        for name in self.users.jobs("status = 'PENDING' AND held"):
            self._ask(lambda job=name: job_edits.release(self.store, job))
        self.settle(600)
        self.at_rest()
        self._end_everything()
        self.users.nothing_is_left()
        self.clients.at_end()
        self._forget_everything()

    def _ask(self, what: Callable[[], object]) -> None:
        try:
            what()
        except VctlError as error:
            self.note(f"refused: {error.problem}")
        self.changed = True
        self.daemon_due = min(self.daemon_due, self.elapsed_s)
        if isinstance(watch := getattr(self.scheduler, "watch", None), Watch):
            watch.pending = True

    def at_rest(self) -> None:
        """Nothing was overlooked, and everything that waits knows why."""
        self.check_everything()
        self.check()
        if found := self.overlooked():
            self.settle(60)
            if found := self.overlooked():
                raise Violation(f"overlooked: {found}")
        for row in self.store.rows("SELECT * FROM v_jobs WHERE status = 'PENDING'"):
            if not row["state_reason"]:
                raise Violation(f"{row['submission_id']} waits, and nobody says why")

    def _end_everything(self) -> None:
        for name in self.users.jobs("status IN ('PENDING', 'RUNNING')"):
            self._ask(lambda job=name: job_ops.stop(self.store, job, grace_s=0))
        for row in self.store.rows("SELECT task_id FROM tasks WHERE ended_at IS NULL"):
            self._ask(lambda task=row[0]: task_ops.cancel(self.store, task))
        self.settle(60)
        for row in self.store.rows("SELECT cluster_id FROM clusters WHERE kind = 'logical'"):
            if clusters.get(self.store, row[0]) is not None:
                self._ask(lambda cluster=row[0]: cluster_ops.delete(self.store, cluster, force=True))
        self.settle(120)
        self.check_everything()
        self.check()

    def _forget_everything(self) -> None:
        """All jobs are deleted: nothing of them is left, nor of those that somebody deleted and died."""
        self.skew_s += 30 * 86_400  # some ended while the clock was ahead
        job_ops.prune(self.store, 0)
        self.changed = True
        if self.scheduler is not None:
            self._stop_daemon()
        self.settle(60)  # the next one tidies up
        for folder in (
            "ahead",
            "stops",
            "notices",
            "gangs",
        ):  # a crash right after a deletion may leave a log
            if left := sorted(path.name for path in (self.home / folder).glob("[!.]*")):
                raise Violation(f"left in {folder}: {left}")
        if left := [path.read_bytes() for path in (self.home / "records").glob("[0-9]*")]:
            raise Violation(f"left in records: {left}")

    def close(self) -> None:
        self.clients.close()
        self.die()
        self.processes.close()
        self.folding.close()
        self.store.close()
        for connection in self.spare:
            connection.close()


def _close(store: Store) -> None:
    """As the kernel does it for a process that is gone."""
    store._unwritten.clear()
    Store.close(store)
