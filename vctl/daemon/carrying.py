"""Carries effects out: launches and ends processes, warns and tells jobs, calls the node provider, removes files."""

from __future__ import annotations

import signal as signals
from collections import deque
from collections.abc import Iterable

from vctl.core.jobs import Preemption, Run
from vctl.core.leases import Lease
from vctl.daemon import gangs
from vctl.daemon.clock import Clock
from vctl.daemon.durations import RunDurations, took_s
from vctl.daemon.following import FollowedState
from vctl.daemon.launching import Commands, request_of
from vctl.daemon.notices import Notices
from vctl.daemon.objects import Objects, Unprepared
from vctl.daemon.provider import Provider
from vctl.daemon.trouble import Trouble, say
from vctl.engine import effects
from vctl.engine.effects import Done, LaunchRun, Stop
from vctl.engine.rules import revocation
from vctl.engine.settings import TurnMemo
from vctl.engine.stimuli import (
    JobNotified,
    JobWarned,
    LeaseNotified,
    Now,
    ProcessOver,
    RunNotLaunched,
    Stimulus,
)
from vctl.engine.timers import signal_of
from vctl.errors import VctlError
from vctl.ray.daemon.private_rays import PrivateRays
from vctl.runtime.protocol import RunState, Runtime
from vctl.store import jobs, repair
from vctl.store.store import Store

FORGET_S = 0.01
"""How long a turn removes files of ended runs, at most."""
NOTICE_SIGNAL = signals.SIGURG
"""Processes ignore this signal by default, so it does no harm to a job that does not know of leases."""


