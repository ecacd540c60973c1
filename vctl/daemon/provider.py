"""The node provider: makes nodes when waiting work needs them, and releases idle nodes.

``simulated`` declares nodes after a boot time. ``command`` calls the user's executables with JSON on standard
input: ``up`` answers ``{"nodes": [{"node_id": …}]}`` (or nothing: the machines get the proposed ids),
``down`` gets the ids to end. A request is a row before its command is called, and stays a row until the
command has succeeded. After a failure or a crash the command is called again, with the same ``request_id``.
``ray`` lets Ray's autoscaler make nodes: Ray gets all requests, and a request is over when nothing needs its
node any more.
"""

from __future__ import annotations

import json
import os
import time

from vctl.core.nodes import UP, NodeRequest
from vctl.core.values import field, value
from vctl.daemon.following import FollowedState
from vctl.engine.rules import machines
from vctl.engine.settings import MachineTerms
from vctl.engine.stimuli import MachinesReady, MachinesRefused, Now, Stimulus
from vctl.ops.feasible import TEMPLATES
from vctl.runtime.commands import ProviderCall, end_orphan
from vctl.runtime.protocol import Runtime
from vctl.spec.ids import is_id
from vctl.spec.provider_spec import COMMAND, NONE, RAY, ProviderSpec
from vctl.store import observed
from vctl.store.store import Store

RETRY_S, MAX_RETRY_S = 10.0, 300.0
POLL_NS = 200_000_000
CLOSE_S = 2.0
MAX_CALLS = 8
"""The most commands that run at a time."""


@value(slots=True)
class Provider:
    """Carries out what the rules decide (``engine/rules/machines.py``)."""

    store: Store
    spec: ProviderSpec
    runtime: Runtime
    _calls: dict[str, ProviderCall] = field(default_factory=dict)
    """Request id -> its command, while it runs."""
    _retry_at: dict[str, int] = field(default_factory=dict)
    """Request id -> when its command is called again, in ns since the machine started."""
    _failed: list[Stimulus] = field(default_factory=list)
    """Results for commands that could not be called."""
    _adopted: bool = False

    @property
    def terms(self) -> MachineTerms:
        """The terms of the provider for the rules."""
        spec = self.spec
        return MachineTerms(spec.kind, spec.templates, spec.units, spec.boot_s, spec.idle_s)

    def announce(self) -> None:
        """Announce the nodes that the provider could make: commands need them to judge feasibility."""
        kinds = self.spec.kinds()
        if kinds != self.store.recall(TEMPLATES):
            with self.store.transaction():
                observed.remember(self.store, TEMPLATES, kinds)

    def is_needed(self, state: FollowedState) -> bool:
        """Whether the scheduler must stay although nothing runs: machines are requested, or not ended yet."""
        if self.spec.kind in (NONE, RAY):
            return self.spec.kind == RAY and bool(state.node_requests)
        return bool(state.node_requests) or any(
            machines.is_ours(node) for node in state.ledger.nodes.values()
        )

    def close(self) -> None:
        """Wait a moment for running commands, then kill them: the next scheduler calls them again."""
        ends = time.monotonic() + CLOSE_S
        for call in self._calls.values():
            call.wait(max(0.0, ends - time.monotonic()))
            call.kill()
        self._calls.clear()

    # ---- requests ----

    def due(self, uptime: int) -> list[int]:
        """The times at which a command may be over or is called again, in ns since the machine started."""
        retries = self._retry_at.values() if len(self._calls) < MAX_CALLS else ()
        return [*retries, *([uptime] if self._failed else [uptime + POLL_NS] if self._calls else [])]

    def results(self, state: FollowedState, now: Now) -> list[Stimulus]:
        """The results of the commands that have ended."""
        results, self._failed = self._failed, []
        for request_id, call in list(self._calls.items()):
            if (called := call.poll()) is None:
                continue
            del self._calls[request_id]
            if (request := state.node_requests.get(request_id)) is None:
                continue  # the request was withdrawn by hand
            try:
                if called.problem is not None:
                    raise ValueError(called.problem)
                made = list(request.nodes)
                if request.action == UP:
                    made = _ids(called.answer, request)
                    if all(node_id in state.ledger.nodes for node_id in made):
                        raise ValueError(f"its answer names no new node: {', '.join(made)} is there already")
            except ValueError as error:
                results.append(self._refused(request, str(error), now))
            else:
                results.append(MachinesReady(request, tuple(made)))
        return results

    def carry_out(self, state: FollowedState, now: Now) -> None:
        """Call the commands of requests that are due, and tell Ray which nodes are wanted, even if none."""
        requests = machines.in_order(state)
        of_ray = [request for request in requests if request.kind == self.spec.kind == RAY]
        self.runtime.request_nodes([(request.amounts, request.labels) for request in of_ray])
        if self.spec.kind != COMMAND:
            return
        if not self._adopted:
            self._adopted = True
            for request in requests:
                end_orphan(request.request_id)
        self._retry_at = {name: at for name, at in self._retry_at.items() if name in state.node_requests}
        for request in requests:
            if request.kind != COMMAND or request.request_id in self._calls or len(self._calls) >= MAX_CALLS:
                continue
            if self._retry_at.get(request.request_id, 0) <= now.uptime:
                self._retry_at.pop(request.request_id, None)
                self._call(request, now)

    def _call(self, request: NodeRequest, now: Now) -> None:
        words = self.spec.up if request.action == UP else self.spec.down
        question = {
            "action": request.action,
            "request_id": request.request_id,
            "template": request.template,
            "count": len(request.nodes),
            "nodes": list(request.nodes),
        }
        try:
            self._calls[request.request_id] = ProviderCall(
                words, json.dumps(question).encode() + b"\n", mark=request.request_id,
                timeout_s=self.spec.timeout_s, env=os.environ,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._failed.append(self._refused(request, f"cannot run {words[0]}: {reason}", now))

    def _refused(self, request: NodeRequest, problem: str, now: Now) -> MachinesRefused:
        """Plan another attempt, later each time, with the same id: nobody knows if the failed one had an effect."""
        wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** min(request.attempts, 10))
        self._retry_at[request.request_id] = now.uptime + int(wait_s * 1e9)
        return MachinesRefused(request, f"{request.action}: {problem}; next try in {wait_s:g} s")


def _ids(answer: bytes, request: NodeRequest) -> list[str]:
    """The node ids in the answer of ``up``, else the proposed ids. Raises ValueError for a bad answer."""
    if not answer.strip():
        return list(request.nodes)
    try:
        node_ids = [node["node_id"] for node in json.loads(answer)["nodes"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('its answer is not {"nodes": [{"node_id": …}]}') from None
    for node_id in node_ids:
        if not isinstance(node_id, str) or not is_id(node_id):
            raise ValueError(f"its answer has a bad node id: {str(node_id)[:200]!r}")
    return node_ids or list(request.nodes)
