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
OVER = (RunState.EXITED, RunState.LOST)
_AGAIN_S = (1.0, 30.0)


class Around(Protocol):
    """The runtime on the Ray around, as the Rays of jobs use it (runtime.py)."""

    runs: dict[str, LinkedRun]
    kept: KnownRuns
    nodes: dict[str, RayNode] | None

    def reserve(self, name: str, reserved: ReservedParts) -> dict[str, list[Part]]:
        """Reserve the parts of a job."""

    def begin_launch(self, run_id: str, packed: Packed, own: set[str]) -> None:
        """Launch a run on its node."""

    def send_shown(self, run_id: str, run: LinkedRun) -> None:
        """Send a keeper its document."""

    def look(self, run_id: str) -> Seen:
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
        for run_id in [one for one, run in runs.items() if run.main and run.main not in runs]:
            del runs[run_id]
            self.runtime.kept.forget(run_id)

    def words(self, request: LaunchRequest) -> dict[str, Any]:
        """The fields of a Run that are stored for a run of a Ray."""
        if request.ray != JOINS:
            return {"kind": request.ray, "words": wire.packed_request(request)}
        assert request.reservation is not None
        return {"kind": JOINS, "words": (request.reservation.own,)}

    def begin(self, run_id: str, run: LinkedRun, shown: Mapping[str, Any]) -> set[str]:
        """Set the first document for a run of a Ray before its launch; the ids of its virtual nodes."""
        if run.kind == JOINS:
            main = next(
                (one for one in self.shown if self.runtime.runs[one].reservation == run.reservation), ""
            )
            run.shown = self._joining(main, run) if main else json.dumps({"address": ""})
            return {str(one) for one in run.words or ()}
        self.shown[run_id] = shown
        run.shown = json.dumps(self._part(run_id, run))
        return _own(shown, run.node_id)

    def show(self, run_id: str, shown: Mapping[str, Any], reservation: ReservedParts) -> None:
        """Take over the present document about a job, adjust its reservation, and inform the keepers."""
        run = self.runtime.runs.get(run_id)
        if run is not None and run.kind:
            self.shown[run_id] = shown
            run.groups = self.runtime.reserve(run.reservation, reservation)
            self.runtime.kept.keep(run_id, run)
            self.spread(run_id)

    def satellites(self, main: str) -> list[str]:
        """The runs of the satellites of a command."""
        return [run_id for run_id, run in self.runtime.runs.items() if run.main == main]

    def go_on(self, main: str) -> bool:
        """Stop the satellites of a command that is over; whether any are left."""
        left = [one for one in self.satellites(main) if not self._is_over(one)]
        for run_id in left:
            if self.runtime.runs[run_id].stop is None:
                self.runtime.stop(run_id, grace_s=0)
        return bool(left)

    def forget(self, main: str) -> None:
        """Forget a command that is over, and its satellites."""
        for run_id in self.satellites(main):
            self.runtime.forget(run_id)
        for known in (self.shown, self.pauses, self.due):
            known.pop(main, None)

    def heard(self, run_id: str) -> None:
        """Act on news of a run of a Ray."""
        main = self.runtime.runs[run_id].main or run_id
        if main in self.shown:
            self.spread(main)

    def tend(self) -> None:
        """Restart the satellites whose pause is over."""
        now = time.monotonic()
        for main in [one for one, at in self.due.items() if at <= now]:
            self.spread(main)

    def spread(self, main: str) -> None:
        """Start a keeper on each node of a job that has none, and send each its document."""
        runs = self.runtime.runs
        run = runs[main]
        if self._is_over(main):
            self.due.pop(main, None)
            self.go_on(main)
            return
        at = {runs[one].node_id: one for one in self.satellites(main)}
        ended = [one for one in at.values() if self._is_over(one)]
        said = _read(run.said)
        if ended and "goes" in said and self._may_start_again(main):
            for one in ended:
                del at[runs[one].node_id]
                self.runtime.forget(one)
        if "join" in said:
            nodes = {
                one["node"] for one in self.shown[main]["nodes"] if one["resources"] or not one["growth"]
            }
            for node_id in sorted(nodes - at.keys() - {run.node_id}) if run.stop is None else ():
                self._start(main, run, node_id)
            for one in set(at.values()) - set(ended):
                self._send(one, runs[one], json.dumps(self._part(main, runs[one])))
                if self.runtime.look(one).state is RunState.NEVER_STARTED:
                    self._launch(main, one)  # the previous scheduler ended before it could
            for one, joining in runs.items():
                if joining.kind == JOINS and joining.reservation == run.reservation:
                    self._send(one, joining, self._joining(main, joining))
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
        """Start a satellite on a node."""
        run.count += 1
        self.runtime.kept.keep(main, run)
        run_id = f"{main}.ray{run.count}"
        one = LinkedRun(node_id, run.reservation, run.log, run.log_max_bytes, run.groups, SATELLITE, main)
        self.runtime.kept.keep(run_id, one)
        self.runtime.runs[run_id] = one
        one.shown = json.dumps(self._part(main, one))
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
        nodes = [one for one in shown["nodes"] if one["node"] == run.node_id]
        part: dict[str, Any] = {"nodes": nodes, "address": self._address(run.node_id)}
        if "leaving" in shown:
            part["leaving"] = shown["leaving"]
        if run.main:
            return {**part, "join": _read(runs[main].said).get("join")}
        up = [runs[one].said for one in self.satellites(main) if not self._is_over(one)]
        here = [one for said in up for one in _read(said).get("up", ())]
        more = {"elastic": shown["elastic"]} if "elastic" in shown else {}
        others = [one for one in shown["nodes"] if one["node"] != run.node_id]
        return {**part, "others": others, "here": sorted(here), **more}

    def _joining(self, main: str, run: LinkedRun) -> str:
        """The document for the parent of a raylet that is a task (ray_join.py)."""
        nodes = [one for one in self.shown[main]["nodes"] if one["id"] in (run.words or ())]
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
        run, seen = self.runtime.runs[run_id], self.runtime.look(run_id)
        return seen.state in OVER or (seen.state is RunState.NEVER_STARTED and run.stop is not None)

    def given_up(self, main: str) -> str:
        """The id of the present request to use less, if all keepers of a Ray have done so; else empty."""
        runs = self.runtime.runs
        asked = self.shown.get(main, {}).get("leaving", {}).get("id", "")
        keepers = [main, *(one for one in self.satellites(main) if not self._is_over(one))]
        done = all(_read(runs[one].said).get("left") == asked for one in keepers if one in runs)
        return asked if done else ""


def _own(shown: Mapping[str, Any], node_id: str) -> set[str]:
    return {one["id"] for one in shown["nodes"] if one["node"] == node_id}


def gpus_of(shown: str) -> list[tuple[str, str]]:
    """(virtual node, planned GPU) pairs in the document for a keeper."""
    return [(one["id"], gpu) for one in _read(shown).get("nodes", ()) for gpu in one["gpus"]]


def _read(said: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said) if said else {}
    return found
