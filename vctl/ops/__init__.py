"""One function per user intent, on the state. A module is imported when it is first used: ``ops.jobs.stop``."""

from vctl import modules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vctl.ops import (
        arrays,
        attaching,
        background,
        backup,
        batches,
        bookings,
        capacity,
        cluster_views,
        clusters,
        dependencies,
        forms,
        gpus,
        health,
        isolation,
        job_edits,
        jobs,
        leases,
        limits,
        logs,
        matching,
        nodes,
        objects,
        overview,
        privacy,
        replay,
        report,
        reruns,
        rights,
        scope,
        simulate,
        simulated,
        submitting,
        tasks,
        tokens,
        tree_files,
        user_clusters,
        views,
        waiting,
        why,
    )

__getattr__ = modules_of(__name__)
