"""What readers should know when no scheduler is at work. Apart, because every reading command asks for it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vctl.store.store import Store


def scheduler_notice(store: "Store") -> str | None:
    """How old the scheduler's last sign of life is; None while it is fresh."""
    from vctl.cli.words import seconds_between
    from vctl.ops.views import scheduler

    state = scheduler(store)
    if state["running"]:
        return None
    age_s = seconds_between(state["last_beat"], None)
    if age_s is None:
        return "Nothing schedules: no scheduler has run here yet. `vctl daemon` starts one."
    return f"Nothing schedules: the last beat of a scheduler was {age_s:.0f} s ago. `vctl daemon` starts one."
