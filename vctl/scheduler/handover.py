"""The place of a run goes over to the next job of another cluster, as soon as the run is over.

The problem. Where clusters borrow from each other, the end of a job of one cluster is the start of a job of another:
loans go home and out again in between, which takes a wake-up, a search, a commit and a message.

The idea. While the run goes on, the search for that start is tried in the ledger as it will be after the end
(``over``). If it gives the waiting job exactly the place of the run, node by node and core by core, that job is
assigned ahead: its supervisor has everything that a process needs, as the clusters in between are no business of
processes. The turn that records the end makes the same search again, now in earnest (``moved``), and writes the moves
of loans, the growth and the start, in the transaction in which the run ends. Nothing of it is in the tables before.

What must hold, so that the second search finds what the first one found (``vctl/engine/rules/ahead.py``):

- Only the first of all waiting jobs is tried, and one at a time. A lender that would keep its minimum for work of its
  own forbids it.
- No cluster that grows for it has a limit, and its queue has none, so that no other start can use up what is left.
- What a command changes takes it back, or waits until the start is recorded (``vctl/store/ahead.py``); every other
  change of the scheduler takes it back, too.

If the place is gone all the same (its node died, say), the run ends and its job waits again, as for any run that was
assigned ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vctl.core.jobs import Run
from vctl.core.ledger import Ledger
from vctl.core.values import replace
from vctl.scheduler.elasticity import revert_growth
from vctl.scheduler.gang_growth import place_or_grow
from vctl.scheduler.placement import Unplaced
from vctl.scheduler.plan import Start, start_of, unnoted


def moved(ledger: Ledger, start: Start) -> Start | None:
    """A start in its place, with the growth and the returns of loans for it. None: a search finds another place.

    The ledger stays as it was.
    """
    grown = place_or_grow(ledger, start.job.parent_id, start.job.spec, start.job.entry)
    if isinstance(grown, Unplaced):
        return None
    steps, placed = grown
    there = start_of(ledger, start.job, placed, steps)
    for step in reversed(steps):
        revert_growth(ledger, step)
    parents = {vnode.vnode_id: vnode.parent_id for vnode in there.vnodes}
    vnodes = tuple(replace(vnode, parent_id=parents.get(vnode.vnode_id)) for vnode in start.vnodes)
    there = replace(there, cluster=start.cluster)
    return there if there == replace(start, vnodes=vnodes, growth=there.growth) else None


@contextmanager
def over(ledger: Ledger, run: Run) -> Iterator[None]:
    """Inside, the ledger is as it will be when the job of a run is over. Nothing counts as newly free."""
    cluster = ledger.clusters[run.cluster_id]
    vnodes = [ledger.vnodes[vnode_id] for vnode_id in ledger.members[run.cluster_id]]
    with unnoted(ledger):
        ledger.discharge(run.run_id)
        ledger.remove_cluster(run.cluster_id)
        try:
            yield
        finally:
            ledger.put_cluster(cluster)
            ledger.assign_all(vnodes)
            ledger.charge(run.run_id, run.vnode_id, run.allocation)
