"""A Ray cluster for one job: started before its command, kept in step with its virtual nodes, ended with it.

Run as a script, `python -I -S private_ray.py NODES FOLDER plain|dashboard -- COMMAND`, as the main process of a run. It
forks a keeper, waits until the keeper has started Ray, and becomes COMMAND, with RAY_ADDRESS in its environment. So
signals and the exit code are those of the command itself.

    NODES     a file with the virtual nodes, as `vctl/daemon/private_rays.py` writes it; read again when it is replaced
    FOLDER    the temporary directory of this Ray alone; its name is short, as unix sockets lie in it

The keeper is the parent of every process of this Ray: of the head (GCS and its raylet) for the first virtual node and
of one raylet for each other one. It starts again a raylet that ended, adds one for what a virtual node gains, and
drains the last ones when a virtual node shrinks. When the head ends, it kills the command, which could only hang; when
the command ends, it kills all of Ray and removes FOLDER. When the keeper is killed the supervisor ends what is left.
The raylets of other machines have keepers there (ray_satellite.py); what they need of each other goes through the
scheduler (on_ray/rays.py), by NODES and the file beside it.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time

MYPY = False
if MYPY or __package__:
    from typing import Any, NoReturn

    from vctl.runtime import processes, ray_gcs, ray_growth, ray_parent, raylets, watch
    from vctl.runtime.ray_parent import START_S, Failed, Over, Parent, say
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import processes
    import ray_gcs
    import ray_growth
    import ray_parent
    import raylets
    import watch
    from ray_parent import START_S, Failed, Over, Parent, say

DASHBOARD, PLAIN = "dashboard", "plain"
HERE = "127.0.0.1"
DRAIN_S = 10
TRIES = 3
"""How often a start is tried: Ray gives up after 30 s, which a busy machine may need."""
_AGAIN_S = (1.0, 30.0)  # first and longest wait before a raylet that ended is started again
_LOOK_S = 0.5


def main(words: list[str]) -> "NoReturn":
    """Become the command, or exit with 1, 126 or 127."""
    nodes, folder, kind, _, *command = words
    if shutil.which(command[0]) is None:
        _refuse(f"cannot run {command[0]}: there is no such program", 127)
    ray = raylets.program(command, os.environ.get("PATH", os.defpath))
    if ray is None:
        _refuse(f"cannot start Ray: it is not installed; pip install '{raylets.PACKAGE}'", 127)
    driver = os.getpid()
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        if os.fork():
            os._exit(0)  # so the keeper is no child of the command, which may wait for its children
        os.close(ours)
        Keeper(ray, nodes, folder, driver, theirs).keep(dashboard=kind == DASHBOARD)
    os.waitpid(child, 0)
    os.close(theirs)
    with open(ours, "rb") as answer:
        told = answer.read()
    if not told:
        sys.exit(1)  # the keeper has said why
    os.environ.update(json.loads(told))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _refuse(f"cannot run {command[0]}: {error.strerror}", 126)


class Raylet:
    """A raylet that was started: its part of a virtual node, its pid, and until when it may drain."""

    def __init__(self, name: str, part: "dict[str, Any]", pid: int, node_id: str) -> None:
        self.name, self.part, self.pid, self.node_id = name, part, pid, node_id
        self.until: float | None = None


class Keeper(Parent):
    """The process that has started this Ray, and ends it."""

    def __init__(self, ray: str, nodes: str, folder: str, driver: int, answer: int) -> None:
        super().__init__(ray, folder)
        self.nodes, self.answer, self.driver = nodes, answer, driver
        self.raylets: dict[str, list[Raylet]] = {}
        """Virtual node -> its raylets, the first one first."""
        self.head: set[int] = set()
        """Processes without which this Ray is over."""
        self.count = 0
        self.pause_s, self.not_before, self.due = _AGAIN_S[0], 0.0, 0.0
        self.growth: ray_growth.Growth | None = None
        self.answered = ""
        self.says: dict[str, Any] = {}

    def keep(self, *, dashboard: bool) -> "NoReturn":
        """From the start to the end of this Ray."""
        code = 0
        try:
            self.prepare()
            self.start_all(dashboard=dashboard)
            self.serve()
        except Over:
            pass
        except (Failed, OSError, ValueError) as error:
            say(f"Ray did not start: {error}")
            code = 1
        except BaseException as error:  # noqa: BLE001  # whatever it is, Ray must not be left behind
            say(f"the keeper of Ray failed: {error!r}")
            code = 1
        self.end()
        os._exit(code)

    def prepare(self) -> None:
        """Become the parent of all that comes from here, deaf to what the command is told."""
        os.setsid()
        self.begin()
        try:
            self.ends = self.handle = os.pidfd_open(self.driver)
        except ProcessLookupError:
            raise Over from None
        self.told = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
        self.env = {**self.plain, **raylets.SETTINGS, **self.told}
        self.env["DASHBOARD_METRIC_PORT"] = str(raylets.free_port())
        self.env.pop("OMP_NUM_THREADS", None)

    def begin(self) -> None:
        """Become the parent of all that comes from here."""
        self.become_parent()
        self.watch = watch.Watch()
        self.watch.add(pathlib.Path(self.nodes).parent, watch.MOVED_TO)
        self.make_folder()
        self.own_address = str(self.shown().get("address", ""))
        self.plain = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}

    def make_folder(self) -> None:
        """Make the directory of this Ray."""
        os.mkdir(self.folder, 0o700)
        self.watch.add(pathlib.Path(self.folder), watch.MOVED_TO)

    def start_all(self, *, dashboard: bool) -> None:
        """Start the head and all raylets, then let the command go on."""
        first, *others = self.wanted(self.shown(), {}).values()
        self.client, port = raylets.held_port()
        held, taken = raylets.held_port()
        head = [
            "--head", "--port=0", f"--ray-client-server-port={port}", "--no-monitor",
            f"--include-dashboard={str(dashboard).lower()}", f"--dashboard-host={self.own_address or HERE}",
            # where that port is taken, Ray goes on without its dashboard, of which it starts a part in any case
            f"--dashboard-port={0 if dashboard else taken}",
        ]  # fmt: skip
        for left in reversed(range(TRIES)):
            try:
                self.start(first, first, head)
                break
            except Failed:
                if not left:
                    raise
                super().end()
                shutil.rmtree(self.folder)
                self.make_folder()
        held.close()
        with open(f"{self.folder}/{ray_parent.TEMPORARY}/ray_current_cluster", encoding="utf-8") as file:
            self.address = file.read().strip()
        self.head = {self.raylets[first["id"]][0].pid, *self.pids(b"/gcs_server")}
        join = {"ray": self.ray, "address": self.address, "env": {**raylets.SETTINGS, **self.told}}
        ray_parent.put(f"{self.folder}/{ray_parent.JOIN}", join)
        self.tell(join=join)
        self.start_others(others)
        self.wait_for_others()
        self.told |= {
            "RAY_ADDRESS": self.address,
            "RAY_enable_autoscaler_v2": "1",
        }  # request_resources asks the GCS
        if dashboard:
            url = self.dashboard()
            self.told["RAY_API_SERVER_ADDRESS"] = url
            say(f"Ray dashboard: {url}, token {self.told['RAY_AUTH_TOKEN']}")
        else:
            say("Ray runs without its dashboard, so ray.util.state does not answer; --ray-dashboard adds it")
        os.write(self.answer, json.dumps(self.told).encode())
        os.close(self.answer)

    def start_others(self, others: "list[dict[str, Any]]") -> None:
        """Start the raylets that join. Raises Failed, Over."""
        for node in others:
            for left in reversed(range(TRIES)):
                try:
                    self.start(node, node, self.joins())
                    break
                except Failed:
                    if not left:
                        raise

    def wait_for_others(self) -> None:
        """Wait for the raylets on other machines. Raises Failed, Over."""
        while True:
            shown = self.shown()
            if shown.get("failed"):
                raise Failed("a raylet on another node did not start")
            others = self.wanted({"nodes": shown.get("others", [])}, {})
            if others.keys() <= set(shown.get("here", ())):
                self.tell(goes=True)
                return
            self.pause(START_S, [self.watch.fileno()])
            self.watch.read()

    def tell(self, **news: "Any") -> None:
        """Say what other machines need to know; on one machine nobody does."""
        says = {**self.says, **news}
        if self.own_address and says != self.says:
            ray_parent.put(f"{self.nodes}{ray_parent.SAID}", says)
            self.says = says

    def shown(self) -> "dict[str, Any]":
        """What the scheduler shows of the virtual cluster now."""
        with open(self.nodes, encoding="utf-8") as file:
            shown: dict[str, Any] = json.load(file)
        return shown

    def wanted(self, shown: "dict[str, Any]", leaving: "dict[str, Any]") -> "dict[str, dict[str, Any]]":
        """The virtual nodes as raylets are to have them: as they are, less what somebody is about to take."""
        nodes = {node["id"]: node for node in shown["nodes"] if node["resources"] or not node["growth"]}
        for vnode_id, most in leaving.get("nodes", {}).items():
            less = raylets.clipped(nodes.pop(vnode_id, {"resources": {}}), most)
            if less["resources"]:
                nodes[vnode_id] = less
        return nodes

    def leaving(self, shown: "dict[str, Any]") -> "dict[str, Any]":
        """What was asked to be left, as long as it is to be."""
        asked: dict[str, Any] = shown.get("leaving", {})
        try:
            with open(f"{self.nodes}{ray_parent.LEAVING}", encoding="utf-8") as file:
                asked = json.load(file)
        except (FileNotFoundError, ValueError):
            pass
        return asked if asked and time.time() < asked["until"] else {}

    def joins(self) -> list[str]:
        """The options of a raylet that is not the head's; one log monitor reads the logs of all."""
        return [f"--address={self.address}", "--include-log-monitor=false"]

    def start(self, node: "dict[str, Any]", part: "dict[str, Any]", options: list[str]) -> None:
        """Start a raylet for a part of a virtual node, and wait until it has joined. Raises Failed, Over."""
        self.count += 1
        if self.own_address:
            options = [*options, f"--node-ip-address={self.own_address}"]
        name = part["id"] if part["id"] not in self.raylets else f"{part['id']}#{self.count}"
        pid, node_id = self.start_raylet(options, part, name, node["cores"])
        self.raylets.setdefault(node["id"], []).append(Raylet(name, part, pid, node_id))

    def dashboard(self) -> str:
        """Where the dashboard is, as Ray's command has said. Raises Failed."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            found = re.search(re.escape(self.own_address or HERE) + ":[0-9]+", file.read())
        if found is None:
            raise Failed(f"its dashboard did not start:\n{self.last_lines()}")
        return f"http://{found[0]}"

    # ---- while the command runs ----

    def serve(self) -> None:
        """Keep raylets and virtual nodes in step until the command, or the head, has ended."""
        while True:
            self.check()
            for of_node in self.raylets.values():
                for one in [one for one in of_node if one.pid in self.ended]:
                    of_node.remove(one)
                    if one.until is None:
                        say(f"the raylet of {one.name} has ended; another one is started")
            self.ended.clear()
            try:
                shown = self.shown()
                self.due = self.follow(shown)
                self.grow(shown)
            except Failed as error:
                say(f"a raylet did not start: {error}")
                self.pause_s = min(2 * self.pause_s, _AGAIN_S[1])
            except FileNotFoundError:
                pass  # the job is being ended
            if not self.ended:
                self.pause(self.due_s(), [self.watch.fileno(), *(self.growth.inputs if self.growth else ())])
            self.watch.read()

    def check(self) -> None:
        """Without its head a Ray is over. Raises Over."""
        if any(pid in self.ended for pid in self.head):
            say("the head of the job's Ray has ended; the command cannot go on without it and is killed")
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            raise Over

    def due_s(self) -> float:
        """When to look again without being woken."""
        if any(one.until is not None for of_node in self.raylets.values() for one in of_node):
            return _LOOK_S
        times = [self.not_before - time.monotonic(), self.due - time.time()]
        return min((seconds for seconds in times if seconds > 0), default=START_S)

    def follow(self, shown: "dict[str, Any]") -> float:
        """Start, drain and end raylets as the virtual nodes are now; until when a part of them is to be left.

        Raises Failed, Over, FileNotFoundError.
        """
        leaving = self.leaving(shown)
        wanted = self.wanted(shown, leaving)
        now = time.monotonic()
        for vnode_id, of_node in self.raylets.items():
            node = wanted.get(vnode_id, {"resources": {}})
            staying = [one for one in of_node if one.until is None]
            while (
                staying
                and staying[-1].pid not in self.head
                and raylets.exceeds(node, [one.part for one in staying])
            ):
                one = staying.pop()
                one.until = time.monotonic() + DRAIN_S
                self.drain(one.node_id, ray_gcs.PREEMPTED, DRAIN_S, "the virtual cluster gives it back")
            for one in of_node:
                if one.until is not None and now > one.until:
                    processes.send(one.pid, signal.SIGKILL)
        draining = any(
            one.until for vnode_id in leaving.get("nodes", ()) for one in self.raylets.get(vnode_id, ())
        )
        if leaving and not draining and self.answered != leaving["id"]:
            self.answered = leaving["id"]
            ray_parent.put(f"{self.nodes}{ray_parent.LEFT}", {"id": self.answered})
            self.tell(left=self.answered)
        for vnode_id, node in wanted.items():
            of_node = self.raylets.setdefault(vnode_id, [])
            part = raylets.missing(node, [one.part for one in of_node])  # what drains is not free yet
            if part is not None:
                if now < self.not_before:
                    continue
                self.not_before = now + self.pause_s
                self.start(node, part, self.joins())
                self.pause_s = _AGAIN_S[0]
        return float(leaving.get("until", 0))

    def grow(self, shown: "dict[str, Any]") -> None:
        """Let the virtual cluster grow by what this Ray has to do, and shrink when that is done."""
        if "elastic" in shown and self.growth is None:
            self.growth = ray_growth.Growth(self, self.nodes, self.plain)
        if self.growth is not None:
            self.growth.turn(shown)

    def end(self) -> None:
        """Kill all of this Ray, and remove its files."""
        super().end()
        shutil.rmtree(self.folder, ignore_errors=True)


def _refuse(text: str, code: int) -> "NoReturn":
    say(text)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
