"""A cluster on a hand-cranked clock: the real scheduler, tables and rules; only processes and time are stood in for.

``World`` turns the scheduler until it rests and then checks everything that must always hold.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests import flat
from tests.contents import JOURNAL, WHOLE
from tests.engine.states import effects_due
from vctl.core import resources as rs
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.values import replace
from vctl.daemon.clock import Clock
from vctl.daemon.durations import MAX_AHEAD, RunDurations
from vctl.daemon.following import TICK_NS, FollowedState
from vctl.daemon.scheduler import Scheduler
from vctl.engine import array_limits
from vctl.engine.apply import apply
from vctl.engine.codec import decode
from vctl.engine.replay import Replayed
from vctl.engine.rules.objects import judge
from vctl.engine.settings import LeaseTerms
from vctl.ops.objects import StoredObjects
from vctl.ops.prove import prove
from vctl.runtime.protocol import ExitRecord, LaunchRequest, NodeDemand, RunState, Seen, StartRecord
from vctl.scheduler.cycle import decide
from vctl.scheduler.placement import place, place_again
from vctl.scheduler.shared_reservations import kept_by
from vctl.spec.provider_spec import ProviderSpec
from vctl.store import ahead, clusters, feed, preemptions, rows
from vctl.store.entries import Emitted
from vctl.store.store import Store
from vctl.store.write import write

MOST_TURNS = 40
"""A scheduler that still finds something to do after that many turns never comes to rest."""


class Killed(BaseException):
    """The scheduler is gone, as after kill -9."""


class Processes:
    """The machine: what was started, what runs. It outlives schedulers, and starts nothing twice."""

    boot = "boot"

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.runs: dict[str, Seen] = {}
        self.starts: dict[str, int] = {}
        self.numbers = 0
        self.news: set[str] = set()
        self.told_to_stop: set[str] = set()
        self.home: Path | None = None
        self.next: dict[str, list[str]] = {}
        """Run -> those that were given to its supervisor to follow it."""
        self.declined: set[str] = set()
        self.kill_before_launch = False
        self.loses_launches = 0
        """So many requests get lost: nobody starts these runs until they are launched again."""

    # ---- what the scheduler calls ----

    def prepare(self) -> None:
        return

    def launch(self, request: LaunchRequest) -> None:
        if self.kill_before_launch:
            raise Killed
        if self.loses_launches:
            self.loses_launches -= 1
            return
        self._start(request.run_id)

    def _start(self, run_id: str) -> None:
        if run_id not in self.runs:
            start = StartRecord(
                1001 + len(self.starts), self.now() // TICK_NS, 1, 1, "boot", self.now()
            )  # since when its time limit counts
            self.runs[run_id] = Seen(RunState.RUNNING, start)
            self.starts[run_id] = self.starts.get(run_id, 0) + 1

    def launch_next(self, request: LaunchRequest, follows: str) -> bool:
        if self.kill_before_launch:
            raise Killed
        first = next((run_id for run_id, after in self.next.items() if follows in after), follows)
        if self.observe(first).state is not RunState.RUNNING:
            return False
        self.next.setdefault(first, []).append(request.run_id)
        return True

    def was_declined(self, run_id: str) -> bool:
        return run_id in self.declined and run_id not in self.runs

    def let_next_go(self, run_id: str) -> None:
        self.declined.discard(run_id)

    def _follow(self, run_id: str, *, stopped: bool) -> None:
        """A supervisor takes the next run, if it was not taken back, and declines those after one that was."""
        after = self.next.pop(run_id, [])
        assert self.home is not None
        if after and not stopped and (offer := self.home / ahead.FOLDER / after[0]).exists():
            offer.unlink()
            self._start(after[0])
            if after[1:]:
                self.next[after[0]] = after[1:]
        else:
            self.declined.update(after)

    def observe(self, run_id: str) -> Seen:
        return self.runs.get(run_id, Seen(RunState.NEVER_STARTED))

    def fileno(self) -> int:
        return -1

    def changes(self) -> set[str]:
        news, self.news = self.news, set()
        return news

    def assign(self) -> int:
        self.numbers += 1
        return self.numbers

    def settle(self, live: Mapping[str, int]) -> None:
        assert all(live.values())

    def restore(self) -> None:
        return

    def request_nodes(self, wanted: Sequence[NodeDemand]) -> None:
        return

    def drop_ended(self) -> None:
        return

    def due_s(self) -> float:
        return 5.0

    def known_runs(self) -> list[str]:
        return list(self.runs)

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        if self.observe(run_id).state is RunState.NEVER_STARTED:
            self.end(run_id, 143, stopped=True)
        else:
            self.told_to_stop.add(run_id)

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        return run_id in self.runs

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        return ()

    def forget(self, run_id: str) -> None:
        assert self.observe(run_id).state is not RunState.RUNNING
        self.runs.pop(run_id, None)
        self.told_to_stop.discard(run_id)

    def close(self) -> None:
        return

    # ---- what processes do ----

    def end(self, run_id: str, code: int, *, stopped: bool = False) -> None:
        """A process exits by itself, or because it was told to."""
        end = ExitRecord(code, 15 if stopped else None, None, "", stopped, 1, 0, 0, 0)
        self.runs[run_id] = Seen(RunState.EXITED, self.observe(run_id).start, end)
        self._follow(run_id, stopped=stopped)

    def lose(self, run_id: str) -> None:
        """Its supervisor was killed: how it ended is not known."""
        self.runs[run_id] = Seen(RunState.LOST, self.runs[run_id].start)
        self._follow(run_id, stopped=True)

    def obey(self) -> None:
        """All that were told to stop are gone."""
        for run_id in sorted(self.told_to_stop):
            if self.observe(run_id).state is RunState.RUNNING:
                self.end(run_id, 143, stopped=True)
        self.told_to_stop.clear()

    def running(self) -> list[str]:
        return sorted(run_id for run_id, seen in self.runs.items() if seen.state is RunState.RUNNING)


class MortalStore(Store):
    """The scheduler's own connection. ``dies_at`` counts commits: it dies before that one, or right after it."""

    dies_at: int | None = None
    after_it = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
            if self.dies_at == 0 and not self.after_it:
                raise Killed
        if self.dies_at == 0:
            raise Killed
        if self.dies_at is not None:
            self.dies_at -= 1


