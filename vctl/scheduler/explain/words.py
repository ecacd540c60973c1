"""Puts refusals into words."""

from __future__ import annotations

from vctl.core.wording import cluster_text, counted
from vctl.scheduler.explain.refusal import Refusal
from vctl.scheduler.limits import OF_USER


def verdict_on_limit(refusal: Refusal, cluster_id: str, user: str) -> str:
    """A reached limit as a round tells it: without the number of running jobs, which changes."""
    whose = f" of {user}" if refusal.subject == OF_USER else ""
    return f"at most {counted(refusal.have, 'job')}{whose} may run in {cluster_text(cluster_id)} at a time"


def limit_reached(refusal: Refusal, cluster_id: str, user: str) -> str:
    """A reached limit with the number of jobs that run now."""
    run, each = refusal.asked - 1, refusal.subject == OF_USER
    whose, of = (f" of {user}", " of each user") if each else ("", "")
    runs = f"{counted(run, 'job')}{whose} run{'s' if run == 1 else ''} in {cluster_text(cluster_id)}"
    return f"{runs}, where at most {refusal.have}{of} may run at a time"


def limit_beside(refusal: Refusal) -> str:
    """A limit that those reach for whose end a job waits."""
    of = " of each user" if refusal.subject == OF_USER else ""
    return f"at most {refusal.have}{of} may run at a time"
