"""Carries effects out: launches and ends processes, warns and tells jobs. What comes of it is a stimulus."""

from __future__ import annotations

from vctl.core.jobs import Preemption, Run
from vctl.daemon import notices
from vctl.daemon.following import FollowedState
from vctl.daemon.launching import Commands, request_of
from vctl.daemon.looking import Pace
from vctl.daemon.objects import Unprepared
from vctl.daemon.private_rays import PrivateRays
from vctl.daemon.trouble import Trouble
from vctl.engine import effects
from vctl.engine.changes import RunAssigned
from vctl.engine.effects import Done, Launch, Stop
from vctl.engine.stimuli import JobTold, JobWarned, ProcessOver, Stimulus
from vctl.engine.timers import signal_of
from vctl.errors import VctlError
from vctl.runtime.protocol import Runtime
from vctl.store.store import Store


class Carrier:
    """Knows what it has carried out, so that of all that is due it does what is new."""

    def __init__(self, store: Store, trouble: Trouble, pace: Pace, *, log_max_bytes: int) -> None:
        self.store, self.trouble, self.pace = store, trouble, pace
        self.log_max_bytes = log_max_bytes
        self.commands = Commands(store)
        self.rays = PrivateRays(store.home)
        self.done: Done = {}
        self.postponed: set[str] = set()
        """Runs that could not be launched for a reason that passes."""

    def begin(self, state: FollowedState) -> None:
        """A state was loaded: of its runs nobody knows what was done but that they may have been launched."""
        self.done = {run_id: (Launch(run_id),) for run_id in state.runs}
        self.postponed.clear()
        self.rays.begin(state)

    def launched(self, run_id: str) -> None:
        """A run needs no launch of its own: who carries it out has its request."""
        self.done[run_id] = (Launch(run_id),)

    def again(self, state: FollowedState, run_id: str) -> None:
        """A run was not launched after all."""
        self.done.pop(run_id, None)
        state.affected[run_id] = None

    def retry(self, state: FollowedState) -> None:
        """Try once more what could not be done."""
        postponed, self.postponed = self.postponed, set()
        for run_id in postponed:
            self.again(state, run_id)

    def carry_out(self, state: FollowedState, runtime: Runtime, uptime: int) -> list[Stimulus]:
        """Do what is new; what came of it."""
        found: list[Stimulus] = []
        self.rays.follow(state)
        for effect in effects.news(state, self.done):
            match effect:
                case Launch(run_id) if (run := state.runs.get(run_id)) is not None:
                    found += self._launch(state, runtime, run)
                case Stop(run_id, grace_s, ends_ns):
                    if ends_ns is not None:
                        grace_s = max(0.0, (ends_ns - self.store.clock()) / 1e9)
                    runtime.stop(run_id, grace_s=grace_s)
        for warn in effects.warnings(state, uptime):
            runtime.signal_run(
                warn.run_id, warn.signal["number"]
            )  # first the signal: it is sent twice, never not
            found.append(JobWarned(warn.run_id, warn.ends_ns))
        for tell in effects.tells(state):
            found.append(JobTold(tell.preemption, heard=self._tell(state, runtime, tell.preemption)))
        for name in state.untold:
            notices.remove(self.store.home, name)
        state.untold.clear()
        return found

    def _launch(self, state: FollowedState, runtime: Runtime, run: Run) -> list[Stimulus]:
        try:
            if run.supervisor is None:
                if not runtime.adopt(run.run_id):
                    return []  # the version before has started it
                run = self._assigned(state, runtime, run)
            request = request_of(self.store, state, self.commands, run, log_max_bytes=self.log_max_bytes)
            if request is not None:
                self.pace.launched(run.run_id)
                runtime.launch(request)
                self.rays.launched(run, request.argv)
        except Unprepared as error:
            return [ProcessOver(run, None, error.problem, error.reason)]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return [ProcessOver(run, None, f"its command cannot be read: {error}")]
        except (OSError, VctlError) as error:
            if not self.trouble.passes(error):
                raise
            self.postponed.add(run.run_id)
        return []

    def _assigned(self, state: FollowedState, runtime: Runtime, run: Run) -> Run:
        """A run that the version before has assigned to nobody, with its number."""
        with self.store.transaction():
            state.follow(self.store)
            state.emit(self.store, RunAssigned(run.run_id, runtime.assign()))
        return state.runs[run.run_id]

    def _tell(self, state: FollowedState, runtime: Runtime, one: Preemption) -> bool:
        """Write the notice and send the signal of a job; whether one of its processes got it."""
        notice = {"preempted_for": one.winner, "rule": one.rule, "ends_at_ns": one.ends_ns}
        notices.write(self.store.home, one.victim, notice)
        signal = signal_of(state.running.jobs[one.victim_id]) if one.warns else None
        if signal is None:
            return False
        members = sorted(state.members_of(one.victim_id))
        heard = [runtime.signal_run(run_id, signal["number"]) for run_id in members]
        return any(heard)
