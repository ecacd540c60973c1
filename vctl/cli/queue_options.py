"""Options of ``vctl vc create`` and ``update`` that say how a cluster's queue is served."""

from typing import Annotated

from vctl.cli.declare import Opt

ORDERS = ("fifo", "priority", "fair")
DISCIPLINES = ("strict", "best-effort", "backfill")
NONE = "none"

Order = Annotated[
    str | None, Opt("--queue-order", choices=ORDERS, help="Whose turn it is (default: priority).")
]
Discipline = Annotated[
    str | None,
    Opt(
        "--queue-discipline",
        choices=DISCIPLINES,
        help="Whether later jobs may pass one that does not fit (default: best-effort).",
    ),
]
Weight = Annotated[str | None, Opt("--weight", metavar="N", help="Its part among siblings, where fair (1).")]
Ageing = Annotated[
    str | None,
    Opt("--ageing", metavar="DURATION", help="Waiting so long counts as one step of priority; none: never."),
]
HalfLife = Annotated[
    str | None,
    Opt("--half-life", metavar="DURATION", help="Fair: past use counts half after that; none: not at all."),
]
Starvation = Annotated[
    str | None,
    Opt("--starvation-after", metavar="DURATION", help="Then room is kept for the head (default: 10m)."),
]
Depth = Annotated[
    str | None, Opt("--backfill-depth", metavar="N", help="Backfill: heads with a reserved start (1).")
]
MostJobs = Annotated[
    str | None, Opt("--max-running-jobs", metavar="N", help="Jobs that may run in it at a time; none: any.")
]
MostPerUser = Annotated[
    str | None, Opt("--max-running-per-user", metavar="N", help="The same for each user; none: any.")
]
NAMES = (
    "order", "discipline", "weight", "ageing_s", "half_life_s", "starvation_after_s", "backfill_depth",
    "max_running_jobs", "max_running_per_user",
)  # fmt: skip


def queue_of(*values: str | None) -> dict[str, object] | None:
    """The given settings by their documented names, in the order of ``NAMES``; None when there are none."""
    given = {name: value for name, value in zip(NAMES, values, strict=True) if value is not None}
    return {name: _read(name, value) for name, value in given.items()} or None


def _read(name: str, value: str) -> object:
    if value == NONE:
        return None
    counts = ("weight", "backfill_depth", "max_running_jobs", "max_running_per_user")
    return int(value) if name in counts and value.isascii() and value.isdigit() and len(value) < 19 else value
