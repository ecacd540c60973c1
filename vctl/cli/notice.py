"""What readers should know when no scheduler is at work. Apart, because every reading command asks for it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vctl.store.store import Store


def scheduler_notice(store: "Store") -> str | None:
    """How old the scheduler's last sign of life is; None while it is fresh."""
    from vctl.cli.words import seconds_between
    from vctl.ops.views import scheduler
    from vctl.spec.quantities import format_duration

    state = scheduler(store)
    if state["running"] or state["starting"]:
        return None
    age_s = seconds_between(state["last_beat"], None)
    if age_s is None:
        return "No scheduler is running. Start one with `vctl daemon`."
    ended = "just now" if age_s < 1 else f"{format_duration(int(age_s))} ago"
    return f"No scheduler is running (last seen {ended}). Start one with `vctl daemon`."
