"""What nodes are after a change of theirs."""

from __future__ import annotations

from dataclasses import replace

from vctl.core.nodes import DEAD, Node
from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.NodeAdded)
def _node_added(state: SchedulerState, change: ch.NodeAdded) -> None:
    _put_node(state, change.node)


@applies(ch.NodeMoved)
def _node_moved(state: SchedulerState, change: ch.NodeMoved) -> None:
    if (node := state.ledger.nodes.get(change.node_id)) is not None:
        _put_node(state, replace(node, state=change.state, reason=change.reason, author=change.author))


@applies(ch.NodeChanged)
def _node_changed(state: SchedulerState, change: ch.NodeChanged) -> None:
    if change.node.node_id in state.ledger.nodes:
        _put_node(state, change.node)


def _put_node(state: SchedulerState, node: Node) -> None:
    if node.state == DEAD:
        of_node = [run.run_id for run in state.runs.values() if run.node_id == node.node_id]
        state.changed.runs.update(dict.fromkeys(of_node))  # their stop gets no grace any more
    state.ledger.put_node(node)
    state.sort_node(node)
    state.changed.nodes.add(node.node_id)


@applies(ch.NodeRemoved)
def _node_removed(state: SchedulerState, change: ch.NodeRemoved) -> None:
    state.changed.nodes.add(change.node_id)
    if change.node_id in state.ledger.nodes:
        state.ledger.remove_node(change.node_id)
        for ids in (state.dead_nodes, state.draining_nodes, state.shrunk_nodes):
            ids.discard(change.node_id)
