"""The numbers in a job's request, and the same request with one of them smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from vctl.core.clusters import Group
from vctl.core.jobs import PendingJob
from vctl.core.resources import MEMORY, OBJECT_STORE_MEMORY, SCALE, Amounts
from vctl.scheduler.whatif import Change

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Series:
    """One number of a request: ``make`` puts another value in its place, ``values`` are those to try, coarse first."""

    subject: str
    where: str
    old: int
    values: tuple[range, ...]
    make: Callable[[int], PendingJob]

    def change(self, value: int) -> Change:
        """The request with this number."""
        made = self.make(value)
        shape = f"{made.shape};{self.where};{self.subject}:{value}"  # judged by itself
        return Change(
            "request", self.subject, self.old, value, job=replace(made, shape=shape), where=self.where
        )


def smaller_requests(job: PendingJob) -> Iterator[Series]:
    """Every number that could be smaller. A fixed node keeps at least one resource, a group one node."""
    spec = job.spec
    for name, amount in _numbers(job.entry):
        yield Series(
            name, "entry", amount, values_below(name, amount, least=0), partial(_less_entry, job, name)
        )
    if job.shares_parent:
        return
    for name, amount in _numbers(spec.flexible_min) if spec.flexible else ():
        yield Series(
            name, "minimum", amount, values_below(name, amount, least=0), partial(_less_minimum, job, name)
        )
    for number, group in enumerate(spec.groups):
        yield from _of_group(job, number, group)
    for template, count in sorted(spec.replica_sets.items()):
        rest = bool(spec.groups) or sum(spec.replica_sets.values()) > count
        if count:
            values = (range(0 if rest else 1, count),)
            yield Series(template, "whole", count, values, partial(_fewer_whole, job, template))


def _less_entry(job: PendingJob, name: str, amount: int) -> PendingJob:
    return replace(job, entry=_with(job.entry, name, amount))


def _less_minimum(job: PendingJob, name: str, amount: int) -> PendingJob:
    return replace(job, spec=replace(job.spec, flexible_min=_with(job.spec.flexible_min, name, amount)))


def _fewer_whole(job: PendingJob, template: str, count: int) -> PendingJob:
    return replace(job, spec=replace(job.spec, replica_sets={**job.spec.replica_sets, template: count}))


def _of_group(job: PendingJob, number: int, group: Group) -> Iterator[Series]:
    """Each different amount of each resource, wherever it stands in the group; then the number of its nodes."""
    amounts = {(name, amount) for node in group.nodes for name, amount in _numbers(node.resources)}
    for name, amount in sorted(amounts):
        here = [node for node in group.nodes if node.resources.get(name) == amount]
        alone = any(sum(a > 0 for a in node.resources.values()) == 1 for node in here)
        make = partial(_less_in_group, job, number, name, amount)
        yield Series(name, f"group {number}", amount, values_below(name, amount, least=int(alone)), make)
    count = len(group.nodes)
    if count > 1:
        make = partial(_fewer_nodes, job, number)
        yield Series("nodes", f"nodes of group {number}", count, (range(1, count),), make)


def _less_in_group(job: PendingJob, number: int, name: str, old: int, amount: int) -> PendingJob:
    group = job.spec.groups[number]
    nodes = tuple(
        replace(node, resources=_with(node.resources, name, amount))
        if node.resources.get(name) == old
        else node
        for node in group.nodes
    )
    return _with_group(job, number, replace(group, nodes=nodes))


def _fewer_nodes(job: PendingJob, number: int, count: int) -> PendingJob:
    group = job.spec.groups[number]
    return _with_group(job, number, replace(group, nodes=group.nodes[:count]))


def values_below(name: str, amount: int, *, least: int = 0) -> tuple[range, ...]:
    """Whole units (MiB of memory) first; if none will do, fractions, and last nothing."""
    if name in (MEMORY, OBJECT_STORE_MEMORY):
        coarse = range(SCALE * MIB, amount, SCALE * MIB)
        fine = range(SCALE, min(amount, SCALE * MIB), SCALE)
    else:
        coarse = range(SCALE, amount, SCALE)
        fine = range(1, min(amount, SCALE))
    return tuple(r for r in (coarse, fine, range(0 if least else 1)) if r)


def _numbers(amounts: Amounts) -> list[tuple[str, int]]:
    return [(name, amount) for name, amount in sorted(amounts.items()) if amount]


def _with(amounts: Amounts, name: str, amount: int) -> dict[str, int]:
    rest = {key: value for key, value in amounts.items() if key != name}
    return {**rest, name: amount} if amount else rest


def _with_group(job: PendingJob, number: int, group: Group) -> PendingJob:
    groups = (*job.spec.groups[:number], group, *job.spec.groups[number + 1 :])
    return replace(job, spec=replace(job.spec, groups=groups))
