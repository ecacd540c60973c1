"""What readers should know when no scheduler is at work. Apart, because every reading command asks for it."""

from typing import TYPE_CHECKING

from vctl.store.database import command_name
from vctl.store.store import BEAT_EVERY_S

if TYPE_CHECKING:
    from vctl.store.store import Store

STALE_S = 3 * BEAT_EVERY_S


def scheduler_notice(store: "Store") -> str | None:
    """How old the scheduler's last sign of life is; None while it is fresh."""
    beat = store.read_beat()
    if beat is None:
        return "Nothing schedules: no scheduler has run here yet. `vctl daemon` starts one."
    age_s = max(0.0, (store.clock() - int(beat["last_beat_ns"])) / 1e9)
    if age_s <= STALE_S and "vctl" in command_name(int(beat["pid"])):
        return None
    return f"Nothing schedules: the last beat of a scheduler was {age_s:.0f} s ago. `vctl daemon` starts one."
