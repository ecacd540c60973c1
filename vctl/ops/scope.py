"""What belongs to a cluster: itself, what is below it, and what once was. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vctl.core.clusters import PRIMARY
from vctl.spec.ids import JOB_MARK


def below(top: str, clusters: Iterable[Mapping[str, Any]]) -> Callable[[str], bool]:
    """Whether a cluster is ``top`` or below it; ``clusters`` are the forms of those there are, parents first."""
    if top == PRIMARY:
        return lambda _: True
    known = {top}
    for one in clusters:
        if one["parent_id"] in known:
            known.add(one["cluster_id"])
    # those of jobs carry the id of what they are in, also when they are gone
    return lambda cluster_id: any(cluster_id == one or cluster_id.startswith(one + JOB_MARK) for one in known)
