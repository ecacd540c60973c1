"""A scheduler's driver in a Ray cluster: a separate process, the only one of the scheduler that imports Ray.

Run as `python -m vctl.ray.on_ray.link ADDRESS STATE HOME`, with its channel to the scheduler as standard
input. When Ray's control service is gone, Ray may hang or end its process; the scheduler then starts another
link. A link has no state of its own: it is in Ray, on the nodes, or in the scheduler's first message.

    from the scheduler  begin RUNS NAMES · launch REQUEST NODE GROUPS DEVICES KIND SHOWN
                        show RUN NODE GROUPS DEVICES SHOWN · stop RUN NODE GRACE SIGNAL
                        signal RUN NODE SIGNAL TREE · forget RUN NODE · release NAMES · want BUNDLES · leave
    to the scheduler    hello · nodes NODES · wanted BUNDLES · seen RUN SEEN OFFSET CHUNK SAID
                        failed RUN MESSAGE · refused RUN MESSAGE · say TEXT · left
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vctl.ray.on_ray import wire
from vctl.ray.on_ray.agent import Agent
from vctl.ray.on_ray.autoscaler import Autoscaler
from vctl.ray.on_ray.rays import SATELLITE
from vctl.ray.on_ray.reservations import Reservations
from vctl.ray.on_ray.wire import NAMESPACE, DeviceIndices, Packed

NODES_S = 0.5
"""How often the link asks Ray for its nodes."""
GRANT_S = 0.5
"""How long a reservation is waited for before Ray is asked whether others hold what it needs, in seconds.

Its job is RUNNING that long. What a run that has just ended held is free again in Ray before that.
"""
_POLL_S = 10.0
_AGAIN_S = (0.1, 5.0)
_THREADS = 8
_MAX_SAID = 300
_NOT_STARTED = "creation task"
"""A part of Ray's message if an actor could not be created, because its code is missing or failed."""


class NodeDead(Exception):
    """A node is dead, so requests to it are dropped."""


Known = tuple[Packed | None, int, str]
"""The last observed state of a run, the received bytes of its log, and its keeper's last message."""


