"""The recorded history of a state directory as a workload, and its cluster as the machine. Changes nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from vctl.core.clusters import JOB, PRIMARY, SUB
from vctl.core.ledger import Ledger
from vctl.simulate.borrowing import Loans
from vctl.simulate.workload import Arrival, Workload, in_order
from vctl.store import clusters, job_views, leases, rows, settings
from vctl.store.database import database_path
from vctl.store.store import Store


def load(home: Path, since_ns: int | None, until_ns: int | None) -> tuple[Workload, Ledger]:
    """The jobs of a state directory, and its cluster."""
    with Store.open(home, create=False) as store, store.snapshot():
        return workload(store, since_ns, until_ns), machine(store)


def queue_now(home: Path) -> dict[str, object]:
    """How the primary of a state directory is served; nothing where there is none."""
    if not database_path(home).exists():
        return {}
    with Store.open(home, create=False) as store:
        queue = settings.queue_of(store, PRIMARY)
    return {one.name: getattr(queue, one.name) for one in fields(queue)}


def workload(store: Store, since_ns: int | None, until_ns: int | None) -> Workload:
    """Jobs as they were asked for, each with the time that it really ran."""
    arrivals: list[Arrival] = []
    inside = 0
    for row in job_views.ended_rows(store, since_ns, until_ns):
        job = rows.pending(row)
        if "##" in job.parent_id:
            inside += 1
            continue
        arrivals.append(Arrival(replace(job, held=False), max(1, row["ended_at"] - row["started_at"])))
    notes = [
        f"{count} jobs are {status} and have not run to an end"
        for status, count in job_views.never_ran(store, since_ns, until_ns).items()
    ]
    if inside:
        notes.append(f"{inside} jobs ran inside the clusters of others, which are simulated as a whole")
    return Workload("the recorded history", in_order(arrivals), tuple(notes))


def machine(store: Store) -> Ledger:
    """Nodes and named clusters as they are now, with nothing running and nothing borrowed."""
    ledger = clusters.load_ledger(store)
    for run_id in list(ledger.charges):
        ledger.discharge(run_id)
    own = [one.cluster_id for one in ledger.clusters.values() if one.kind in (JOB, SUB)]
    for cluster_id in sorted(own, key=lambda one: one.count("##"), reverse=True):
        ledger.remove_cluster(cluster_id)
    loans = Loans(ledger)
    found = [rows.lease(row) for row in leases.all_rows(store)]
    loans.leases = {lease.lease_id: lease for lease in found if lease.vnode_id in ledger.vnodes}
    loans.settle()
    ledger.grown.clear()
    return ledger