WINDOW = array_limits.WINDOW


class ShortRuns(RunDurations):
    """All runs count as short, so that others are assigned to follow them."""

    @property
    def depth(self) -> int:
        return MAX_AHEAD


class World(Clock):
    """A state directory, its processes, and while it lives its scheduler, which reads no clock but this one."""

    def __init__(
        self,
        home: Path,
        *,
        terms: LeaseTerms | None = None,
        provider: ProviderSpec | None = None,
        window: int = 2,
    ) -> None:
        self.home = home
        array_limits.WINDOW = window  # small, so that the rows of arrays are divided often
        self.terms = terms or LeaseTerms(idle_s=10, cooldown_s=2, reclaim_grace_s=5)
        self.provider = provider
        self.elapsed_s = 1_000.0
        self.store = self._open(Store)
        (home / "records").mkdir(exist_ok=True)
        self.processes = Processes(self.now)
        self.processes.home = home
        self.folding = Folding(self.store)
        self.scheduler: Scheduler | None = None

    def _open(self, kind: type[Store]) -> Any:
        store = kind.open(self.home)
        store.db.execute("PRAGMA synchronous = OFF")  # no machine dies here
        store.clock = self.now
        return store

    # ---- time ----

    def now(self) -> int:
        return int(self.elapsed_s * 1e9)

    def uptime_ns(self) -> int:
        return int(self.elapsed_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.elapsed_s += seconds

    # ---- the scheduler ----

    def start(self) -> Scheduler:
        scheduler = Scheduler(
            self._open(MortalStore),
            kind="foreground",
            local_node=False,
            terms=self.terms,
            provider=self.provider,
            runtime=self.processes,
            clock=self,
            durations=ShortRuns(self),
        )
        self.scheduler = scheduler
        scheduler.start()
        return scheduler

    def die(self) -> None:
        """The daemon is gone; nothing is written any more."""
        if self.scheduler is not None:
            scheduler, self.scheduler = self.scheduler, None
            scheduler.close(orderly=False)
            scheduler.store.close()

    def turn(self) -> None:
        """Let the scheduler work until it rests, then check everything."""
        scheduler = self.scheduler or self.start()
        for _ in range(MOST_TURNS):
            before = self._moved()
            scheduler.observer.processes_at = 0  # every process: nobody writes into the watched directory
            scheduler.turn()
            self.folding.check(scheduler.state)
            if self._moved() == before:
                self.check()
                return
        raise AssertionError("the scheduler does not come to rest")

    def _moved(self) -> object:
        last = self.store.value("SELECT max(seq) FROM events")
        return last, sorted((r, s.state) for r, s in self.processes.runs.items())

    # ---- what must always hold ----

    def check(self) -> None:
        """The rules from the raw tables; and what the scheduler has in memory is what the tables say."""
        problems = prove(self.store)
        assert problems == [], problems
        assert self.scheduler is not None
        state = self.scheduler.state
        assert state is not None
        problems = differences(state.ledger, clusters.load_ledger(self.store))
        assert problems == [], problems
        leases = {row["lease_id"]: rows.lease(row) for row in self.store.rows("SELECT * FROM leases")}
        assert state.leases == leases
        again = loaded(self.store)
        problems = unlike(picture_of(state), picture_of(again)) or unlike(
            reserved_in(state), reserved_in(again)
        )
        assert problems == [], problems
        problems = astray(state.ledger, list(leases.values()), self._entries())
        assert problems == [], problems
        live = {row[0] for row in self.store.rows("SELECT run_id FROM runs")}
        assert set(state.runs) == live
        assert set(self.processes.running()) <= live
        assert all(count == 1 for count in self.processes.starts.values())
        pending = {row[0] for row in self.store.rows(
            "SELECT job_id FROM jobs"
            " WHERE status = 'PENDING' AND NOT held AND NOT waits_for AND NOT closed AND members = 1"
        )}  # fmt: skip
        next_ = {row["run_id"]: row["job_id"] for row in ahead.rows(self.store)}
        assert {run_id: one.start.job.job_id for run_id, one in state.ahead.runs.items()} == next_
        assert {one.follows for one in state.ahead.runs.values()} <= {*state.runs, *next_}
        assert set(state.parent_of) == pending - set(next_.values())
        waiting = self.store.rows("SELECT job_id FROM jobs WHERE status = 'PENDING'")
        assert {*state.parent_of, *state.gated, *next_.values()} == {row[0] for row in waiting}
        running = dict(
            self.store.rows("SELECT array_id, count(*) FROM jobs WHERE status = 'RUNNING' GROUP BY 1")
        )
        assert not state.array_limits.short, "members that are next have no rows of their own"
        for array_id, window in state.array_limits.array_limits.items():
            if window.at_once is not None:
                run = running.get(array_id, 0)  # more than may start, where an edit has lowered the limit
                assert run <= len(window.open) <= max(run, window.at_once), array_id
            assert not window.next, f"{array_id} has a place that no member got"
        waiting = self.store.rows(
            "SELECT task_id FROM tasks WHERE ended_at IS NULL AND state = 'PENDING_NODE_ASSIGNMENT'"
        )
        assert {one for queue in state.tasks.queues.values() for one in queue.tasks} == {
            row[0] for row in waiting
        }
        assert self._orphans() == []
        assert live or self._starts_soon(), "nothing runs, though something fits"
        assert self._kept_waiting() == [], "it would start with what others have idle"
        for queue in state.queues.values():
            for one in queue.shapes.values():
                job, where = one.example, (state.ledger, queue.parent_id, one.example.spec, one.example.entry)
                assert place_again(*where, dict(one.places)) == place(*where), job
        kept = {one.job_id: one for one in preemptions.nominations(self.store)}
        assert state.nominations == kept
        due = effects_due(state, self.now())
        done = [effect for all_of in self.scheduler.carrier.done.values() for effect in all_of]
        assert [one for one in due if one not in done] == []
        ending = {row[0] for row in self.store.rows("SELECT victim_id FROM preemptions")}
        assert set(state.preemptions) == ending <= set(state.running.jobs)
        self._check_objects(state)

    def _starts_soon(self) -> bool:
        """Whether nothing fits while nothing runs, or else the next turn starts it: its time may have come just now."""
        assert self.scheduler is not None
        if not self.overlooked(idle=True):
            return True
        self.scheduler.turn()
        assert self.scheduler.state is not None
        return bool(self.scheduler.state.runs) or not self.overlooked(idle=True)

    def _kept_waiting(self) -> list[str]:
        """What would start if all that is borrowed and idle were home, also after another turn: see ``tests.flat``."""
        assert self.scheduler is not None
        for _ in range(2):
            assert self.scheduler.state is not None
            if not (found := flat.startable(self.scheduler.state, self.now())):
                break
            self.scheduler.turn()
        return found

    def overlooked(self, *, idle: bool = False) -> list[str]:
        """What a scheduler that starts now, without any verdict of the past, would start: nothing was overlooked.

        Left out are starts for which a cluster would grow, as what growth finds depends on its order, and all of it
        where reservations of the past keep resources. ``idle``: nothing runs, so these are no reason to wait.
        """
        assert self.scheduler is not None
        old = self.scheduler.state
        assert old is not None
        fresh = FollowedState.load(self.store)
        fresh.lease_terms, fresh.ledger.templates = old.lease_terms, old.ledger.templates
        fresh.ledger.joined.clear()
        plan = decide(
            fresh.ledger,
            fresh.queues,
            fresh.tasks.queues,
            now_ns=self.now(),
            running=fresh.running,
            usage=fresh.usage,
        )
        if idle:
            return [start.job.submission_id for start in plan.starts]
        if any(queue.kept for state in (old, fresh) for queue in state.queues.values()):
            return []
        jobs = [start.job.submission_id for start in plan.starts if not start.growth]
        return jobs + [start.task.task_id for start in plan.task_starts if not start.growth]

    def _check_objects(self, state: FollowedState) -> None:
        """Who waits for inputs is right to, who waits for a place has them, and nothing lies on dead nodes."""
        awaiting = self.store.rows(
            "SELECT task_id, job_id FROM tasks WHERE ended_at IS NULL AND state = 'PENDING_ARGS_AVAIL'"
        )
        assert state.tasks.awaiting() == {row[0]: row[1] for row in awaiting}
        for row in self.store.rows("SELECT * FROM tasks WHERE ended_at IS NULL AND state <> 'RUNNING'"):
            verdict = judge(StoredObjects(self.store, row["job_id"]), rows.loads(row["inputs"]))
            assert not verdict.broken, (tuple(row), verdict)
            assert bool(verdict.awaits) == (row["state"] == "PENDING_ARGS_AVAIL"), (tuple(row), verdict)
        places = {one[0]: one[1] for one in self.store.rows("SELECT task_id, vnode_id FROM tasks")}
        for queue in state.tasks.queues.values():
            for task in queue.tasks.values():
                assert places[task.task_id] == task.bound_vnode_id
        counts = self.store.rows(
            "SELECT job_id, count(*) FROM tasks WHERE ended_at IS NULL AND state <> 'RUNNING' GROUP BY job_id"
        )
        assert state.tasks.waiting_of == {row[0]: row[1] for row in counts}
        assert self.store.rows(
            "SELECT 1 FROM objects o LEFT JOIN nodes n USING (node_id) LEFT JOIN jobs j USING (job_id)"
            " WHERE coalesce(n.state, 'DEAD') = 'DEAD' OR j.status IS NULL OR j.status = 'PENDING'"
        ) == []  # fmt: skip

    def _orphans(self) -> list[Any]:
        """Tasks whose owner is over, that were not detached, and that nobody has told to end."""
        return [
            tuple(row)
            for row in self.store.rows(
                "SELECT t.task_id, t.state, t.owner_id FROM tasks t LEFT JOIN runs r"
                " ON r.task_id = t.task_id WHERE t.ended_at IS NULL AND NOT t.detached"
                " AND r.stop_reason IS NULL AND (EXISTS (SELECT 1 FROM tasks o WHERE o.task_id = t.owner_id AND"
                " o.ended_at IS NOT NULL) OR EXISTS (SELECT 1 FROM jobs j WHERE j.submission_id = t.owner_id AND"
                " (j.outcome IS NOT NULL OR j.status <> 'RUNNING')))"
            )
        ]

    def _entries(self) -> dict[str, Mapping[str, int]]:
        """What came with a job's gang for its entrypoint: no lease, though it may be above the minimum."""
        return {
            row[0]: rows.loads(row[1]) for row in self.store.rows(f"SELECT cluster_id, entry FROM {WHOLE}")
        }

    def close(self) -> None:
        self.die()
        self.folding.close()
        self.store.close()
        array_limits.WINDOW = WINDOW

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Folding:
    """The journal is the whole truth about what has moved: folded, it gives the tables and the state (spec 17)."""

    KEPT = {
        WHOLE: "job_id, status, cluster_id, attempt, exit_code, started_at, ended_at, node_ids, resources, outcome,"
        " preemptions, master_port, stop_requested_at, stop_reason, held, begin_at, waits_for, closed, priority, name,"
        " time_limit_s, submission_id, parent_cluster_id, shares_parent, shape, spec, entry, user, metadata, grace_s,"
        " submitted_at, rules, array_id, array_index, per_node, submitted_by, members, step,"
        " state_reason, message",
        "arrays": "array_id, first_job_id, last_job_id, range, count, at_once",  # what is launched stays outside
        "dependencies": "*",
        "runs": "run_id, job_id, task_id, attempt, rank, cluster_id, vnode_id, node_id, state, amounts, instances,"
        " cores, pid, pid_start, boot_id, stop_reason, assigned_at, started_at,"
        " warned_for",
        "clusters": "*",
        "meta WHERE key = 'primary_queue'": "*",
        "nodes": "node_id, hostname, template_id, source, state, reason, author, state_since, amounts, instances,"
        " cores, labels, boot_id, created_at, shrunk, fences",
        "vnodes": "*",
        "leases": "*",
        # why a task waits for a place is observed
        "tasks": "task_number, task_id, job_id, cluster_id, owner_id, name, state, request, selector, strategy,"
        " origin_vnode_id, inputs, outputs, max_retries, attempt, detached, vnode_id, node_id, exit_code, grace_s,"
        " stop_requested_at, created_at, started_at, ended_at,"
        " iif(state LIKE 'PENDING_NODE%', '', state_reason), iif(state LIKE 'PENDING_NODE%', '', message)",
        "preemptions": "*",
        "nominations": "*",
        "objects": "*",
        "promises": "*",
        "provider_requests": "*",
        "limits": "*",
        "attempts": "*",
        "past_use": "*",
        "task_inputs": "*",
        "runs_ahead": "*",
        "set_aside": "source, row_key, iif(source IN ('jobs', 'tasks'), '', content), problem, at",
    }
    """Of each table the columns that changes give; what is only observed is left out."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.steps = 0
        self.unlike = False
        """Whether something came since tables and folded journal were compared."""
        self.folded: sqlite3.Connection | None = None
        self.begin()

    def begin(self) -> None:
        self.seq = feed.last(self.store)
        base = bytearray(self.store.db.serialize())
        base[18:20] = b"\1\1"  # a copy in memory has no write-ahead log
        self.close()
        self.folded = sqlite3.connect(":memory:", isolation_level=None)
        self.folded.deserialize(bytes(base))
        self.follower: FollowedState | None = None

    def close(self) -> None:
        if self.folded is not None:
            self.folded.close()

    def check(self, state: FollowedState | None, *, compare: bool = True) -> None:
        """Fold all that came since the last look, where all of it has moved; else begin anew. Then ``compare``."""
        entries = feed.journal(self.store, self.seq)
        self.unlike |= bool(entries)
        if entries:
            self._take_in(state, entries)
        if compare and self.unlike:
            self.unlike = False
            self._compare([row["change"] for row in entries])

    def _take_in(self, state: FollowedState | None, entries: Sequence[Any]) -> None:
        is_whole = feed.base(self.store) <= self.seq  # what is older than a minute may be forgotten
        has_moved = is_whole and all(row["change"] is not None for row in entries)
        if has_moved:
            self.steps += 1
            self._fold_tables(entries)
            self.seq = entries[-1]["seq"]
            if any(row["kind"] == "row.set_aside" for row in entries):
                self.follower = None  # the state begins anew with such tables
            if self.follower is not None and state is not None:
                for row in entries:
                    apply(self.follower, decode(row["change"]))
                problems = unlike(picture_of(self.follower), picture_of(loaded(self.store)))
                assert problems == [], problems
        if not has_moved:
            self.begin()
            self.follower = loaded(self.store)
        self.follower = self.follower or loaded(self.store)

    def _fold_tables(self, entries: Sequence[Any]) -> None:
        assert self.folded is not None
        changes = [Emitted(row["at"], decode(row["change"])) for row in entries]
        write(self.folded, changes, entries[-1]["seq"])
        sql = f"SELECT kind, object, object_id, cluster_id, job_id, data, change FROM {JOURNAL} WHERE seq > ?"
        assert self.folded.execute(sql, (self.seq,)).fetchall() == [
            tuple(row) for row in self.store.rows(sql, self.seq)
        ]

    def _compare(self, changes: Sequence[str | None]) -> None:
        assert self.folded is not None
        for table, columns in self.KEPT.items():
            sql = f"SELECT {columns} FROM {table} ORDER BY 1"
            folded, real = (
                set(found) for found in (self.folded.execute(sql), map(tuple, self.store.rows(sql)))
            )
            assert folded == real, (table, folded ^ real, changes)


def loaded(store: Store) -> FollowedState:
    """The state that the tables give, read by whoever comes to know of it now."""
    live = {row["run_id"]: rows.run(row) for row in store.rows("SELECT * FROM runs")}
    return FollowedState._read(store, Replayed(clusters.load_ledger(store), live))


def picture_of(state: FollowedState) -> dict[object, object]:
    """All of a state that changes give, comparable."""
    found: dict[object, object] = dict(picture(state.ledger))
    for queue in state.queues.values():
        found.update((("queued", job.job_id), job) for job in queue.jobs.values())
    found.update((("gated", job_id), job) for job_id, job in state.gated.items())
    found.update((("request", job_id), replace(job, attempt=0)) for job_id, job in state.requests.items())
    found.update((("run", run_id), run) for run_id, run in state.runs.items())
    found.update((("to stop", run_id), True) for run_id in state.to_stop)
    found.update((("ahead", run_id), one) for run_id, one in state.ahead.runs.items())
    found.update((("running", job_id), job) for job_id, job in state.running.jobs.items())
    found.update((("leaving", job_id), True) for job_id in state.running.leaving)
    found.update((("lease", lease_id), lease) for lease_id, lease in state.leases.items())
    found.update((("parent", job_id), parent) for job_id, parent in state.parent_of.items())
    for job_id, run_ids in state.runs_of_job.items():
        found["runs", job_id] = set(run_ids)
    found.update((("preemption", one.victim_id), one) for one in state.preemptions.values())
    found["nominations", "in order"] = list(state.nominations.values())
    found.update(
        (("nominated", queue.parent_id), queue.nominations)
        for queue in state.queues.values()
        if queue.nominations
    )
    found.update((("request", request_id), one) for request_id, one in state.node_requests.items())
    found.update((("limit", limit.key), limit) for limit in state.ledger.limits)
    if state.ledger.limits.periods:
        for whose, days in state.running.spent.items():
            found.update((("spent", whose, day), amount) for day, amount in days.items() if amount)
    tasks = state.tasks
    found.update((("task", task_id), task) for task_id, task in tasks.unfinished.items())
    found.update(
        (("place", one.task_id), one) for queue in tasks.queues.values() for one in queue.tasks.values()
    )
    found.update((("waiting of", job_id), count) for job_id, count in tasks.waiting_of.items())
    found.update((("object", job_id), objects) for job_id, objects in tasks.objects.items())
    found.update((("makers", job_id), makers) for job_id, makers in tasks.makers.items())
    found.update((("with objects", job_id), True) for job_id in tasks.with_objects)
    for array_id, window in state.array_limits.array_limits.items():
        found["window", array_id] = window.at_once, set(window.open), set(window.closed), list(window.waiting)
        found["rest", array_id] = window.folded, window.rest, window.next_of, window.counts
        found["ready", array_id] = array_id in state.array_limits.ready, array_id in state.array_limits.short
    return found


def reserved_in(state: FollowedState) -> dict[object, object]:
    """What the queues keep for their jobs until the next round, comparable: no change gives it."""
    found: dict[object, object] = {}
    for queue in state.queues.values():
        for job_id, kept in kept_by(queue).items():
            both = (kept.own, kept.shared and kept.shared.reservation)
            found["reserved", job_id] = kept, [one and (one.placed, one.claims) for one in both]
    return found


def unlike(left: Mapping[object, object], right: Mapping[object, object]) -> list[str]:
    """Where two pictures differ."""
    if left == right:
        return []
    return [
        f"{key}: {left.get(key)} is not {right.get(key)}"
        for key in sorted({*left, *right}, key=repr)
        if left.get(key) != right.get(key)
    ]


def picture(ledger: Ledger) -> dict[tuple[str, str], object]:
    """All that a ledger says, comparable; a resource of which there is nothing is as one never heard of."""
    found: dict[tuple[str, str], object] = {
        ("capacity", vnode_id): (
            {name: amount for name, amount in left.free.items() if amount},
            {n: {i: s for i, s in shares.items() if s} for n, shares in left.instances.items() if any(shares.values())},
            left.cores,
            left.missing_cores,
            {n: {i: s for i, s in shares.items() if s} for n, shares in left.fenced.items()},
        )
        for vnode_id, left in ledger.capacities.items()
    }  # fmt: skip
    tables: Mapping[str, Mapping[str, object]] = {
        "node": ledger.nodes,
        "cluster": ledger.clusters,
        "vnode": ledger.vnodes,
        "charge": ledger.charges,
        "home": ledger.homes,
    }
    for kind, rows_ in tables.items():
        found.update(((kind, key), value) for key, value in rows_.items())
    inside: Mapping[str, Mapping[str, Mapping[str, None]]] = {
        "members": ledger.members,
        "children": ledger.children,
        "subclusters": ledger.subclusters,
    }
    for kind, ids_of in inside.items():
        found.update(((kind, key), set(ids)) for key, ids in ids_of.items() if ids)
    found["removing", ""] = set(ledger.removing)
    return found


def differences(one: Ledger, other: Ledger) -> list[str]:
    """Where two ledgers say different things."""
    left, right = picture(one), picture(other)
    return [
        f"{key}: {left.get(key)} is not {right.get(key)}"
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    ]


def astray(ledger: Ledger, leases: Sequence[Lease], entries: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Where leases are not what a cluster has above its minimum, but for what came with its entrypoint.

    A cluster beside a job may also have lent to its gang; such a loan ends with its lender.
    """
    found = []
    for cluster in ledger.clusters.values():
        parts = [v for v in ledger.slots(cluster.cluster_id) if v.kind == "flexible"]
        has = rs.total(part.allocation.amounts for part in parts)
        leased = rs.total(lease.amounts for lease in leases if lease.borrower_id == cluster.cluster_id)
        for name in {*has, *leased}:
            over = max(0, has.get(name, 0) - cluster.spec.flexible_min.get(name, 0))
            own = entries.get(cluster.cluster_id, {}).get(name, 0)
            gang = sum(
                lease.amounts.get(name, 0)
                for lease in leases
                if lease.borrower_id == cluster.cluster_id
                and cluster.kind == "job"
                and lease.lender_id != cluster.parent_id
            )
            if not over - own <= leased.get(name, 0) <= over + gang:
                found.append(
                    f"{cluster.cluster_id}: {over} {name} above the minimum, {leased.get(name, 0)} leased"
                )
    return found


def unbalanced(ledger: Ledger) -> list[str]:
    """Where total is not free plus held: recomputed from virtual nodes and charges, by other means than free
    capacities use."""
    found = []
    for slot_id, slot in ledger.vnodes.items():
        inside = [v.allocation for v in ledger.vnodes.values() if v.parent_id == slot_id]
        inside += [allocation for where, allocation in ledger.charges.values() if where == slot_id]
        held = rs.total(allocation.amounts for allocation in inside)
        capacity = ledger.capacities[slot_id].copy()
        capacity.fence({})
        for name in {*slot.allocation.amounts, *held, *capacity.free}:
            total, free, used = (m.get(name, 0) for m in (slot.allocation.amounts, capacity.free, held))
            if total != free + used or free < 0:
                found.append(f"{slot_id}: {total} {name} is not {free} free + {used} held")
        for name, whole in slot.allocation.instances.items():
            if sum(whole.values()) != slot.allocation.amounts.get(name, 0):
                found.append(f"{slot_id}: the shares of {name} are not its amount")
            for index, share in whole.items():
                used = sum(h.instances.get(name, {}).get(index, 0) for h in inside)
                if share != capacity.instances[name].get(index, 0) + used:
                    found.append(f"{slot_id}: {name} {index} does not add up")
        cores = [core for allocation in inside for core in allocation.cores]
        if len(cores) != len(set(cores)) or set(slot.allocation.cores) != capacity.cores | set(cores):
            found.append(f"{slot_id}: cores {sorted(cores)} held, {sorted(capacity.cores)} free")
        if slot.parent_id is not None:
            above = ledger.vnodes[slot.parent_id]
            parent = ledger.clusters[slot.cluster_id].parent_id
            if (above.node_id, above.cluster_id) != (slot.node_id, parent):
                found.append(f"{slot_id} does not lie in its parent cluster on its node")
    places = [(v.cluster_id, v.parent_id) for v in ledger.vnodes.values() if v.kind == "flexible"]
    if len(places) != len(set(places)):
        found.append("two flexible virtual nodes of one cluster in one virtual node")
    return found


def amounts(cpus: float = 0, gpus: float = 0) -> Mapping[str, int]:
    """CPUs and GPUs in internal units."""
    found = {rs.CPU: round(cpus * rs.SCALE), rs.GPU: round(gpus * rs.SCALE)}
    return {name: amount for name, amount in found.items() if amount}
