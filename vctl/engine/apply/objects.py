"""What objects are after a change of theirs."""

from __future__ import annotations

from vctl.core.tasks import Maker
from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.ObjectCreated)
def _created(state: SchedulerState, change: ch.ObjectCreated) -> None:
    state.tasks.put_copy(
        change.job_id, change.name, change.node_id, change.size, change.task_id, change.cluster_id
    )
    if change.task_id is None:
        state.tasks.promise(change.job_id, (change.name,), Maker(None))


@applies(ch.ObjectLost)
def _lost(state: SchedulerState, change: ch.ObjectLost) -> None:
    state.tasks.lose_copy(change.job_id, change.name, change.node_id)


@applies(ch.ObjectsDropped)
def _dropped(state: SchedulerState, change: ch.ObjectsDropped) -> None:
    state.tasks.drop_objects(change.job_id)