class Remains:
    """Runs that are recorded as ended; their files are removed later, as removal is slow beside commits."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.over: deque[str] = deque()

    def remove(self, runtime: Runtime, limit_s: float) -> None:
        """Remove files of ended runs for at most ``limit_s``; the next start removes those left by a crash."""
        until = self.clock.uptime_s() + limit_s
        while self.over and self.clock.uptime_s() < until:
            runtime.forget(self.over.popleft())

    def end_unknown(self, runtime: Runtime, state: FollowedState) -> None:
        """End processes without a row, as after a restore; not those whose row was set aside."""
        for run_id in runtime.known_runs():
            if not (state.knows(run_id) or repair.is_set_aside(self.store, "runs", run_id)):
                self._end(runtime, run_id)

    def _end(self, runtime: Runtime, run_id: str) -> None:
        state = runtime.observe(run_id).state
        if state in (RunState.STARTING, RunState.RUNNING):
            say(f"stopping run {run_id}, which belongs to no job")
            runtime.stop(run_id, grace_s=3.0)
        elif state is not RunState.LOST or not runtime.clear_lost(run_id):
            runtime.forget(run_id)


class Carrier:
    """Carries out the effects that are due and new: it knows which effects it has carried out."""

    def __init__(
        self, store: Store, runtime: Runtime, provider: Provider, trouble: Trouble, durations: RunDurations, *,
        interval_s: float, log_max_bytes: int, cgroups: str,
    ) -> None:  # fmt: skip
        self.store, self.runtime, self.provider = store, runtime, provider
        self.trouble, self.durations = trouble, durations
        self.log_max_bytes, self.cgroups = log_max_bytes, cgroups
        self.commands, self.remains = Commands(store), Remains(store, durations.clock)
        self.objects = Objects(store, interval_s=interval_s)
        self.rays, self.notices = PrivateRays(store.home, runtime), Notices(store)
        self.done: Done = {}
        self.memo = TurnMemo()
        self.postponed: dict[str, None] = {}
        """Runs that could not be launched for a reason that passes by itself."""
        self.given: set[str] = set()
        """Runs whose launch request a supervisor may have, so that their processes may write at any moment."""

    def begin(self, state: FollowedState) -> None:
        """Start with a state that was just loaded, whose runs may all have been launched already."""
        self.done = {run_id: (LaunchRun(run_id),) for run_id in state.runs}
        self.postponed.clear()
        self.store.check_term()  # this state does not have the runs of a newer scheduler
        self.remains.end_unknown(self.runtime, state)
        self.runtime.settle(_numbers(state))
        self.rays.begin(state)
        self.notices.begin()
        ahead = [follower.run for follower in state.ahead.runs.values()]
        gangs.tidy(self.store.job_files, [*state.runs.values(), *ahead])

    def launched(self, run_id: str) -> None:
        """Note that a supervisor has the launch request of a run already, so that it needs no launch."""
        self.done[run_id] = (LaunchRun(run_id),)

    def again(self, state: FollowedState, run_id: str) -> None:
        """Make the launch of a run due again, because it did not happen."""
        self.done.pop(run_id, None)
        state.changed.runs[run_id] = None

    def retry(self, state: FollowedState) -> None:
        """Make the launches that failed for a passing reason due again."""
        postponed, self.postponed = self.postponed, {}
        for run_id in postponed:
            self.again(state, run_id)

    def carry_out(self, state: FollowedState, now: Now, stimuli: Iterable[Stimulus]) -> list[Stimulus]:
        """Carry out the new effects; ``stimuli``: the stimuli of this step. Returns the results, as stimuli."""
        results: list[Stimulus] = []
        runtime = self.runtime
        for stimulus in stimuli:
            if isinstance(stimulus, ProcessOver) and not state.knows(stimulus.run.run_id):
                self._let_go(state, stimulus.run, took_s(stimulus))
            elif isinstance(stimulus, RunNotLaunched):
                self.again(state, stimulus.run_id)
        self.rays.follow(state)
        for effect in effects.news(state, self.done):
            match effect:
                case LaunchRun(run_id) if (run := state.runs.get(run_id)) is not None:
                    results += self._launch(state, run)
                case Stop(run_id, grace_s, ends_ns):
                    if ends_ns is not None:
                        grace_s = max(0.0, (ends_ns - self.store.clock()) / 1e9)
                    runtime.stop(run_id, grace_s=grace_s)
        for warn in effects.warnings(state, now.uptime):
            runtime.signal_run(
                warn.run_id, warn.signal["number"]
            )  # before the commit: after a crash the signal is sent twice, never not at all
            results.append(JobWarned(warn.run_id, warn.ends_ns))
        for tell in effects.notices(state):
            results.append(JobNotified(tell.preemption, delivered=self._tell(state, tell.preemption)))
        calls = list(revocation.to_notify(state, self.memo, now.wall)) if state.leases else []
        for lease, job_id in calls:
            self._call_in(state, lease, job_id)
            results.append(LeaseNotified(lease.lease_id, job_id))
        self.notices.remove_old(state)
        self.provider.carry_out(state, now)
        return results

    def _let_go(self, state: FollowedState, run: Run, lasted_s: float | None) -> None:
        """Release what belongs to a run whose process is over."""
        self.done.pop(run.run_id, None)
        self.given.discard(run.run_id)
        self.durations.over(run.run_id, lasted_s)
        self.remains.over.append(run.run_id)
        self.objects.let_go(state, run)
        if run.job_id not in state.runs_of_job:
            gangs.forget(self.store.job_files, run)
        self.rays.forget(run)
        if self.rays.ended_raylet(run):
            self.memo.vacated_vnodes.add(run.vnode_id)

    def settle(self, state: FollowedState, uptime: int) -> None:
        """Remove files that nothing needs; called after a look at every process."""
        self.store.check_term()  # this state does not have the runs of a newer scheduler
        self.objects.tidy(state, uptime)
        self.runtime.settle(_numbers(state))

    def _launch(self, state: FollowedState, run: Run) -> list[Stimulus]:
        runtime = self.runtime
        try:
            request = request_of(
                self.store, state, self.commands, run,
                log_max_bytes=self.log_max_bytes, cgroups=self.cgroups, again=run.run_id in self.given,
            )  # fmt: skip
            if request is not None:
                self.given.add(run.run_id)
                self.durations.launched(run.run_id)
                runtime.launch(request)
                self.rays.launched(run, request)
        except Unprepared as error:
            return [ProcessOver(run, None, error.problem, error.reason)]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return [ProcessOver(run, None, f"its command cannot be read: {error}")]
        except (OSError, VctlError) as error:
            if not self.trouble.passes(error):
                raise
            self.postponed[run.run_id] = None
        return []

    def _tell(self, state: FollowedState, preemption: Preemption) -> bool:
        """Write the notice of a preempted job and send its signal; returns whether a process got it."""
        winner, victim_id = preemption.winner, preemption.victim_id
        notice = {"preempted_for": winner, "rule": preemption.rule, "ends_at_ns": preemption.ends_ns}
        self.notices.write(preemption.victim, victim_id, notice, None)
        signal = signal_of(state.running.jobs[victim_id]) if preemption.warns else None
        if signal is None:
            return False
        members = sorted(state.members_of(victim_id))
        signalled = [self.runtime.signal_run(run_id, signal["number"]) for run_id in members]
        return any(signalled)

    def _call_in(self, state: FollowedState, lease: Lease, job_id: int) -> None:
        """Tell a job that a lease is called in: write its notice, then signal every process of the job."""
        job = state.running.jobs.get(job_id)
        name = jobs.submission_id(self.store, job_id) if job is None else job.submission_id
        if name is None:
            return
        ends = self.store.clock() + int(state.lease_terms.reclaim_grace_s * 1e9)
        notice = {
            "lease_id": lease.lease_id,
            "amounts": dict(lease.amounts),
            "lender_id": lease.lender_id,
            "task_ids": [
                run.task_id
                for called, runs in revocation.to_end(state, lease.borrower_id, ends)
                for run in runs
                if run.task_id and called.lease_id == lease.lease_id
            ],
            "ends_at_ns": ends,
        }
        self.notices.write(name, job_id, notice, lease.lease_id)
        wish, members = None if job is None else signal_of(job), state.members_of(job_id)
        for run_id in sorted(state.runs_of_job.get(job_id, ())):
            number = wish["number"] if wish and run_id in members else NOTICE_SIGNAL
            self.runtime.signal_run(run_id, number, tree=True)


def _numbers(state: FollowedState) -> dict[str, int]:
    ahead = {run_id: follower.run.supervisor for run_id, follower in state.ahead.runs.items()}
    return {run_id: run.supervisor for run_id, run in state.runs.items()} | ahead
