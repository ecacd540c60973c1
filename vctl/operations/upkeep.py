"""Verbs that find and repair faults of the state, and that delete old jobs."""

from typing import TYPE_CHECKING, Annotated

from vctl import ops
from vctl.operations.declare import Context, operation
from vctl.spec.params import LONGEST_S, Opt

if TYPE_CHECKING:
    from vctl.spec.documents import Pruned
    from vctl.spec.reports import Diagnosis, ReplayForm


@operation("prune", "POST /prune", right="service", service="the history of all jobs")
def prune(
    context: Context,
    older_than_s: Annotated[
        float,
        Opt(
            "--older-than",
            metavar="TIME",
            reads="duration",
            minimum=0,
            maximum=LONGEST_S,
            help="Delete jobs that ended longer ago than this.",
        ),
    ],
    *,
    dry_run: Annotated[bool, Opt("--dry-run", help="Only show how many jobs would be deleted.")] = False,
) -> "Pruned":
    """Delete jobs that ended long ago, files moved aside, and unused users' clusters."""
    return ops.jobs.prune(context.store, older_than_s, dry_run=dry_run)


@operation("replay", "POST /replay", right="inspect")
def replay(
    context: Context, *, dry_run: Annotated[bool, Opt("--dry-run", help="Only show the repairs.")] = False
) -> "ReplayForm":
    """Repair the state from its tables, as the scheduler does at every start."""
    return ops.replay.replay(context.store, dry_run=dry_run)


Prove = Annotated[bool, Opt("--prove", help="Check every rule again from the raw tables.")]


@operation("doctor", "GET /doctor", right="inspect")
def doctor(context: Context, *, prove: Prove = False) -> "Diagnosis":
    """Check the state and this machine."""
    return ops.health.doctor(context.store, prove=prove, tried=ops.isolation.notes())


@operation("repair", "POST /doctor/repair?", right="inspect")
def repair(context: Context, *, prove: Prove = False) -> "Diagnosis":
    """Check the state and this machine after the repairs that are safe."""
    return ops.health.doctor(context.store, prove=prove, repair=True, tried=ops.isolation.notes())