class LinkNode:
    """One node: its agent, and what the scheduler knows of its runs."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.actor: Any = None
        self.making = asyncio.Lock()
        self.known: dict[str, Known] = {}
        self.follower: asyncio.Task[None] | None = None


class Link:
    """One connection to Ray."""

    def __init__(self, channel: socket.socket, state: str, home: str) -> None:
        self.channel, self.state, self.home = channel, state, home
        self.nodes: dict[str, LinkNode] = {}
        self.alive: set[str] | None = None
        self.waiting: dict[str, asyncio.Event] = {}
        """Run that waits for its reservation -> an event, set when the run is to be stopped."""
        self.stops: dict[str, asyncio.Task[None]] = {}
        self.launches: dict[str, asyncio.Task[None]] = {}
        self.shows: dict[str, asyncio.Task[None]] = {}
        self.reservations = Reservations(state, self.say)
        self.tasks: set[asyncio.Task[None]] = set()
        self.ending: set[asyncio.Task[None]] = set()
        """Tasks that ``leave`` waits for: they forget runs, release reservations or ask the autoscaler."""
        self.said: set[str] = set()
        self.autoscaler = Autoscaler(self.tell, self.say)
        self.agent = ray.remote(Agent)

    def tell(self, *message: Any) -> None:
        """Send a message to the scheduler."""
        self.channel.sendall(wire.framed(message))

    def say(self, text: str) -> None:
        """Send the scheduler a text to log; each text only once."""
        if text not in self.said:
            self.said.add(text)
            self.tell("say", text)

    def begin_task(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a background task; the link ends when the task fails."""
        task = asyncio.ensure_future(doing)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)

    # ---- nodes ----

    async def follow_nodes(self) -> None:
        """Send Ray's nodes to the scheduler whenever they change."""
        sent: list[Packed] = []
        while True:
            nodes = [wire.node_of(entry) for entry in await asyncio.to_thread(ray.nodes)]
            packed = sorted(
                (node.node_id, node.address, dict(node.amounts), dict(node.labels), node.death)
                for node in nodes
            )
            self.alive = {node.node_id for node in nodes if not node.death}
            if packed != sent:
                self.tell("nodes", packed)
                sent = packed
            await asyncio.sleep(NODES_S)

    def node(self, node_id: str) -> LinkNode:
        """A node, alive or dead."""
        return self.nodes.setdefault(node_id, LinkNode(node_id))

    async def actor(self, node: LinkNode) -> Any:
        """The agent of a node, made if there is none. Raises NodeDead, RayError."""
        if self.alive is not None and node.node_id not in self.alive:
            raise NodeDead(node.node_id)
        async with node.making:
            if node.actor is None:
                made = await asyncio.to_thread(self._make, node.node_id)
                if await made.hello.remote() != wire.FORMAT:
                    self.say(f"node {node.node_id} has another version of vctl: install the same there")
                node.actor = made
        return node.actor

    def _make(self, node_id: str) -> Any:
        """Get or create the agent: an actor without resources, detached, on exactly this node."""
        options = {
            "name": wire.agent_name(self.state, node_id), "namespace": NAMESPACE, "lifetime": "detached",
            "get_if_exists": True, "num_cpus": 0, "max_restarts": 0, "max_concurrency": _THREADS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        }  # fmt: skip
        return self.agent.options(**options).remote(self.state, node_id, self.home)

    async def ask(self, node_id: str, asking: Callable[[Any], Any], run_id: str = "") -> Any:
        """Ask the agent of a node until it answers; None if the node dies before, or the request fails.

        A failure is reported to the scheduler, as the end of the run if one is named.
        """
        node, pause_s = self.node(node_id), _AGAIN_S[0]
        while True:
            try:
                return await asking(await self.actor(node))
            except NodeDead:
                return None
            except RayTaskError as error:
                problem = f"the agent on node {node_id} failed: {error.cause!r}"
                self.say(problem)
                if run_id:
                    self.tell("failed", run_id, problem)
                return None
            except RayError as error:
                node.actor = None
                problem = f"the agent on node {node_id} does not start: {_last(error)}"
                self.say(f"the agent on node {node_id} does not answer: {_last(error)}")
                if run_id and _NOT_STARTED in str(error):
                    self.tell("failed", run_id, f"{problem}; vctl and Ray must be installed there")
                    return None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_S[1])

    # ---- runs ----

    def follow(self, node_id: str, run_id: str, known: Known) -> None:
        """Report news of a run to the scheduler from now on."""
        node = self.node(node_id)
        node.known.setdefault(run_id, known)
        if node.follower is None or node.follower.done():
            node.follower = self.begin_task(self._follow(node))

    async def _follow(self, node: LinkNode) -> None:
        while node.known:
            news = await self.ask(node.node_id, lambda actor: actor.poll.remote(dict(node.known), _POLL_S))
            if news is None:
                if self.alive is not None and node.node_id not in self.alive:
                    node.known.clear()  # a dead node sends nothing
                await asyncio.sleep(_AGAIN_S[1] / 5)
                continue
            for run_id, (seen, start, chunk, said) in news.items():
                if run_id in node.known:
                    node.known[run_id] = seen, start + len(chunk), said
                    self.tell("seen", run_id, seen, start, chunk, said)

    async def launch(
        self,
        request: Packed,
        node_id: str,
        groups: list[Packed],
        devices: DeviceIndices,
        kind: str,
        shown: str,
    ) -> None:
        """Let a run start when its resources are reserved. A job is refused if others hold them.

        A stop ends the wait. It is sent to the agent before the launch, so that the run does not start.
        """
        run_id = request[0]
        stopped = self.waiting[run_id] = asyncio.Event()
        reserving = asyncio.ensure_future(self.reservations.wait_for(groups))
        stop = asyncio.ensure_future(stopped.wait())
        try:
            # a task waits where it is: its job runs, and has resources reserved already
            limit_s = None if "VCTL_TASK_ID" in request[2] or kind == SATELLITE else GRANT_S
            waiting = {reserving, stop}
            while not (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=limit_s))[0]:
                if problem := await asyncio.to_thread(self.reservations.shortage, groups):
                    self.tell("refused", run_id, problem)
                    return
            if reserving.done():
                chosen = wire.chosen_of(devices, reserving.result())
                request = (*request[:2], wire.devices(request[2], chosen), *request[3:])
                shown = wire.with_devices(shown, chosen)
        finally:
            stop.cancel()
            reserving.cancel()
            self.waiting.pop(run_id, None)
        if (stopping := self.stops.get(run_id)) is not None:
            await stopping  # so that the agent gets the stop first
        await self.ask(node_id, lambda actor: actor.launch.remote(request, kind, shown), run_id)

    async def show(
        self, run_id: str, node_id: str, groups: list[Packed], devices: DeviceIndices, shown: str
    ) -> None:
        """Send the agent the document of a run of a Ray when its virtual nodes are reserved."""
        if (launch := self.launches.get(run_id)) is not None:
            await asyncio.wait({launch})  # a cancelled wait does not cancel the launch
        chosen = wire.chosen_of(devices, await self.reservations.wait_for(groups))
        shown = wire.with_devices(shown, chosen)
        await self.ask(node_id, lambda actor: actor.show.remote(run_id, shown))

    # ---- messages of the scheduler ----

    async def begin(self, runs: Mapping[str, tuple[str, Packed | None, int, str]], names: list[str]) -> None:
        """Follow these runs; end all other runs and reservations, which an earlier scheduler left."""
        of_node: dict[str, list[str]] = {}
        for run_id, (node_id, seen, offset, said) in runs.items():
            of_node.setdefault(node_id, []).append(run_id)
            self.follow(node_id, run_id, (seen, offset, said))
        for name in await asyncio.to_thread(self.reservations.stale, set(names)):
            await asyncio.to_thread(self.reservations.remove, name)
        for node_id in await self._nodes_with_agents():
            self.begin_task(self._settle(node_id, of_node.get(node_id, [])))

    async def _settle(self, node_id: str, live: list[str]) -> None:
        await self.ask(node_id, lambda actor: actor.settle.remote(live))

    async def _nodes_with_agents(self) -> list[str]:
        actors = {actor["name"] for actor in await asyncio.to_thread(list_named_actors, True)}  # noqa: FBT003
        alive = sorted(self.alive or ())
        return [node_id for node_id in alive if wire.agent_name(self.state, node_id) in actors]

    async def leave(self) -> None:
        """End the agents without runs, after all requests to forget runs were carried out."""
        if self.ending:
            await asyncio.wait(self.ending)
        for node_id in await self._nodes_with_agents():
            actor = await self.actor(self.node(node_id))
            if await actor.leave.remote():
                ray.kill(actor)
        self.tell("left")

    async def handle(self, kind: str, words: Packed) -> None:
        """Carry out a message of the scheduler; longer work is done in background tasks."""
        if kind == "begin":
            await self.begin(*words)
        elif kind == "want":
            self.ending.add(self.begin_task(self.autoscaler.want(*words)))
        elif kind == "launch":
            request, node_id, *rest = words
            self.follow(node_id, request[0], (None, 0, ""))
            self.launches[request[0]] = self.begin_task(self.launch(request, node_id, *rest))
        elif kind == "show":
            if (before := self.shows.get(words[0])) is not None:
                before.cancel()
            self.shows[words[0]] = self.begin_task(self.show(*words))
        elif kind == "stop":
            run_id, node_id, grace_s, signo = words
            self.stops[run_id] = self.begin_task(self._stop(run_id, node_id, grace_s, signo))
        elif kind == "signal":
            run_id, node_id, signo, tree = words
            self.begin_task(
                self._ask_later(node_id, lambda actor: actor.signal_run.remote(run_id, signo, tree))
            )
        elif kind == "forget":
            run_id, node_id = words
            self.node(node_id).known.pop(run_id, None)
            for tasks in (self.stops, self.launches, self.shows):
                tasks.pop(run_id, None)
            self.ending.add(
                self.begin_task(self._ask_later(node_id, lambda actor: actor.forget.remote([run_id])))
            )
        elif kind == "release":
            self.ending |= {self.begin_task(self.reservations.release(name)) for name in words[0]}
        elif kind == "leave":
            self.begin_task(self.leave())

    async def _stop(self, run_id: str, node_id: str, grace_s: float, signo: int) -> None:
        await self.ask(node_id, lambda actor: actor.stop.remote(run_id, grace_s, signo))
        if (waits := self.waiting.get(run_id)) is not None:
            waits.set()

    async def _ask_later(self, node_id: str, asking: Callable[[Any], Any]) -> None:
        await self.ask(node_id, asking)


def _last(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")[:_MAX_SAID]


async def serve(channel: socket.socket, inbox: asyncio.Queue[Packed], state: str, home: str) -> None:
    """Serve the scheduler until its channel ends."""
    link = Link(channel, state, home)
    link.tell("hello", ray.__version__)
    link.begin_task(link.follow_nodes())
    while link.alive is None:
        await asyncio.sleep(0.01)
    while True:
        kind, *words = await inbox.get()
        await link.handle(kind, tuple(words))


def _receive(channel: socket.socket, loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[Packed]) -> None:
    received = bytearray()
    while data := channel.recv(1 << 16):
        received += data
        for message in wire.unframed(received):
            loop.call_soon_threadsafe(inbox.put_nowait, message)
    os._exit(0)  # even if Ray hangs


def main(words: list[str]) -> None:
    """Connect to Ray and serve; a failure to connect is reported to the scheduler."""
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    address, state, home = words
    loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
    inbox: asyncio.Queue[Packed] = asyncio.Queue()
    threading.Thread(target=_receive, args=(channel, loop, inbox), daemon=True).start()
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        loop.run_until_complete(serve(channel, inbox, state, home))
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        with contextlib.suppress(OSError):
            channel.sendall(wire.framed(("failure", _last(error))))
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
