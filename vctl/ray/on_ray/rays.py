"""The Rays of jobs on several nodes: each node of the job has a keeper of the raylets there.

The first keeper is `vctl/ray/private/private_ray.py`, on the node of the command; the others are satellites,
`vctl/ray/private/ray_satellite.py`. The agents of the nodes start them. The scheduler sends each keeper the
virtual nodes of its node, and passes on the messages between keepers:

    the first keeper   starts the head, sends {"join": how raylets join}, and lets the command start when the
                       virtual nodes of all other nodes are in "here"
    the satellites     are runs that are not in the tables. They start after the first keeper's "join", and
                       send {"up": [virtual nodes]}; one that ends is restarted; they end with the command
    raylets of tasks   get how to join

The command counts as over only when no satellite is left, so that no process of a job outlives its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from vctl.ray.on_ray import wire
from vctl.ray.on_ray.runs import LinkedRun
from vctl.runtime.protocol import LaunchRequest, ReservedParts, RunState, Seen

if TYPE_CHECKING:
    from vctl.ray.on_ray.runs import KnownRuns
    from vctl.ray.on_ray.wire import Packed, Part, RayNode

SATELLITE, JOINS = "satellite", "joins"
OVER = (RunState.EXITED, RunState.LOST, RunState.REFUSED)
_AGAIN_S = (1.0, 30.0)


class Around(Protocol):
    """The runtime on the Ray around, as the Rays of jobs use it (runtime.py)."""

    runs: dict[str, LinkedRun]
    run_files: KnownRuns
    nodes: dict[str, RayNode] | None

    def reserve(self, name: str, reserved: ReservedParts) -> dict[str, list[Part]]:
        """Reserve the parts of a job."""

    def begin_launch(self, run_id: str, packed: Packed, own: set[str]) -> None:
        """Launch a run on its node."""

    def send_shown(self, run_id: str, run: LinkedRun) -> None:
        """Send a keeper its document."""

    def present_state(self, run_id: str) -> Seen:
        """The present state of a run."""

    def stop(self, run_id: str, *, grace_s: float) -> None:
        """Stop a run."""

    def forget(self, run_id: str) -> None:
        """Forget a run that is over."""


class Rays:
    """The Rays of the jobs of one scheduler."""

    def __init__(self, runtime: Around) -> None:
        self.runtime = runtime
        self.shown: dict[str, Mapping[str, Any]] = {}
        """Run of a command -> the document about its job: all virtual nodes, and requests (see NODES)."""
        self.pauses: dict[str, float] = {}
        """Run of a command -> seconds to wait before its ended satellites are restarted."""
        self.due: dict[str, float] = {}
        """Run of a command -> the monotonic time of that restart."""

    def load(self) -> None:
        """Forget the satellites of forgotten commands; agents end runs that the scheduler does not name."""
        runs = self.runtime.runs
        for run_id in [run_id for run_id, run in runs.items() if run.main and run.main not in runs]:
            del runs[run_id]
            self.runtime.run_files.forget(run_id)

    def words(self, request: LaunchRequest) -> dict[str, Any]:
        """The fields of a Run that are stored for a run of a Ray."""
        if request.ray != JOINS:
            return {"kind": request.ray, "words": wire.packed_request(request)}
        assert request.reservation is not None
        return {"kind": JOINS, "words": (request.reservation.own,)}

    def begin(self, run_id: str, run: LinkedRun, shown: Mapping[str, Any]) -> set[str]:
        """Set the first document for a run of a Ray before its launch; the ids of its virtual nodes."""
        if run.kind == JOINS:
            runs = self.runtime.runs
            main = next((main for main in self.shown if runs[main].reservation == run.reservation), "")
            run.shown = self._joining(main, run) if main else json.dumps({"address": ""})
            return {str(vnode_id) for vnode_id in run.words or ()}
        self.shown[run_id] = shown
        run.shown = json.dumps(self._part(run_id, run))
        return _own(shown, run.node_id)

    def show(self, run_id: str, shown: Mapping[str, Any], reservation: ReservedParts) -> None:
        """Take over the present document about a job, adjust its reservation, and inform the keepers."""
        run = self.runtime.runs.get(run_id)
        if run is not None and run.kind:
            self.shown[run_id] = shown
            run.groups = self.runtime.reserve(run.reservation, reservation)
            self.runtime.run_files.keep(run_id, run)
            self.spread(run_id)

    def satellites(self, main: str) -> list[str]:
        """The runs of the satellites of a command."""
        return [run_id for run_id, run in self.runtime.runs.items() if run.main == main]

    def _live_satellites(self, main: str) -> list[str]:
        return [run_id for run_id in self.satellites(main) if not self._is_over(run_id)]

    def go_on(self, main: str) -> bool:
        """Stop the satellites of a command that is over; whether any are left."""
        remaining = self._live_satellites(main)
        for run_id in remaining:
            if self.runtime.runs[run_id].stop is None:
                self.runtime.stop(run_id, grace_s=0)
        return bool(remaining)

    def forget(self, main: str) -> None:
        """Forget a command that is over, and its satellites."""
        for run_id in self.satellites(main):
            self.runtime.forget(run_id)
        for known in (self.shown, self.pauses, self.due):
            known.pop(main, None)

    def act_on_news(self, run_id: str) -> None:
        """Act on news of a run of a Ray."""
        main = self.runtime.runs[run_id].main or run_id
        if main in self.shown:
            self.spread(main)

    def restart_due(self) -> None:
        """Restart the satellites whose pause is over."""
        now = time.monotonic()
        for main in [main for main, at in self.due.items() if at <= now]:
            self.spread(main)

    def spread(self, main: str) -> None:
        """Start a keeper on each node of a job that has none, and send each its document."""
        runs = self.runtime.runs
        run = runs[main]
        if self._is_over(main):
            self.due.pop(main, None)
            self.go_on(main)
            return
        at = {runs[run_id].node_id: run_id for run_id in self.satellites(main)}
        ended = [run_id for run_id in at.values() if self._is_over(run_id)]
        said = _read(run.said)
        if ended and "goes" in said and self._may_start_again(main):
            for run_id in ended:
                del at[runs[run_id].node_id]
                self.runtime.forget(run_id)
        if "join" in said:
            vnodes = self.shown[main]["nodes"]
            nodes = {vnode["node"] for vnode in vnodes if vnode["resources"] or not vnode["growth"]}
            for node_id in sorted(nodes - at.keys() - {run.node_id}) if run.stop is None else ():
                self._start(main, run, node_id)
            for run_id in set(at.values()) - set(ended):
                self._send(run_id, runs[run_id], json.dumps(self._part(main, runs[run_id])))
                if self.runtime.present_state(run_id).state is RunState.NEVER_STARTED:
                    self._launch(main, run_id)  # the previous scheduler ended before it could
            for run_id, joining in runs.items():
                if joining.kind == JOINS and joining.reservation == run.reservation:
                    self._send(run_id, joining, self._joining(main, joining))
        failed = bool(ended) and "goes" not in said
        self._send(main, run, json.dumps(self._part(main, run) | {"failed": failed}))

    def _may_start_again(self, main: str) -> bool:
        now, pause_s = time.monotonic(), self.pauses.get(main, _AGAIN_S[0])
        if now < self.due.setdefault(main, now + pause_s):
            return False
        del self.due[main]
        self.pauses[main] = min(2 * pause_s, _AGAIN_S[1])
        return True

    def _start(self, main: str, run: LinkedRun, node_id: str) -> None:
        run.count += 1
        self.runtime.run_files.keep(main, run)
        run_id = f"{main}.ray{run.count}"
        satellite = LinkedRun(
            node_id, run.reservation, run.log, run.log_max_bytes, run.groups, SATELLITE, main
        )
        self.runtime.run_files.keep(run_id, satellite)
        self.runtime.runs[run_id] = satellite
        satellite.shown = json.dumps(self._part(main, satellite))
        self._launch(main, run_id)

    def _launch(self, main: str, run_id: str) -> None:
        words, node_id = self.runtime.runs[main].words, self.runtime.runs[run_id].node_id
        assert words is not None
        _, argv, env, *rest = words
        packed = (run_id, tuple(argv), {**env, "VCTL_NODE_ID": node_id}, *rest)
        self.runtime.begin_launch(run_id, packed, _own(self.shown[main], node_id))

    def _part(self, main: str, run: LinkedRun) -> dict[str, Any]:
        """The document for one keeper."""
        runs, shown = self.runtime.runs, self.shown[main]
        nodes = [vnode for vnode in shown["nodes"] if vnode["node"] == run.node_id]
        part: dict[str, Any] = {"nodes": nodes, "address": self._address(run.node_id)}
        if "leaving" in shown:
            part["leaving"] = shown["leaving"]
        if run.main:
            return {**part, "join": _read(runs[main].said).get("join")}
        said = [runs[run_id].said for run_id in self._live_satellites(main)]
        joined = [vnode_id for text in said for vnode_id in _read(text).get("up", ())]
        more = {"elastic": shown["elastic"]} if "elastic" in shown else {}
        others = [vnode for vnode in shown["nodes"] if vnode["node"] != run.node_id]
        return {**part, "others": others, "here": sorted(joined), **more}

    def _joining(self, main: str, run: LinkedRun) -> str:
        """The document for the parent of a raylet that is a task (ray_join.py)."""
        nodes = [vnode for vnode in self.shown[main]["nodes"] if vnode["id"] in (run.words or ())]
        join = _read(self.runtime.runs[main].said).get("join")
        more = {"notice": self.shown[main]["notice"]} if "notice" in self.shown[main] else {}
        return json.dumps({"nodes": nodes, "address": self._address(run.node_id), "join": join, **more})

    def _address(self, node_id: str) -> str:
        node = (self.runtime.nodes or {}).get(node_id)
        return "" if node is None else node.address

    def _send(self, run_id: str, run: LinkedRun, text: str) -> None:
        if text != run.shown and run.failed is None:
            run.shown = text
            self.runtime.send_shown(run_id, run)

    def _is_over(self, run_id: str) -> bool:
        run, seen = self.runtime.runs[run_id], self.runtime.present_state(run_id)
        return seen.state in OVER or (seen.state is RunState.NEVER_STARTED and run.stop is not None)

    def given_up(self, main: str) -> str:
        """The id of the present request to use less, if all keepers of a Ray have done so; else empty."""
        runs = self.runtime.runs
        request_id = self.shown.get(main, {}).get("leaving", {}).get("id", "")
        keepers = [run_id for run_id in (main, *self._live_satellites(main)) if run_id in runs]
        done = all(_read(runs[run_id].said).get("left") == request_id for run_id in keepers)
        return request_id if done else ""


def _own(shown: Mapping[str, Any], node_id: str) -> set[str]:
    return {vnode["id"] for vnode in shown["nodes"] if vnode["node"] == node_id}


def gpus_of(shown: str) -> list[tuple[str, str]]:
    """(virtual node, planned GPU) pairs in the document for a keeper."""
    return [(vnode["id"], gpu) for vnode in _read(shown).get("nodes", ()) for gpu in vnode["gpus"]]


def _read(said: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(said) if said else {}
    return document
