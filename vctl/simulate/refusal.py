"""Jobs that a submit would refuse, because they could never run on this machine: reported, not dropped."""

from __future__ import annotations

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.scheduler.feasibility import ever

UNKNOWN_CLUSTER = "UnknownCluster"


class Refusals:
    """Judges each shape once: a machine under simulation does not change."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._known: dict[tuple[str, str], tuple[str, str] | None] = {}

    def of(self, job: PendingJob) -> tuple[str, str] | None:
        """Reason and message, or None for a job that may wait."""
        key = (job.parent_id, job.shape)
        if key not in self._known:
            self._known[key] = self._judge(job)
        return self._known[key]

    def _judge(self, job: PendingJob) -> tuple[str, str] | None:
        if job.parent_id not in self.ledger.clusters:
            return UNKNOWN_CLUSTER, f"there is no cluster {job.parent_id}"
        never = ever(self.ledger, job.parent_id, job.spec, job.entry)
        return None if never is None or never.exhausted else (jb.INFEASIBLE, never.message)
