"""One function per user intent, on the state. A module is imported when it is first used: ``ops.jobs.stop``."""

from vctl import modules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vctl.ops import (
        admission,
        arrays,
        background,
        backup,
        blockers,
        cluster_views,
        clusters,
        filters,
        forms,
        health,
        job_edits,
        jobs,
        leases,
        logs,
        membership,
        nodes,
        object_views,
        objects,
        overview,
        replay,
        rerun,
        rights,
        scope,
        simulate,
        simulated,
        submitting,
        tasks,
        tree_files,
        views,
        why,
    )

__getattr__ = modules_of(__name__)
