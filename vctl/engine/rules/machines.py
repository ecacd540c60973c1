"""Requests machines from a node provider, lets it end unused ones, and handles its results and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from vctl.core.nodes import (
    DEAD,
    DOWN,
    MADE_BY,
    MADE_BY_COMMAND,
    RAY,
    RELEASING,
    UP,
    Node,
    NodeRequest,
    Template,
)
from vctl.core.resources import whole_node
from vctl.core.values import replace
from vctl.engine.changes import (
    Change,
    MachinesAsked,
    MachinesDone,
    MachinesFailed,
    NodeAdded,
    NodeMoved,
    NodeRemoved,
)
from vctl.engine.rules.leases import nominated_slots
from vctl.engine.settings import TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import MachineDemand, MachinesReady, MachinesRefused, Now, Stimulus
from vctl.scheduler.provisioning import MachinesNeeded, needed_machines

NewId = Callable[[], str]
"""Returns an id that no request had before."""


def is_ours(node: Node) -> bool:
    """Whether a node provider made a node, and the node is not dead."""
    return node.labels.get(MADE_BY) is not None and node.state != DEAD


def changes(
    state: SchedulerState, memo: TurnMemo, stimuli: Sequence[Stimulus], now: Now, new_id: NewId
) -> Iterator[Change]:
    """All changes of machines and of the requests for them."""
    terms = state.machine_terms
    for stimulus in stimuli:
        match stimulus:
            case MachinesReady(request, node_ids):
                yield from done(state, request, node_ids, terms.units, now.wall)
            case MachinesRefused(request, message):
                yield from failed(state, request, message)
            case MachineDemand(needed):
                if terms.kind == RAY:
                    yield from withdrawn(state, needed.spare)
                yield from requested(state, needed.nodes, terms.templates, terms.kind, now.wall, new_id)
    yield from booted(state, memo, now)
    yield from unneeded(state, memo, now, new_id)


# ---- more machines ----


def demand(state: SchedulerState, now: int) -> MachinesNeeded:
    """The numbers of machines by template that let more waiting work start; none of a template that fails."""
    templates, units = state.machine_terms.templates, state.machine_terms.units
    requests = [request for request in state.node_requests.values() if request.action == UP]
    coming: Counter[str] = Counter()
    for request in requests:
        coming[request.template] += len(request.nodes)
    if not (state.tasks.queues or any(queue.jobs for queue in state.queues.values())):
        return MachinesNeeded({}, spare=coming)
    present = Counter(node.template_id for node in state.ledger.nodes.values() if is_ours(node))
    failing = {request.template for request in requests if request.attempts}
    possible = [template for template in templates if template.name not in failing]
    return needed_machines(
        state.ledger, state.queues, state.tasks.queues, possible, present, units,
        coming={template.name: coming[template.name] for template in possible if coming[template.name]},
        running=state.running, now_ns=now,
    )  # fmt: skip


def requested(
    state: SchedulerState, counts: Mapping[str, int], templates: Collection[Template], kind: str, now: int,
    new_id: NewId,
) -> Iterator[Change]:  # fmt: skip
    """Request machines by template. Each gets an id that no node has and no other request has promised."""
    in_use = {node_id for request in state.node_requests.values() for node_id in request.nodes}
    in_use |= state.ledger.nodes.keys()
    for template in templates:
        if count := counts.get(name := template.name):
            fresh = _fresh(name, count, in_use)
            for node_ids in [(node_id,) for node_id in fresh] if kind == RAY else [fresh]:
                yield MachinesAsked(
                    NodeRequest(new_id(), kind, UP, name, template.resources, template.labels, node_ids, now)
                )


def withdrawn(state: SchedulerState, spare: Mapping[str, int]) -> Iterator[Change]:
    """Withdraw requests to Ray that are not needed any more: nodes have joined, or waiting work has gone."""
    surplus = Counter(spare)
    for request in in_order(state):
        if request.kind == RAY and surplus[request.template] > 0:
            surplus[request.template] -= 1
            yield MachinesDone(request)


def _fresh(name: str, count: int, in_use: Collection[str]) -> tuple[str, ...]:
    """``count`` node ids that are not in ``in_use``."""
    node_ids: list[str] = []
    number = 0
    while len(node_ids) < count:
        number += 1
        if (node_id := f"{name}-p{number}") not in in_use:
            node_ids.append(node_id)
    return tuple(node_ids)


# ---- fewer machines ----


def unused(state: SchedulerState, kind: str) -> list[Node]:
    """The unused machines of a kind of provider, without those nominated for a job; of Ray only dead ones."""
    ledger = state.ledger
    nominated = {
        ledger.vnodes[vnode_id].node_id for vnode_id in nominated_slots(state) if vnode_id in ledger.vnodes
    }
    return [
        node
        for node_id, node in ledger.nodes.items()
        if node.labels.get(MADE_BY) == kind
        and node.state != RELEASING
        and (kind != RAY or node.state == DEAD)  # Ray itself ends idle machines
        and not (ledger.children[node_id] or node_id in ledger.homes or node_id in nominated)
        and not (ledger.booked is not None and node_id in ledger.booked.on and node.state != DEAD)
    ]


def unneeded(state: SchedulerState, memo: TurnMemo, now: Now, new_id: NewId) -> Iterator[Change]:
    """Remove machines that were unused for the idle time, dead ones at the second look that finds them so."""
    kind, before = state.machine_terms.kind, memo.idle_machines
    nodes = {node.node_id: node for node in unused(state, kind)}
    memo.idle_machines = {node_id: before.get(node_id, now.uptime) for node_id in nodes}
    due = set()
    for node_id, node in nodes.items():
        ends = memo.idle_machines[node_id] + int(state.machine_terms.idle_s * 1e9)
        if node_id in before and (node.state == DEAD or ends <= now.uptime):
            due.add(node_id)
        else:  # a new machine stays for a while: the work for which it was made has its turn first
            memo.due.append(ends)
    yield from released(state, due, kind, now.wall, new_id)


def released(
    state: SchedulerState, node_ids: Collection[str], kind: str, now: int, new_id: NewId
) -> Iterator[Change]:
    """Release unused machines, except living ones with objects of jobs."""
    for node in unused(state, kind):
        if node.node_id not in node_ids or (node.state != DEAD and _has_objects(state, node.node_id)):
            continue
        if kind == MADE_BY_COMMAND:
            yield from ending(node.node_id, node.template_id, now, new_id)
        else:
            yield NodeRemoved(node.node_id)


def ending(node_id: str, template: str, now: int, new_id: NewId) -> Iterator[Change]:
    """End an empty machine: it takes no more work, and its row stays until the provider has ended it."""
    yield NodeMoved(now, node_id, "release", RELEASING)
    yield MachinesAsked(NodeRequest(new_id(), MADE_BY_COMMAND, DOWN, template, {}, {}, (node_id,), now))


def _has_objects(state: SchedulerState, node_id: str) -> bool:
    return any(node_id in it.at for objects in state.tasks.objects.values() for it in objects.values())


# ---- what became of a request ----


def booted(state: SchedulerState, memo: TurnMemo, now: Now) -> Iterator[Change]:
    """Add simulated machines after their boot time; drop requests to Ray if another provider is set."""
    for request in in_order(state):
        if request.kind == RAY:
            if state.machine_terms.kind != RAY:
                yield MachinesDone(request)
        elif request.kind != MADE_BY_COMMAND:
            remaining_ns = request.created_at + int(state.machine_terms.boot_s * 1e9) - now.wall
            if remaining_ns <= 0:
                yield from done(state, request, request.nodes, state.machine_terms.units, now.wall)
            else:
                memo.due.append(now.uptime + remaining_ns)


def in_order(state: SchedulerState) -> list[NodeRequest]:
    """Requests to the node provider, the oldest first."""
    return sorted(state.node_requests.values(), key=lambda request: (request.created_at, request.request_id))


def done(
    state: SchedulerState, request: NodeRequest, node_ids: Collection[str], units: frozenset[str], now: int
) -> Iterator[Change]:
    """Record that a request is done: its machines exist, or are gone. Ignores a request that was given up."""
    if request.request_id not in state.node_requests:
        return
    for node_id in node_ids:
        node = state.ledger.nodes.get(node_id)
        if request.action == UP and node is None:
            labels = {**request.labels, MADE_BY: request.kind}
            total = whole_node(request.amounts, units)
            yield NodeAdded(now, Node(node_id, request.template, total, node_id, labels), None, "{}")
        elif request.action == DOWN and node is not None and node.state == RELEASING:
            yield NodeRemoved(node_id)
    yield MachinesDone(request, tuple(node_ids))


def failed(state: SchedulerState, request: NodeRequest, message: str) -> Iterator[Change]:
    """Record that one more attempt failed: the request stays, under the same id."""
    if request.request_id in state.node_requests:
        yield MachinesFailed(replace(request, attempts=request.attempts + 1, message=message))
