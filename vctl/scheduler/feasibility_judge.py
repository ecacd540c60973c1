"""Judges which jobs of a queue can never run, once per shape and capacity of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.wording import cluster_text
from vctl.scheduler.feasibility import emptied, ever, idle_parts, with_machines

Larger = tuple[Ledger, Callable[[], Ledger]]

MOST_JUDGED = 10_000
"""The number of shapes for which ``why_never`` is remembered."""


class FeasibilityJudge:
    """Judges why jobs of one parent cluster can never run, and remembers the answers."""

    def __init__(self, parent_id: str) -> None:
        self.parent_id = parent_id
        self.never: dict[str, tuple[object, str | None]] = {}
        """Shape -> (capacity of the parent, the reason or None). The answer holds only for that capacity."""
        self._seen: tuple[object, object] | None = None
        """Versions of the parent and the clusters above it, and the capacity for them."""
        self._bare: tuple[object, Ledger] | None = None
        self._larger: tuple[object, Ledger, Larger] | None = None

    def why_never(self, ledger: Ledger, job: PendingJob) -> str | None:
        """Why a job can never run, even on empty nodes and all machines of the provider; None: it may."""
        capacity = self.capacity(ledger)
        known = self.never.get(job.shape)
        if known is None or known[0] != capacity:
            if len(self.never) >= MOST_JUDGED:
                self.never.clear()
            bare: Callable[[], Ledger] = partial(self._emptied, ledger, capacity)
            never = ever(ledger, self.parent_id, job.spec, job.entry, bare=bare)
            if never is not None and ledger.templates:
                larger, bare = self._with_machines(ledger, capacity)
                never = ever(larger, self.parent_id, job.spec, job.entry, bare=bare)
            known = self.never[job.shape] = (
                capacity,
                None
                if never is None
                else f"exceeds the capacity of {cluster_text(self.parent_id)}: {never.capacity}",
            )
        return known[1]

    def capacity(self, ledger: Ledger) -> object:
        """A value that changes whenever the feasibility of jobs may change; not with borrowed capacity."""
        return self._of_tree(ledger), ledger.templates

    def _of_tree(self, ledger: Ledger) -> object:
        parent = ledger.clusters[self.parent_id]
        if not parent.spec.flexible:
            return ledger.capacity(self.parent_id)
        chain = ledger.upward(self.parent_id)
        rows = [(cluster, ledger.versions.get(cluster.cluster_id, 0)) for cluster in chain]
        versions = (ledger.capacity(self.parent_id), *rows)
        if self._seen is None or self._seen[0] != versions:
            limits = [(cluster.spec, cluster.borrow_limit) for cluster in chain]
            self._seen = (versions, (ledger.versions.get(PRIMARY, 0), limits, idle_parts(ledger, chain)))
        return self._seen[1]

    def _emptied(self, ledger: Ledger, capacity: object) -> Ledger:
        """The parent and the clusters above it if nothing ran, made once per capacity."""
        if self._bare is None or self._bare[0] != capacity:
            self._bare = (capacity, emptied(ledger, self.parent_id))
        return self._bare[1]

    def _with_machines(self, ledger: Ledger, capacity: object) -> Larger:
        """The ledger with the machines of its provider, and it without work; once per capacity."""
        if self._larger is None or self._larger[0] != capacity or self._larger[1] is not ledger:
            larger = with_machines(ledger)
            bare = cache(partial(emptied, larger, self.parent_id))
            self._larger = (capacity, ledger, (larger, bare))
        return self._larger[2]
