"""The smallest single changes that would start a waiting task now; each one tried with the scheduler's own rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from vctl.core.clusters import ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.nodes import Node
from vctl.core.tasks import PendingTask
from vctl.scheduler import whatif_search as search
from vctl.scheduler.tasking import pinned_to
from vctl.scheduler.whatif import MOST_ROUNDS, NOTHING, Change, Holder, Situation, Spent, Trials
from vctl.scheduler.whatif_request import values_below

CANCEL, ANYWHERE = "cancel", "anywhere"


class TaskTrials(Trials):
    """Trials of which the question is whether one task starts. ``others`` are running tasks of the same cluster."""

    def __init__(self, situation: Situation, task: PendingTask, others: Sequence[Holder] = ()) -> None:
        nobody = PendingJob(0, "", task.cluster_id, "", ClusterSpec(), {})
        super().__init__(situation, nobody)
        self.task = task
        self.others = others

    def starts(self, change: Change = NOTHING) -> bool:
        """Whether the task would start now. Raises Spent when too much has been tried already."""
        task = change.task or self.task
        with self.state(change) as ledger:
            tasks = [one for one in self.situation.tasks if one.task_id != task.task_id]
            trial = self.trial(replace(self.situation, tasks=[*tasks, task]), ledger, change)
            gone = change.gone
            try:
                for _ in range(MOST_ROUNDS):
                    plan = trial.decide(preempts=False)
                    if any(start.task.task_id == task.task_id for start in plan.task_starts):
                        return True
                    trial.begin(plan)
                    if plan.task_starts or plan.tasks_deferred:
                        continue
                    if gone is None:
                        return False
                    trial.end(gone)
                    gone = None
                return False
            finally:
                trial.take_back()


def helpful(trials: TaskTrials, templates: Mapping[str, Node]) -> tuple[list[Change], bool]:
    """Changes that start the task, and whether the search was cut short."""
    found: list[Change] = []
    searches = [
        search.undrain(trials), search.maximum(trials), search.borrow_limit(trials), _anywhere(trials),
        _request(trials), search.node(trials, templates), _cancel(trials),
    ]  # fmt: skip
    try:
        for one in searches:
            found.extend(one)
    except Spent:
        return found, True
    return found, False


def _anywhere(trials: TaskTrials) -> Iterator[Change]:
    """A task that names its node, free to run elsewhere."""
    if (named := pinned_to(trials.task)) is not None:
        change = Change(ANYWHERE, named, task=replace(trials.task, strategy=f"{trials.task.strategy}:soft"))
        if trials.starts(change):
            yield change


def _request(trials: TaskTrials) -> Iterator[Change]:
    """The largest smaller number for each number of the request."""
    for name, amount in sorted(trials.task.request.items()):

        def change(number: int, name: str = name, amount: int = amount) -> Change:
            request = {**trials.task.request, name: number}
            task = replace(trials.task, request=request)
            return Change("request", name, amount, number, task=task, where="task")

        for values in values_below(name, amount) if amount else ():
            best = search.largest(values, partial(_starts, trials, change))
            if best is not None:
                yield change(best)
                break


def _starts(trials: TaskTrials, change: Callable[[int], Change], number: int) -> bool:
    return trials.starts(change(number))


def _cancel(trials: TaskTrials) -> Iterator[Change]:
    """The first running task of its cluster whose end is enough."""
    for one in trials.others[: search.MOST_STOPS]:
        change = Change(CANCEL, one.submission_id, gone=one)
        if trials.starts(change):
            yield change
            return
