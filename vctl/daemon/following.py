"""The tables in memory, on which turns decide. They follow the journal: the cost depends on the changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from vctl.core.jobs import PendingJob, Run
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import QueuePolicy
from vctl.daemon.collection import paused
from vctl.engine.apply import apply
from vctl.engine.changes import Change, RunTakenBack
from vctl.engine.codec import decode
from vctl.engine.replay import Replayed
from vctl.engine.rules.ahead import keeps_order
from vctl.engine.state import SchedulerState
from vctl.ops import replay
from vctl.scheduler.fairness import Shares, Usage
from vctl.scheduler.shared_reservations import Kept, keep, kept_by
from vctl.store import (
    ahead,
    arrays,
    dependencies,
    feed,
    jobs,
    limits,
    objects,
    observed,
    preemptions,
    provider,
    queues,
    reservations,
    rows,
    tasks,
    usage,
)
from vctl.store.store import Store

TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_NAME_BYTES, _NAMES = 3, 256


class Unreadable(Exception):
    """The journal cannot be followed: a row is unreadable, or events are missing. The state is reloaded."""


def _names() -> Iterator[str]:
    """Random names; the kernel is asked for many at once."""
    while True:
        drawn = os.urandom(_NAMES * _NAME_BYTES).hex()
        for at in range(0, len(drawn), 2 * _NAME_BYTES):
            yield drawn[at : at + 2 * _NAME_BYTES]


class FollowedState(SchedulerState):
    """The state of a scheduler: it emits changes, and follows the changes of other processes."""

    def __init__(self, ledger: Ledger, runs: dict[str, Run], seen: int) -> None:
        super().__init__(ledger, runs, seen)
        self.tick_ns = TICK_NS
        self.assign: Callable[[], int] = int
        """Gives the number of the supervisor for a new run."""
        self.new_name: Callable[[], str] = _names().__next__
        """Gives a part of the name of a new run."""
        self.displaced: dict[str, None] = {}
        """Runs that were assigned ahead, found no place, and may have started."""
        self.reserved: dict[int, tuple[PendingJob, QueuePolicy, Kept]] = {}
        """Job -> what its queue keeps for it, as it is in the tables, and for which row and policy."""
        self._own: set[int] = set()
        """Entries of the journal after ``seen`` that were applied when they were emitted."""

    def emit(self, store: Store, change: Change) -> None:
        """Make a change in memory and in the tables, inside a transaction that has followed all others."""
        if self.ahead.runs and not keeps_order(change):
            # but not one that starts now, because the run before it is over
            self.take_back(
                store, [after.run.run_id for after in self.ahead.runs.values() if self.knows(after.follows)]
            )
        if isinstance(change, RunTakenBack) and not ahead.withdrawn(store, change.run_id):
            self.displaced[change.run_id] = None
        self.emit_in_order(store, change)

    def emit_in_order(self, store: Store, change: Change) -> None:
        """Like ``emit``, for a change after which the jobs that were assigned ahead are still next."""
        assert store.head is not None
        is_next = self.seen == store.head.seq
        apply(self, change)
        store.emit(change)
        if is_next:
            self.seen = store.head.seq
        else:
            self._own.add(store.head.seq)

    def take_back(self, store: Store, run_ids: Iterable[str]) -> None:
        """Take back runs that were assigned ahead and have not started; inside a transaction."""
        for run_id in run_ids:
            if ahead.withdrawn(store, run_id) and (after := self.ahead.runs.get(run_id)) is not None:
                self.drop_ahead(store, run_id, after.start.job.job_id)

    def drop_ahead(self, store: Store, run_id: str, job_id: int) -> None:
        """Take back a run assigned ahead that certainly has not started, and the runs that follow it."""
        after = list(self.ahead.chain(run_id))
        self.emit_in_order(store, RunTakenBack(run_id, job_id))
        for follower in after:
            ahead.withdrawn(store, follower.run.run_id)
            self.emit_in_order(store, RunTakenBack(follower.run.run_id, follower.start.job.job_id))

    def emit_each(self, store: Store, changes: Iterable[Change]) -> None:
        """Make changes, each before the next is generated; inside a transaction as for ``emit``."""
        for change in changes:
            self.emit(store, change)

    @classmethod
    def load(cls, store: Store) -> FollowedState:
        """Replay the tables and read the queue; all later changes come through the journal."""
        with paused():
            try:
                return cls._load(store, strict=False)
            except replay.UNREADABLE:  # a row is invalid: the strict replay sets it aside
                return cls._load(store, strict=True)

    @classmethod
    def _load(cls, store: Store, *, strict: bool) -> FollowedState:
        with store.together():  # nobody writes between the replay and the number of the newest entry
            return cls._read(store, replay.rebuild(store, strict=strict))

    @classmethod
    def _read(cls, store: Store, rebuilt: Replayed) -> FollowedState:
        with store.snapshot():
            state = cls(rebuilt.ledger, rebuilt.runs, feed.last(store))
            state.ledger.limits = limits.load(store)
            state.running.spent = limits.spent(store, state.ledger.limits)
            for array_id, at_once in arrays.limited(store):
                state.array_limits.limit(array_id, at_once)
            state.put_all_pending(queues.pending(store))
            for row in jobs.running_rows(store):
                state.note_running(rows.running(row), rows.pending(row))
            state._read_waits(store)
            state._read_ahead(store)
            held = Shares(state.ledger, state.running).held  # running jobs go on while no scheduler runs
            state.usage = Usage.joined(usage.load(store), state.ledger, held)
            state.changed.ended.update(dependencies.awaited_names(store))  # all that may have ended meanwhile
            state._read_tasks(store)
            for run in state.runs.values():
                state.sort_run(run)
            for row in preemptions.all_rows(store):
                state.put_preemption(preemptions.preemption(row))
            for nomination in preemptions.nominations(store):
                state.put_nomination(nomination)
            state._read_reservations(store)  # when each job is in its queue as it will stay
            state.node_requests = {row["request_id"]: provider.request(row) for row in provider.rows(store)}
        state.changed.nodes.update(state.ledger.nodes)
        state.ledger.joined.clear()  # no node is new in its cluster: all were there before
        return state

    def _read_waits(self, store: Store) -> None:
        known: dict[str, dict[str, tuple[str, str]]] = {}
        for row in observed.waits(store):
            known.setdefault(row["parent_cluster_id"], {})[row["shape"]] = (row["reason"], row["message"])
        for parent_id, of_queue in known.items():
            queue = self._queue(parent_id)
            if (parent := self.ledger.clusters.get(parent_id)) is not None:
                queue.arrange(parent.queue, is_limited=self.ledger.limits.of_users)
            queue.recall(of_queue)

    def _read_reservations(self, store: Store) -> None:
        for parent_id, reserved in reservations.load(store).items():
            if (parent := self.ledger.clusters.get(parent_id)) is not None:
                queue = self._queue(parent_id)
                queue.arrange(parent.queue, is_limited=self.ledger.limits.of_users)
                keep(queue, reserved)
                for job_id, kept in kept_by(queue).items():
                    self.reserved[job_id] = queue.jobs[job_id], queue.policy, kept

    def has_reserved(self) -> bool:
        """Whether the queues keep something else than the tables say."""
        return any(self._unwritten_reservations())

    def write_reservations(self, store: Store) -> None:
        """Write what the queues keep now, inside a transaction."""
        changed, dropped = self._unwritten_reservations()
        if changed or dropped:
            observed.save_reservations(store, [reservations.columns(*entry) for entry in changed], dropped)
            self.reserved |= {entry[0].job_id: entry for entry in changed}
            for job_id in dropped:
                del self.reserved[job_id]

    def _unwritten_reservations(self) -> tuple[list[tuple[PendingJob, QueuePolicy, Kept]], list[int]]:
        """What the queues keep, as far as the tables do not say so, and the jobs for which they keep nothing more."""
        changed, dropped = [], []
        for queue in self.queues.values():
            for job_id, reserved in kept_by(queue).items() if queue.kept or queue.shared else ():
                job, before = queue.jobs[job_id], self.reserved.get(job_id)
                if before is None or before[:2] != (job, queue.policy) or not reserved.is_like(before[2]):
                    changed.append((job, queue.policy, reserved))
        for job_id in self.reserved:
            owner = self.queues.get(self.parent_of.get(job_id, ""))
            if owner is None or not (job_id in owner.kept or job_id in owner.shared):
                dropped.append(job_id)
        return changed, dropped

    def _read_ahead(self, store: Store) -> None:
        unread = {row["follows"]: row for row in ahead.rows(store)}
        for run_id in list(self.runs) if unread else ():
            before = run_id
            while (row := unread.pop(before, None)) is not None:
                apply(self, ahead.assigned(row))
                before = row["run_id"]

    def _read_tasks(self, store: Store) -> None:
        for row in objects.copies(store):
            self.tasks.put_copy(
                row["job_id"], row["name"], row["node_id"], row["size"], row["task_id"], row["cluster_id"]
            )
        for job_id, name, maker in objects.all_makers(store):
            self.tasks.promise(job_id, (name,), maker)
        self.tasks.with_objects.update(objects.with_objects(store))
        outliving = tasks.outliving(store)
        for row in tasks.unfinished(store):
            self.tasks.put(rows.task(row, outlives=row["task_id"] in outliving))

    def follow(self, store: Store) -> bool:
        """Apply the changes that others wrote since the last call; True if there were any."""
        if store.head is not None and store.head.seq == self.seen:
            return False
        entries = feed.journal(store, self.seen)
        newest = entries[-1]["seq"] if entries else feed.last(store)
        if newest <= self.seen:
            return False
        if not entries or entries[0]["seq"] > self.seen + 1:
            raise Unreadable(f"entries after {self.seen} were forgotten before they were read")
        by_hand = {entry["object"] for entry in entries if entry["change"] is None} - {"node"}  # heartbeats
        if by_hand:
            raise Unreadable(f"rows were changed by hand: {', '.join(sorted(map(str, by_hand)))}")
        try:
            for entry in entries:
                if entry["change"] is None:
                    self.changed.nodes.add(entry["object_id"])  # its heartbeat lease has changed
                elif entry["seq"] not in self._own:
                    apply(self, decode(entry["change"]))
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        self.seen = newest
        self._own.clear()
        return True
