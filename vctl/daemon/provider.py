"""The node provider: makes nodes when what waits needs them, and lets go of those that are idle.

``simulated`` declares nodes after a boot time. ``command`` calls the user's executables with JSON on standard input:
``up`` answers ``{"nodes": [{"node_id": …}]}`` (or nothing: the machines get the ids that the question proposed),
``down`` gets the ids to end. A request is a row before the command is called, and stays one until the command has
succeeded: it is called again, with the same ``request_id``, after a failure and after a crash.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from vctl.core.nodes import DEAD, DOWN, UP, NodeRequest
from vctl.daemon.following import FollowedState
from vctl.daemon.lease_expiry import LeaseExpiry
from vctl.engine.rules import machines
from vctl.ops.feasible import TEMPLATES
from vctl.ops.nodes import NODE_ID, new_request_id
from vctl.runtime.commands import Call, end_left_behind
from vctl.spec.provider_spec import COMMAND, NONE, ProviderSpec
from vctl.store import observed
from vctl.store.store import Store

RETRY_S, MOST_RETRY_S = 10.0, 300.0
POLL_S = 0.2
CLOSE_S = 2.0
MOST_CALLS = 8
"""Most commands at work at a time."""


@dataclass(slots=True)
class Provider:
    """Carries out what the rules decide (``engine/rules/machines.py``)."""

    store: Store
    spec: ProviderSpec
    returns: LeaseExpiry | None = None
    """Who gives idle leases back: before a machine is started."""
    _calls: dict[str, Call] = field(default_factory=dict)
    """request id -> its command, while that works."""
    _retry_at: dict[str, float] = field(default_factory=dict)
    _idle_since: dict[str, float] = field(default_factory=dict)
    _adopted: bool = False
    _due: float | None = None

    def due_s(self) -> float:
        """Seconds until something is due."""
        return float("inf") if self._due is None else max(0.0, self._due - time.monotonic())

    def announce(self) -> None:
        """Tell submitters what could be had at most: who judges whether a job can ever run needs it."""
        kinds = self.spec.kinds()
        if kinds != self.store.recall(TEMPLATES):
            with self.store.transaction():
                observed.remember(self.store, TEMPLATES, kinds)

    def turn(self, state: FollowedState) -> None:
        """Carry out what was asked for, ask for more when something waits for it, release idle nodes."""
        if self.spec.kind == NONE:
            return
        self._due = None
        self._carry_out(state)
        self._scale_up(state)
        self._scale_down(state)
        self._carry_out(state)  # what was asked for just now

    def is_needed(self, state: FollowedState) -> bool:
        """Whether a scheduler has to stay, with nothing running: machines are asked for, or not ended yet."""
        if self.spec.kind == NONE:
            return False
        return bool(state.node_requests) or any(
            machines.is_ours(node) for node in state.ledger.nodes.values()
        )

    def close(self) -> None:
        """Give commands that are at work a moment, and end the others: the next scheduler calls them again."""
        ends = time.monotonic() + CLOSE_S
        for call in self._calls.values():
            call.wait(max(0.0, ends - time.monotonic()))
            call.kill()
        self._calls.clear()

    # ---- requests ----

    def _carry_out(self, state: FollowedState) -> None:
        requests = sorted(state.node_requests.values(), key=lambda one: (one.created_at, one.request_id))
        for gone in [one for one in self._calls if one not in state.node_requests]:  # given up by hand
            if self._calls[gone].poll() is not None:
                del self._calls[gone]
        if not self._adopted:
            self._adopted = True
            for request in requests:
                end_left_behind(request.request_id)
        for request in requests:
            if request.kind == COMMAND:
                if self.spec.kind == COMMAND:
                    self._advance(state, request)
            elif (wait_s := (request.created_at - self.store.clock()) / 1e9 + self.spec.boot_s) > 0:
                self._wake_in(wait_s)
            else:
                self._finish(state, request, list(request.nodes))

    def _advance(self, state: FollowedState, request: NodeRequest) -> None:
        """Call the command of a request, or look how its call goes."""
        call = self._calls.get(request.request_id)
        if call is None:
            wait_s = self._retry_at.get(request.request_id, 0.0) - time.monotonic()
            if wait_s > 0:
                self._wake_in(wait_s)
            elif len(self._calls) >= MOST_CALLS:
                self._wake_in(POLL_S)
            else:
                self._call(state, request)
            return
        called = call.poll()
        if called is None:
            self._wake_in(POLL_S)
            return
        del self._calls[request.request_id]
        try:
            if called.problem is not None:
                raise ValueError(called.problem)
            made = list(request.nodes) if request.action == DOWN else _ids(called.answer, request)
        except ValueError as error:
            self._failed(state, request, str(error))
        else:
            self._finish(state, request, made)

    def _call(self, state: FollowedState, request: NodeRequest) -> None:
        words = self.spec.up if request.action == UP else self.spec.down
        question = {
            "action": request.action,
            "request_id": request.request_id,
            "template": request.template,
            "count": len(request.nodes),
            "nodes": list(request.nodes),
        }
        try:
            self._calls[request.request_id] = Call(
                words, json.dumps(question).encode() + b"\n", mark=request.request_id,
                timeout_s=self.spec.timeout_s, env=os.environ,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._failed(state, request, f"cannot run {words[0]}: {reason}")
        self._wake_in(POLL_S)

    def _failed(self, state: FollowedState, request: NodeRequest, problem: str) -> None:
        """It is asked again, later and later, under the same id: whether it had an effect is not known."""
        wait_s = min(MOST_RETRY_S, RETRY_S * 2.0 ** min(request.attempts, 10))
        self._retry_at[request.request_id] = time.monotonic() + wait_s
        message = f"{request.action}: {problem}; next try in {wait_s:g} s"
        state.emit_all(self.store, lambda: machines.failed(state, request, message))
        self._wake_in(wait_s)

    def _finish(self, state: FollowedState, request: NodeRequest, node_ids: Collection[str]) -> None:
        now = self.store.clock()
        state.emit_all(self.store, lambda: machines.done(state, request, node_ids, self.spec.units, now))
        self._retry_at.pop(request.request_id, None)

    def _scale_up(self, state: FollowedState) -> None:
        spec, now = self.spec, self.store.clock()
        idle = [] if self.returns is None else self.returns.returnable(state)
        wanted = machines.wanted(state, spec.templates, spec.units, idle, now)
        if self.returns is not None and wanted.called_back:
            self._wake_in(self.returns.call_back(wanted.called_back))
        state.emit_all(
            self.store,
            lambda: machines.asked(state, wanted.nodes, spec.templates, spec.kind, now, new_request_id),
        )

    def _scale_down(self, state: FollowedState) -> None:
        """Take away nodes of ours that have been empty for the idle time; those that died at once."""
        now, wall, kind = time.monotonic(), self.store.clock(), self.spec.kind
        unused = machines.unused(state, kind)
        before = self._idle_since
        self._idle_since = {node.node_id: before.get(node.node_id, now) for node in unused}
        due = set()
        for node in unused:
            left_s = self.spec.idle_s - (now - self._idle_since[node.node_id])
            if node.node_id in before and (node.state == DEAD or left_s <= 0):
                due.add(node.node_id)
            else:  # a new one is for work that has its turn first
                self._wake_in(left_s)
        if due:
            state.emit_all(self.store, lambda: machines.released(state, due, kind, wall, new_request_id))

    def _wake_in(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._due = at if self._due is None else min(self._due, at)


def _ids(answer: bytes, request: NodeRequest) -> list[str]:
    """The node ids that a scale-up answered, or else those that it was offered; ValueError where it makes no sense."""
    if not answer.strip():
        return list(request.nodes)
    try:
        listed = json.loads(answer)["nodes"]
        found = [str(node["node_id"]) for node in listed]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('its answer is not {"nodes": [{"node_id": …}]}') from None
    for node_id in found:
        if not NODE_ID.match(node_id):
            raise ValueError(f"its answer has a bad node id: {node_id[:200]!r}")
    return found or list(request.nodes)
