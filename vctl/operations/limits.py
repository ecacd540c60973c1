"""The verbs of ``vctl limit``: what users and clusters may have at a time."""

from typing import TYPE_CHECKING, Annotated

from vctl import ops, spec
from vctl.core.limits import GPU_HOURS, PERIODS, RUNNING_JOBS
from vctl.core.resources import CPU, GPU, MEMORY
from vctl.errors import param
from vctl.operations.declare import Context, operation
from vctl.spec.params import NOT_GIVEN, NOTHING, Opt

if TYPE_CHECKING:
    from vctl.spec.documents import LimitForm

Amount = float | str | None
User = Annotated[
    str | None, Opt("--user", metavar="NAME", longest=256, help="Of this user; '*': of each user.")
]
Cluster = Annotated[
    str | None,
    Opt("-c", "--cluster", metavar="ID", complete="clusters", help="Of this cluster and all below it."),
]
RunningJobs = Annotated[
    int | None,
    Opt(
        "--running-jobs", metavar="N", reads="whole number", minimum=0, maximum=1_000_000_000,
        help="Jobs that run at a time; none: no limit.",
    ),
]  # fmt: skip
Cpus = Annotated[
    Amount, Opt("--cpus", metavar="N", reads="text", help="CPUs that they hold; none: no limit.")
]
Gpus = Annotated[
    Amount, Opt("--gpus", metavar="N", reads="text", help="GPUs that they hold; none: no limit.")
]
Memory = Annotated[
    Amount,
    Opt(
        "--memory", metavar="SIZE", reads="text", help="Memory that they hold, such as 64GiB; none: no limit."
    ),
]


@operation("limit set", "POST /limits", right="administer", items="LimitList")
def set_limits(
    context: Context,
    *,
    user: User = None,
    cluster: Cluster = None,
    running_jobs: RunningJobs = NOT_GIVEN,
    cpus: Cpus = NOT_GIVEN,
    gpus: Gpus = NOT_GIVEN,
    memory: Memory = NOT_GIVEN,
    gpu_hours: Annotated[
        Amount,
        Opt(
            "--gpu-hours", metavar="N", reads="text", help="GPU hours in each period (--per); none: no limit."
        ),
    ] = NOT_GIVEN,
    per: Annotated[
        str | None,
        Opt("--per", choices=PERIODS, help="The period of --gpu-hours, in UTC; a week begins on Monday."),
    ] = None,
) -> "list[LimitForm]":
    """Limit what a user, each user, or a cluster may have at a time.

    Jobs beyond it wait; what runs goes on. A user's own limit takes the place of that of each user.
    """
    given = {RUNNING_JOBS: running_jobs, CPU: cpus, GPU: gpus, MEMORY: memory, GPU_HOURS: gpu_hours}
    amounts: dict[str, int | None] = {
        name: None if amount is None or amount in NOTHING else _amount(name, amount)
        for name, amount in given.items()
        if amount is not NOT_GIVEN
    }
    return ops.limits.set_limits(context.store, user=user, cluster=cluster, amounts=amounts, period=per or "")


def _amount(name: str, amount: float | str) -> int:
    if name == RUNNING_JOBS:
        return int(amount)
    if name == MEMORY:
        return spec.quantities.parse_memory(amount, param("memory"))
    names = {CPU: "cpus", GPU: "gpus", GPU_HOURS: "gpu_hours"}
    return spec.quantities.parse_amount(amount, param(names[name]))


@operation("limit list", "GET /limits", right="see", items="LimitList")
def list_limits(context: Context) -> "list[LimitForm]":
    """List the limits of users and clusters, and what is used of them."""
    return ops.limits.list_limits(context.store)


@operation("limit clear", "DELETE /limits", right="administer", items="LimitList")
def clear(
    context: Context,
    *,
    user: User = None,
    cluster: Cluster = None,
    every: Annotated[bool, Opt("--all", help="Of everybody.")] = False,
) -> "list[LimitForm]":
    """Take away all limits of a user, or of a cluster, or of everybody."""
    return ops.limits.clear(context.store, user=user, cluster=cluster, every=every)
