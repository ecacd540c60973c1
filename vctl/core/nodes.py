"""Physical nodes and their states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vctl.core.labels import Labels
from vctl.core.resources import DEFAULT_UNITS, SCALE, Allocation, Amounts, whole_node
from vctl.core.values import field, replace, value

ALIVE, DRAINING, DRAINED, DEAD, RELEASING = "ALIVE", "DRAINING", "DRAINED", "DEAD", "RELEASING"
"""The states of a node. A machine that restarts becomes a new node with another id.

RELEASING: an empty machine of a node provider, which keeps its row until the provider has ended it.
"""
LOST = (DEAD, RELEASING)
"""States of nodes that no longer count as capacity."""
LOCAL, SIMULATED, RAY = "local", "simulated", "ray"


FOREIGN, LEFT = "foreign", "left"
"""Why an instance is fenced: processes that nobody booked, or processes of a run that is over."""


@value(frozen=True, slots=True)
class Fence:
    """No new work gets an instance of a unit resource, because these processes have it open.

    ``memory``: their bytes there. ``owner``: the user of the first of them. ``of``: what left them behind.
    """

    name: str
    number: int
    why: str
    pids: tuple[int, ...]
    owner: str
    memory: int
    since: int
    of: str = ""


@value(frozen=True, slots=True)
class Node:
    """A machine: totals (with instances and core ids), labels and state."""

    node_id: str
    template_id: str
    total: Allocation
    hostname: str = ""
    labels: Labels = field(default_factory=dict)
    source: str = SIMULATED
    state: str = ALIVE
    boot_id: str | None = None
    shrunk: bool = False
    """Its totals were lowered, maybe below what is held on it: that stays, and is not given out again."""
    reason: str | None = None
    """Why it is in its state, in the words of ``author``."""
    author: str | None = None
    fences: tuple[Fence, ...] = ()
    """The instances that no new work gets, by resource and number."""

    @property
    def schedulable(self) -> bool:
        """Whether new work may be placed on it."""
        return self.state == ALIVE


def fenced(fences: Iterable[Fence]) -> dict[str, set[int]]:
    """Unit resource -> its fenced instances."""
    numbers: dict[str, set[int]] = {}
    for fence in fences:
        numbers.setdefault(fence.name, set()).add(fence.number)
    return numbers


UP, DOWN = "up", "down"
MADE_BY = "vctl.io/provider"
"""The label of nodes that a node provider made and may remove; its value is the kind of the provider."""
MADE_BY_COMMAND = "command"
MOST_POSSIBLE = 1000
"""The most machines of a template that count in the judgement of what could ever run."""


@value(frozen=True, slots=True)
class Template:
    """A kind of node that a node provider can make: at most ``most`` at a time."""

    name: str
    resources: Amounts
    most: int
    labels: Mapping[str, str] = field(default_factory=dict)
    units: frozenset[str] = DEFAULT_UNITS


def possible(templates: Iterable[Template], made: Mapping[str, int]) -> Iterator[Node]:
    """The nodes that a provider can still make. ``made``: template -> how many of these count as capacity."""
    for template in templates:
        total = whole_node(template.resources, template.units)
        for number in range(min(template.most - made.get(template.name, 0), MOST_POSSIBLE)):
            node_id = f"~{template.name}-{number}"
            yield Node(node_id, template.name, total, node_id, template.labels)


@value(frozen=True, slots=True)
class NodeRequest:
    """A request to a node provider. It may be sent again: one ``request_id`` always means the same machines.

    ``nodes``: for ``up`` the ids of the new machines, unless the provider names others; for ``down`` the ids
    of the machines to end.
    """

    request_id: str
    kind: str
    action: str
    template: str
    amounts: Amounts
    labels: Mapping[str, str]
    nodes: tuple[str, ...]
    created_at: int
    attempts: int = 0
    message: str | None = None


def renumbered(
    total: Allocation,
    before: Allocation,
    known: Mapping[str, Sequence[int]],
    used: Mapping[str, Collection[int]],
) -> Allocation:
    """New totals of a node with its old instance numbers: first those in use, then the known ones.

    ``known`` are all numbers that the node ever had, in the order in which they are given out.
    """
    instances: dict[str, dict[int, int]] = {}
    for name, fresh in total.instances.items():
        pool = list(dict.fromkeys([*known.get(name, ()), *before.instances.get(name, ())]))
        pool += range(max(pool, default=-1) + 1, max(pool, default=-1) + 1 + len(fresh))
        busy = used.get(name, ())
        chosen = sorted(pool, key=lambda number: number not in busy)[: len(fresh)]
        instances[name] = dict.fromkeys(sorted(chosen), SCALE)
    return replace(total, instances=instances)
