"""``vctl limit``: what users and clusters may have at a time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from vctl import cli
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, LISTS
from vctl.cli.declare import command, shows
from vctl.cli.output import Answer, listing
from vctl.core.limits import RUNNING_JOBS
from vctl.core.wording import cluster_text
from vctl.operations import limits
from vctl.spec.params import Given, Together

if TYPE_CHECKING:
    from vctl.spec.documents import LimitForm

NONE = "no limits; `vctl limit set --user ana --running-jobs 4` sets one"


def _amount(limit: "LimitForm") -> str:
    if limit["of"] == RUNNING_JOBS:
        return f"{limit['limit']:g} running job{'' if limit['limit'] == 1 else 's'}"
    if limit["per"]:
        return f"{limit['limit']:g} GPU hours a {limit['per']}"
    return f"{cli.words.amount(limit['of'], limit['limit'])} {limit['of']}"


def _whose(limit: "LimitForm") -> str:
    if limit["user"] is not None:
        return "each user" if limit["user"] == "*" else f"user {limit['user']}"
    return f"cluster {cluster_text(limit['cluster_id'] or '')}"


def _answer(items: "Sequence[LimitForm]", sentences: list[str]) -> Answer:
    answer = listing("LimitList", items, len(items), "limit_id", cli.columns.LIMITS, "")
    answer.draw, answer.sentences = None, sentences
    return answer


def _cleared(items: "Sequence[LimitForm]") -> Answer:
    return _answer(
        items,
        [f"{_whose(one)}: no limit of {one['of'].replace('_', ' ')} any more" for one in items]
        or ["nothing to clear"],
    )


@command(
    "limit set",
    "vctl limit set --user ana --running-jobs 4 --cpus 16",
    "vctl limit set --user '*' --gpus 2",
    "vctl limit set --cluster research --memory 64GiB --gpus none",
    "vctl limit set --cluster research --gpu-hours 24 --per day",
    common=CHANGES,
)
def set_(call: Call, options: Annotated[Given, Together.of(limits.set_limits)]) -> Answer:
    """Limit what a user, each user, or a cluster may have at a time.

    Jobs beyond it wait; what runs goes on. A user's own limit takes the place of that of each user.
    """
    items = limits.set_limits(call.backend, **(options or {}))
    return _answer(items, [f"{_whose(one)}: at most {_amount(one)}" for one in items] or ["no limit is left"])


shows(limits.clear, _cleared, "vctl limit clear --user ana", common=CHANGES)


@command("limit list", "vctl limit list", "vctl limit list --filter user=ana", common=LISTS)
def list_(call: Call) -> Answer:
    """List the limits of users and clusters, and what is used of them."""
    from vctl import ops

    items = ops.forms.choose(limits.list_limits(call.backend), call.filters, "LimitForm")
    return listing("LimitList", call.first(items), len(items), "limit_id", cli.columns.LIMITS, NONE)
