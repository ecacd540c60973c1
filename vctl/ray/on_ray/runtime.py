"""Runs processes on the nodes of a Ray cluster: `RayRuntime`, the Ray runtime of section 16.

In the state directory:

    ray/id             the name of this state directory in Ray; a copy of the directory gets another one
    ray/runs/<run>     node, reservation and log of a run (runs.py); written before Ray is asked
    ray/logs/<run>     the last part copied from its log, "OFFSET-THERE OFFSET-HERE BYTES"; written before
    ray/wants          exists while Ray's autoscaler may have been asked for nodes
    ray.log            the output of the link and of Ray

Agents (agent.py) report on runs through the link (link.py); while Ray cannot be reached, runs keep their
last observed state. A run on a node that Ray reports dead is lost as soon as it is asked to stop, which the
scheduler does after it has recorded the death of the node.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vctl.errors import Unreachable, VctlError
from vctl.ray.on_ray import wire
from vctl.ray.on_ray.connection import CONNECT_S, LinkConnection, nobody_at
from vctl.ray.on_ray.growth import RayGrowth
from vctl.ray.on_ray.logs import Copies
from vctl.ray.on_ray.rays import JOINS, OVER, Rays, gpus_of
from vctl.ray.on_ray.runs import KnownRuns, LinkedRun
from vctl.ray.on_ray.wire import Packed, Part, RayNode
from vctl.ray.private.raylets import PACKAGE
from vctl.runtime import logfile, processes
from vctl.runtime.protocol import (
    ExitRecord,
    LaunchRequest,
    NodeDemand,
    ReservedParts,
    RunState,
    Runtime,
    Seen,
    check_run_id,
)
from vctl.runtime.records import Records

_LONG_S = 5.0
_LEAVE_S = 8.0


class RayRuntime(Runtime):
    """Launches, observes and stops runs on Ray's nodes. All calls come from one thread."""

    def __init__(self, home: Path, address: str, say: Callable[[str], None] = print) -> None:
        self.home, self.address, self.say = home.absolute(), address, say
        self.boot = processes.boot_id()
        Records(self.home).create()
        self.folder = self.home / "ray"
        self.run_files = KnownRuns(self.folder)
        self.state, copied = self.run_files.identity()
        self.copies = Copies(self.folder / "logs")
        self.runs: dict[str, LinkedRun] = {}
        self.reserved: dict[str, dict[str, list[Part]]] = {}
        """ReservedParts -> its placement groups."""
        self.news: set[str] = set()
        self.nodes: dict[str, RayNode] | None = None
        """Ray's nodes; None until the link has sent them."""
        self.nodes_changed = False
        self.growth = RayGrowth(self.folder, self._send)
        self.link = LinkConnection(self.home, address, self.state, str(self.home))
        self.begun, self.link_is_over = False, False
        if copied:
            self.drop_ended()
        self.runs = self.run_files.load()
        for run in self.runs.values():
            self.reserved.setdefault(run.reservation, {}).update(run.groups)
        self.copies.load({run_id: run.log for run_id, run in self.runs.items()})
        self.rays = Rays(self)
        self.rays.load()

    # ---- the link ----

    def connect(self) -> None:
        """Wait for Ray. Raises Unreachable, or VctlError if Ray is not installed."""
        if find_spec("ray") is None:
            raise VctlError("--ray needs Ray, which is not installed", fix=f"pip install '{PACKAGE}'")
        link, until = self.link, time.monotonic() + CONNECT_S
        link.failure = nobody_at(self.address)
        while not (link.connected and self.nodes is not None):
            if (link.channel is None and link.failure) or time.monotonic() > until:
                link.drop()
                raise Unreachable(
                    f"Ray cannot be reached at {self.address}: {link.failure or f'no answer within {CONNECT_S:g} s'}",
                    fix="check the address, and RAY_AUTH_MODE and RAY_AUTH_TOKEN where that Ray asks for a token;"
                    f" see `ray status` there, and {link.log}",
                )
            link.maintain()
            link.poll.poll(0.2)
            self._receive()

    def _receive(self) -> None:
        was_connected = self.link.connected
        for kind, *words in self.link.receive():
            self._handle(kind, words)
        if was_connected and not self.link.connected:
            self.say("the connection to Ray is lost; runs stay as they were seen last")

    def _handle(self, kind: str, words: list[Any]) -> None:
        if kind == "hello":
            self.link.answered()
            self.say(f"connected to Ray {words[0]} at {self.address}")
            if self.begun:
                self._begin()
        elif kind == "nodes":
            self.nodes = {node[0]: RayNode(*node) for node in words[0]}
            self.nodes_changed = True
            self.news |= {run.main or run_id for run_id, run in self.runs.items() if self._is_dead(run)}
            self._ask_for_nodes()
        elif kind == "wanted":
            self.growth.confirm(*words)
        elif kind == "seen":
            self._saw(*words)
        elif kind == "failed":
            self._fail(*words)
        elif kind == "refused":
            self._refuse(*words)
        elif kind == "say":
            self.say(words[0])
        elif kind == "failure":
            self.link.failure = words[0]
        elif kind == "left":
            self.link_is_over = True

    def _saw(self, run_id: str, seen: Packed, start: int, chunk: bytes, said: str) -> None:
        run = self.runs.get(run_id)
        if run is None:
            return
        try:
            self.copies.write(run_id, run.log, start, chunk, run.log_max_bytes)
        except OSError as error:
            self.say(f"{run.log} cannot be written: {error.strerror}")
            self.link.drop()  # the next link asks for that part again
            return
        if seen[0] == RunState.NEVER_STARTED and run.request is not None:
            return  # its request is on its way
        if seen[0] != RunState.NEVER_STARTED:
            run.request = None
        if seen != run.seen or said != run.said:
            run.seen, run.said = seen, said
            self._note_news(run_id, run)

    def _note_news(self, run_id: str, run: LinkedRun) -> None:
        self.news.add(run.main or run_id)
        if run.kind:
            self.rays.act_on_news(run_id)

    def _fail(self, run_id: str, problem: str) -> None:
        if (run := self.runs.get(run_id)) is not None:
            end = ExitRecord(126, None, 2, problem, False, time.time_ns(), 0, 0, 0)  # noqa: FBT003
            run.failed, run.request = Seen(RunState.EXITED, exit=end), None
            self._note_news(run_id, run)

    def _refuse(self, run_id: str, problem: str) -> None:
        run = self.runs.get(run_id)
        if run is not None and run.request is not None:
            run.failed, run.request = Seen(RunState.REFUSED, problem=problem), None
            self._note_news(run_id, run)

    def _send(self, *message: Any) -> None:
        if self.begun:
            self.link.send(message)

    def _begin(self) -> None:
        """Send a new link all runs and reservations; it ends all others on the nodes."""
        runs = {
            run_id: (run.node_id, run.seen, self.copies.copied(run_id), run.said)
            for run_id, run in self.runs.items()
            if run.failed is None and not self._is_dead(run)
        }
        self._send("begin", runs, sorted({name for groups in self.reserved.values() for name in groups}))
        self.growth.begin()
        self._ask_for_nodes()
        for run_id, run in self.runs.items():
            if run.request is not None:
                self._send(*run.request, run.shown)
            elif run.shown:
                self.send_shown(run_id, run)
            if run.stop is not None:
                self._send_stop(run_id, run)

    def request_nodes(self, nodes: Sequence[NodeDemand]) -> None:
        """Ask Ray's autoscaler for these nodes; this replaces earlier requests."""
        if nodes != self.growth.target:
            self.growth.target = nodes
            self._ask_for_nodes()

    def _ask_for_nodes(self) -> None:
        if self.begun and self.link.connected and self.nodes is not None:
            self.growth.ask(self.nodes)

    # ---- the protocol ----

    def prepare(self) -> None:
        """Start the link to Ray, without waiting."""
        self.link.maintain()

    def fileno(self) -> int:
        """A descriptor that is readable when there is a message of the link."""
        return self.link.poll.fileno()

    def changes(self) -> set[str]:
        """Runs with news; also restarts the link and satellites."""
        self.link.maintain()
        self._receive()
        self.rays.restart_due()
        news, self.news = self.news, set()
        return news

    def due_s(self) -> float:
        """Seconds until ``changes`` has to be called at the latest."""
        return self.link.due_s(_LONG_S)

    def assign(self) -> int:
        """Always 1: the agent of a run's node assigns the number of its supervisor."""
        return 1

    def launch(self, request: LaunchRequest) -> None:
        """Let a run start on its node when its resources are reserved."""
        check_run_id(request.run_id)
        reserved = request.reservation
        run = self.runs.get(request.run_id)
        if reserved is None:
            self.runs[request.run_id] = LinkedRun(request.node_id, "", request.log_path, 0, {})
            self._fail(request.run_id, f"node {request.node_id} is not a node of the Ray cluster: remove it")
            return
        if run is not None and run.seen is not None and run.seen[0] != RunState.NEVER_STARTED:
            return  # it has started
        if run is None:
            name = wire.reservation_name(self.state, reserved.name)
            more = self.rays.words(request) if request.ray else {}
            groups = self.reserve(name, reserved)
            run = LinkedRun(request.node_id, name, request.log_path, request.log_max_bytes, groups, **more)
            self.run_files.keep(request.run_id, run)
            self.runs[request.run_id] = run
            os.close(logfile.open_for_writing(os.fsencode(request.log_path)))
        own = {reserved.own}
        if request.ray:
            own = self.rays.begin(request.run_id, run, request.shown or {"nodes": []})
        self.begin_launch(request.run_id, wire.packed_request(request), own)

    def reserve(self, name: str, reserved: ReservedParts) -> dict[str, list[Part]]:
        """The placement groups of a reservation; adds one for resources that none of them has yet."""
        groups = self.reserved.setdefault(name, {})
        if missing := wire.missing(reserved.parts, (part for parts in groups.values() for part in parts)):
            groups[f"{name}.{len(groups)}"] = missing
        return dict(groups)

    def begin_launch(self, run_id: str, packed: Packed, own: set[str]) -> None:
        """Send the request of a run; each later link gets it again until the agent knows the run."""
        run = self.runs[run_id]
        groups = [wire.group_of(name, parts, own) for name, parts in run.groups.items()]
        planned = [(vnode_id, gpu) for vnode_id in own for gpu in wire.planned_in(packed[2])]
        self._choose_devices(run_id, run, planned if run.kind in ("", JOINS) else gpus_of(run.shown))
        run.request = ("launch", packed, run.node_id, groups, run.devices, run.kind)
        self._send(*run.request, run.shown)

    def send_shown(self, run_id: str, run: LinkedRun) -> None:
        """Send the document of a run of a Ray, which it gets when the virtual nodes in it are reserved."""
        own = {vnode["id"] for vnode in json.loads(run.shown).get("nodes", ())}
        reserved = self.reserved.get(run.reservation, run.groups)
        groups = [wire.group_of(name, parts, own) for name, parts in reserved.items()]
        if run.kind != JOINS:
            self._choose_devices(run_id, run, gpus_of(run.shown))
        self._send(
            "show", run_id, run.node_id, [group for group in groups if group[2]], run.devices, run.shown
        )

    def _choose_devices(self, run_id: str, run: LinkedRun, planned: list[tuple[str, str]]) -> None:
        """Choose the run's own GPUs among the reserved ones, without those of other present runs."""
        others = (
            other.devices
            for other_id, other in self.runs.items()
            if other.devices
            and other.reservation == run.reservation
            and self.present_state(other_id).state not in OVER
        )
        devices = wire.indices_of(planned, others) if planned else {}
        if devices != run.devices:
            run.devices = devices
            self.run_files.keep(run_id, run)

    def show(self, run_id: str, shown: Mapping[str, Any], reservation: ReservedParts) -> None:
        """Send each keeper of a job's Ray its part of the virtual nodes."""
        self.rays.show(run_id, shown, reservation)

    def given_up(self, run_id: str) -> str:
        """The id of the present request to use less, if all keepers of a job's Ray have carried it out."""
        return self.rays.given_up(run_id)

    def observe(self, run_id: str) -> Seen:
        """The last observed state of a run. A command with a Ray is over only after its satellites."""
        seen, run = self.present_state(run_id), self.runs.get(run_id)
        if run is not None and run.kind and seen.state in OVER and self.rays.go_on(run_id):
            return Seen(RunState.RUNNING, seen.start)
        return seen

    def present_state(self, run_id: str) -> Seen:
        """The last observed state of one run, regardless of satellites."""
        run = self.runs.get(run_id)
        if run is None:
            return Seen(RunState.NEVER_STARTED)
        if run.failed is not None:
            return run.failed
        seen = Seen(RunState.STARTING) if run.seen is None or run.request else wire.seen_of(run.seen)
        if seen.exit is not None and seen.exit.stopped and run.stop is None:
            return Seen(
                RunState.RUNNING, seen.start
            )  # the guard has stopped it: the scheduler has to learn first that the node is dead
        if seen.state is not RunState.EXITED and run.stop is not None and self._is_dead(run):
            return Seen(RunState.LOST, seen.start, problem="Ray reports the death of its node")
        return seen

    def _is_dead(self, run: LinkedRun) -> bool:
        if self.nodes is None:
            return False
        node = self.nodes.get(run.node_id)
        return node is None or bool(node.death)

    def stop(self, run_id: str, *, grace_s: float, signo: int = signal.SIGTERM) -> None:
        """Signal the whole tree, and kill the rest after the grace. A run that has not started never will."""
        if (run := self.runs.get(run_id)) is None:
            return
        until = time.monotonic() + grace_s
        run.stop = (until if run.stop is None else min(until, run.stop[0]), signo)
        if self._is_dead(run) or (run.seen is not None and run.seen[0] == RunState.EXITED):
            self.news.add(run.main or run_id)
        self._send_stop(run_id, run)

    def _send_stop(self, run_id: str, run: LinkedRun) -> None:
        assert run.stop is not None
        until, signo = run.stop
        self._send("stop", run_id, run.node_id, max(0.0, until - time.monotonic()), int(signo))

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        """Send a signal; False if the run has no process, or if Ray cannot be reached."""
        run = self.runs.get(run_id)
        if run is None or self.observe(run_id).state is not RunState.RUNNING or not self.link.connected:
            return False
        self._send("signal", run_id, run.node_id, int(signo), tree)
        return True

    def known_runs(self) -> list[str]:
        """Runs that may have processes."""
        return sorted(run_id for run_id, run in self.runs.items() if not run.main)

    def clear_lost(self, run_id: str) -> tuple[int, ...]:  # noqa: ARG002
        """Always empty: the agent or the guard of the node has killed all processes of a lost run."""
        return ()

    def forget(self, run_id: str) -> None:
        """Forget a run that is over; after the last run of a reservation, the reservation is released."""
        run = self.runs.get(run_id)
        if run is None:
            return
        if run.kind:
            self.rays.forget(run_id)
        del self.runs[run_id]
        self.news.discard(run_id)
        self.copies.forget(run_id)
        self.run_files.forget(run_id)
        if not self._is_dead(run):
            self._send("forget", run_id, run.node_id)
        if not any(other.reservation == run.reservation for other in self.runs.values()):
            self._send("release", sorted(self.reserved.pop(run.reservation, run.groups)))

    def drop_ended(self) -> None:
        """Forget all runs, because the tables are not those that the runs belong to."""
        self.run_files.clear()
        self.runs.clear()
        self.reserved.clear()

    def settle(self, live: Mapping[str, int]) -> None:
        """Forget the runs that are over and not in ``live``; the first call also begins to use the link."""
        for run_id in [run_id for run_id in self.known_runs() if run_id not in live]:
            if self.observe(run_id).state in (*OVER, RunState.NEVER_STARTED):
                self.forget(run_id)
        if not self.begun:
            self.begun = True
            self._begin()

    def restore(self) -> None:
        """Make removed directories again."""
        Records(self.home).restore()
        self.run_files.make()

    def close(self) -> None:
        """Close the runtime; runs continue, and agents without runs end."""
        if self.link.connected and self.begun:
            self.request_nodes([])
            self._send("leave")
            until = time.monotonic() + _LEAVE_S
            while not self.link_is_over and self.link.channel is not None and time.monotonic() < until:
                self.link.poll.poll(0.1)
                self._receive()
        self.link.drop()
        self.copies.close()
