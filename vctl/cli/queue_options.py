"""Options of ``vctl vc create`` and ``update`` that say how a cluster's queue is served."""

from typing import Annotated

from vctl.operations.declare import Given, Opt, Together

ORDERS = ("fifo", "priority", "fair", "longest", "shortest", "makespan")
DISCIPLINES = ("strict", "best-effort", "backfill")
PREEMPTIONS = ("off", "requeue", "stop")
NONE = "none"

Order = Annotated[
    str | None, Opt("--queue-order", choices=ORDERS, help="Order of the queue (default: priority).")
]
Discipline = Annotated[
    str | None,
    Opt(
        "--queue-discipline",
        choices=DISCIPLINES,
        help="Whether later jobs may pass a job that does not fit (default: best-effort).",
    ),
]
Weight = Annotated[
    str | None, Opt("--weight", metavar="N", help="Weight among sibling clusters, for order fair (1).")
]
Ageing = Annotated[
    str | None,
    Opt(
        "--ageing", metavar="DURATION", help="Waiting time that raises the priority by one; none: no ageing."
    ),
]
HalfLife = Annotated[
    str | None,
    Opt(
        "--half-life",
        metavar="DURATION",
        help="Order fair: half-life of past use; none: past use does not count.",
    ),
]
Starvation = Annotated[
    str | None,
    Opt(
        "--starvation-after",
        metavar="DURATION",
        help="Waiting time after which resources are reserved for the head (default: 10m).",
    ),
]
Depth = Annotated[
    str | None,
    Opt("--backfill-depth", metavar="N", help="Backfill: number of head jobs with a reserved start (1)."),
]
MostJobs = Annotated[
    str | None,
    Opt("--max-running-jobs", metavar="N", help="Maximum of running jobs in the cluster; none: no limit."),
]
MostPerUser = Annotated[
    str | None,
    Opt("--max-running-per-user", metavar="N", help="Maximum of running jobs for each user; none: no limit."),
]
Preemption = Annotated[
    str | None,
    Opt(
        "--preemption",
        choices=PREEMPTIONS,
        help="Whether jobs preempt running jobs of lower priority: requeue or stop these (default: off).",
    ),
]
MinRuntime = Annotated[
    str | None,
    Opt("--min-runtime", metavar="DURATION", help="Run time before which a job is not preempted (0)."),
]
Grace = Annotated[
    str | None,
    Opt(
        "--preemption-grace",
        metavar="DURATION",
        help="Time between the notice of preemption and the end of the job (30s).",
    ),
]
OPTIONS = Together(
    order=Order, discipline=Discipline, weight=Weight, ageing_s=Ageing, half_life_s=HalfLife,
    starvation_after_s=Starvation, backfill_depth=Depth, max_running_jobs=MostJobs, max_running_per_user=MostPerUser,
    preemption=Preemption, min_runtime_s=MinRuntime, preemption_grace_s=Grace,
)  # fmt: skip
"""By the documented names of the settings."""


def queue_of(given: Given) -> dict[str, object] | None:
    """The settings that were given; None when there are none."""
    return {name: _read(name, value) for name, value in (given or {}).items()} or None


def _read(name: str, value: str) -> object:
    if value == NONE:
        return None
    counts = ("weight", "backfill_depth", "max_running_jobs", "max_running_per_user")
    return int(value) if name in counts and value.isascii() and value.isdigit() and len(value) < 19 else value
