"""The options of ``vctl vc create`` and ``vctl vc update`` for the queue settings of a cluster."""

from collections.abc import Sequence
from typing import Annotated

from vctl.spec.params import Given, Opt, Together

ORDERS = ("fifo", "priority", "fair", "longest", "shortest")
DISCIPLINES = ("strict", "best-effort", "backfill")
PREEMPTIONS = ("off", "requeue", "stop")
NONE = "none"


def _option(name: str, help: str, metavar: str | None = None, choices: Sequence[str] = ()) -> object:
    return Annotated[str | None, Opt(name, metavar=metavar, choices=choices, help=help)]


OPTIONS = Together(
    order=_option("--queue-order", "Order of the queue (default: priority).", choices=ORDERS),
    discipline=_option(
        "--queue-discipline", "Whether later jobs may pass a job that does not fit (default: best-effort).",
        choices=DISCIPLINES,
    ),
    weight=_option("--weight", "Weight among sibling clusters, for order fair (1).", "N"),
    ageing_s=_option("--ageing", "Waiting time that raises the priority by one; none: no ageing.", "DURATION"),
    half_life_s=_option(
        "--half-life", "Order fair: half-life of past use; none: past use does not count.", "DURATION"
    ),
    starvation_after_s=_option(
        "--starvation-after", "Waiting time after which resources are reserved for the head (default: 10m).", "DURATION"
    ),
    backfill_depth=_option("--backfill-depth", "Backfill: number of head jobs with a reserved start (1).", "N"),
    max_running_jobs=_option("--max-running-jobs", "Maximum of running jobs in the cluster; none: no limit.", "N"),
    max_running_per_user=_option(
        "--max-running-per-user", "Maximum of running jobs for each user; none: no limit.", "N"
    ),
    preemption=_option(
        "--preemption", "Whether jobs preempt running jobs of lower priority: requeue or stop these (default: off).",
        choices=PREEMPTIONS,
    ),
    min_runtime_s=_option("--min-runtime", "Run time before which a job is not preempted (0).", "DURATION"),
    preemption_grace_s=_option(
        "--preemption-grace", "Time between the notice of preemption and the end of the job (30s).", "DURATION"
    ),
)  # fmt: skip
"""The options, by the documented names of the settings."""


def queue_of(given: Given) -> dict[str, object] | None:
    """The queue settings from the given options; None without any. Errors name the option."""
    if not given:
        return None
    from vctl.spec.queue_settings import READERS

    settings = {name: _read(name, value) for name, value in given.items()}
    for param in OPTIONS.params:
        if settings.get(param.name) is not None:
            READERS[param.name][1](settings[param.name], param.spelled)
    return settings


def _read(name: str, value: str) -> object:
    if value == NONE:
        return None
    counts = ("weight", "backfill_depth", "max_running_jobs", "max_running_per_user")
    return int(value) if name in counts and value.isascii() and value.isdigit() and len(value) < 19 else value
