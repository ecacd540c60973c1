"""Faults planted into the code under test, to show that the simulation finds such faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vctl.core.values import replace
from vctl.daemon import carrying, commit, following, observing
from vctl.daemon.observing import Observer
from vctl.daemon.scheduler import Scheduler
from vctl.daemon.turn import Turn
from vctl.engine import changes as ch
from vctl.runtime.local import LocalRuntime
from vctl.scheduler.plan import Trial
from vctl.store import ahead, write
from vctl.store.store import Store

Plant = Callable[[pytest.MonkeyPatch], None]


def double_launch(patch: pytest.MonkeyPatch) -> None:
    """A launch that is repeated goes to another supervisor."""
    original = carrying.Carrier._launch
    launched: set[str] = set()

    def launch(self: Any, state: Any, run: Any) -> Any:
        if run.run_id in launched:
            run = replace(run, supervisor=self.runtime.assign())
        launched.add(run.run_id)
        return original(self, state, run)

    patch.setattr(carrying.Carrier, "_launch", launch)


def lost_exit(patch: pytest.MonkeyPatch) -> None:
    """The exit code of a run that ended before its start was written is lost."""
    original = observing.observe_run

    def observe_run(runtime: Any, run: Any) -> Any:
        found = original(runtime, run)
        return (
            replace(found, exit=None)
            if isinstance(found, observing.ProcessOver) and run.pid is None
            else found
        )

    patch.setattr("vctl.daemon.observing.observe_run", observe_run)


def leaked_lease(patch: pytest.MonkeyPatch) -> None:
    """A lease that is given back stays in the tables."""
    original = write.WRITERS[ch.LeaseReturned]
    cuts = lambda db, returned: original(db, [one for one in returned if one.lease.amounts])  # noqa: E731
    patch.setitem(write.WRITERS, ch.LeaseReturned, cuts)


def partial_gang(patch: pytest.MonkeyPatch) -> None:
    """The last member of a gang is not started."""
    original = commit.starts

    def starts(*of: Any) -> Iterator[Any]:
        for change in original(*of):
            is_gang = isinstance(change, ch.JobStarted) and len(change.runs) > 1
            yield replace(change, runs=change.runs[:-1]) if is_gang else change

    patch.setattr(commit, "starts", starts)


def unfenced_daemon(patch: pytest.MonkeyPatch) -> None:
    """A scheduler writes after another one has taken over."""
    original = Store._read_head

    def read_head(self: Store) -> Any:
        epoch, self.epoch = self.epoch, None
        try:
            return original(self)
        finally:
            self.epoch = epoch

    patch.setattr(Store, "_read_head", read_head)


def skipped_event(patch: pytest.MonkeyPatch) -> None:
    """Of several entries of the journal, the last but one is not applied."""
    original = following.feed.journal

    def journal(store: Store, after: int) -> Any:
        found = original(store, after)
        return [*found[:-2], found[-1]] if len(found) > 2 else found

    patch.setattr(
        following,
        "feed",
        SimpleNamespace(journal=journal, last=following.feed.last, base=following.feed.base),
    )


def wrong_take_back(patch: pytest.MonkeyPatch) -> None:
    """Of starts that were only tried, the first stays taken."""
    original = Trial.take_back

    def take_back(self: Trial) -> None:
        if self.starts:
            self.starts.pop(next(iter(self.starts)))
        original(self)

    patch.setattr(Trial, "take_back", take_back)


def effect_before_commit(patch: pytest.MonkeyPatch) -> None:
    """After an end, the next run is launched inside of the transaction."""
    original = Turn._decide

    def decide(self: Any, state: Any, stimuli: Any, tables: Any, now: Any, plan: Any) -> Any:
        with self.store.together():
            found = original(self, state, stimuli, tables, now, plan)
            self._found += self.carrier.carry_out(state, now, stimuli)
        return found

    patch.setattr(Turn, "_decide", decide)


def forgotten_write(patch: pytest.MonkeyPatch) -> None:
    """That a run is being stopped is not written."""
    patch.setitem(write.WRITERS, ch.RunStopping, lambda db, changes: None)


def no_adoption(patch: pytest.MonkeyPatch) -> None:
    """A new scheduler takes what was assigned for launched, and does not look."""
    original = Observer._processes
    patch.setattr(
        Observer, "_processes", lambda self, *given, relaunch: original(self, *given, relaunch=False)
    )


def kept_state(patch: pytest.MonkeyPatch) -> None:
    """After a commit that failed, the scheduler goes on with what it had applied."""
    original = Scheduler.turn

    def turn(self: Scheduler) -> None:
        before = self.state
        original(self)
        if self.state is None:
            self.state = before

    patch.setattr(Scheduler, "turn", turn)


def lost_offer(patch: pytest.MonkeyPatch) -> None:
    """Who withdraws an offer leaves no trace, and may be refused or killed after that."""
    original = ahead.withdraw

    def withdraw(home: Path, run_id: str) -> bool:
        is_back = original(home, run_id)
        Path(home, ahead.FOLDER, run_id + ahead._BACK).unlink(missing_ok=True)
        return is_back

    patch.setattr(ahead, "withdraw", withdraw)


def wrong_stop(patch: pytest.MonkeyPatch) -> None:
    """A stop that nobody answers is carried out on another run of the same machine."""
    original = LocalRuntime.stop

    def stop(self: Any, run_id: str, **how: Any) -> None:
        original(self, max(self._running, default=run_id), **how)

    patch.setattr(LocalRuntime, "stop", stop)


PLANTED: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        double_launch, lost_exit, leaked_lease, partial_gang, unfenced_daemon, skipped_event, wrong_take_back,
        effect_before_commit, forgotten_write, no_adoption, kept_state,
        lost_offer, wrong_stop,
    )
}  # fmt: skip
