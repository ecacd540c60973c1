"""A Ray cluster for one job: started before its command, kept in step with its virtual nodes, ended with it.

Run as a script, `python -I -S private_ray.py NODES FOLDER plain|dashboard|lazy -- COMMAND`, as the main
process of a run. The script forks a keeper, waits until the keeper has started Ray, and replaces itself (exec)
by COMMAND, with RAY_ADDRESS in the environment. So the main process has the signals and the exit code of
COMMAND. The processes of Ray have RAY_ADDRESS too (raylets.environment), and so all that tasks and actors
start.

A lazy Ray costs nothing until something uses it: COMMAND starts at once, and the keeper listens at RAY_ADDRESS
in place of the GCS. The first connection starts Ray; it is refused, as Ray's clients connect again until the
GCS listens there.

    NODES     a file with the virtual nodes, written by vctl/ray/daemon/private_rays.py; read again when replaced
    FOLDER    the temporary directory of this Ray alone; its path is short, because unix sockets are in it

The keeper is the parent of every process of this Ray: of the head (the GCS and a raylet) for the first
virtual node, and of one raylet for each other virtual node. The keeper restarts a raylet that ended, adds a
raylet when a virtual node grows, and drains the newest raylets of a virtual node that shrinks. When the head
ends, the keeper kills the command, which could only hang. When the command ends, the keeper kills all of Ray
and removes FOLDER. When the keeper is killed, the supervisor ends the remaining processes.

The raylets on other machines have keepers there (ray_satellite.py). The keepers exchange messages through the
scheduler (on_ray/rays.py): they read NODES, and write the file NODES.said.
"""

import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

MYPY = False
if MYPY or __package__:
    from typing import Any, NoReturn

    from vctl.ray.private import ray_gcs, ray_growth, ray_parent, raylets
    from vctl.ray.private.ray_parent import START_S, Failed, Over, Parent, say
    from vctl.runtime import processes, spawning, watch
else:
    _HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_HERE, os.path.join(_HERE, "../../runtime")]
    import processes
    import ray_gcs
    import ray_growth
    import ray_parent
    import raylets
    import spawning
    import watch
    from ray_parent import START_S, Failed, Over, Parent, say

DASHBOARD, PLAIN, LAZY = "dashboard", "plain", "lazy"
DRAIN_S = 10
STOP_S = 60.0
"""How long after the word of `ray stop` an end of the head counts as its doing."""
TRIES = 3
"""How often a start is tried: `ray start` gives up after 30 s, and a busy machine may need longer."""
_AGAIN_S = (1.0, 30.0)  # first and longest wait before a raylet that ended is started again
_POLL_S = 0.5
_PACKAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_packages.py")


def main(words: list[str]) -> "NoReturn":
    """Start Ray and become the command. Exits with 1 if Ray does not start, 126 or 127 as a shell would."""
    nodes, folder, kind, _, *command = words
    around = tuple(map(os.fsencode, command)), {**os.environb}, os.getcwdb()
    if (problem := spawning.foreseen(*around)) is not None:
        _refuse(str(problem), problem.exit_code)
    ray = raylets.program(command, os.environ.get("PATH", os.defpath))
    if ray is None:
        _refuse(f"cannot start Ray: it is not installed; pip install '{raylets.PACKAGE}'", 127)
    runtime_env = raylets.to_install(os.environ.get(raylets.JOB_CONFIG, ""))
    if runtime_env and kind == LAZY:
        kind = PLAIN  # Ray installs its packages before the command starts
    driver = os.getpid()
    for name in raylets.ELSEWHERE:
        os.environ.pop(name, None)
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        if os.fork():
            os._exit(0)  # the keeper must be no child of the command, which may wait for all its children
        os.close(ours)
        Keeper(ray, nodes, folder, driver, theirs).keep(kind)
    os.waitpid(child, 0)
    os.close(theirs)
    with open(ours, "rb") as keeper:
        reply = keeper.read()
    if not reply:
        sys.exit(1)  # the keeper has said why
    answer = json.loads(reply)
    os.environ.update(answer["variables"])
    if runtime_env:
        os.environ.update(installed(answer["python"], runtime_env))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _refuse(f"cannot run {command[0]}: {error.strerror}", 126)


def installed(python: str, runtime_env: "dict[str, Any]") -> dict[str, str]:
    """Has Ray install the packages of the job's ``runtime_env``; the variables with which the command finds them."""
    words = [python, _PACKAGES]
    done = subprocess.run(words, input=json.dumps(runtime_env).encode(), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        _refuse("Ray has not installed the packages of the runtime_env", 1)
    answer = json.loads(done.stdout)
    config = raylets.job_config(os.environ[raylets.JOB_CONFIG], answer["runtime_env"])
    return {**answer["variables"], raylets.JOB_CONFIG: config}


class Raylet:
    """A raylet that was started: its part of a virtual node, its pid, and the deadline of its drain."""

    def __init__(self, name: str, part: "dict[str, Any]", pid: int, node_id: str) -> None:
        self.name, self.part, self.pid, self.node_id = name, part, pid, node_id
        self.until: float | None = None


class Keeper(Parent):
    """The parent process of a job's Ray: starts it, keeps it in step with the virtual nodes, and ends it."""

    def __init__(self, ray: str, nodes: str, folder: str, driver: int, answer: int) -> None:
        super().__init__(ray, folder)
        self.nodes, self.driver = nodes, driver
        self.answer: int | None = answer
        """Where the command waits for its environment; None once it has it."""
        self.raylets: dict[str, list[Raylet]] = {}
        """Virtual node -> its raylets, in the order of their start."""
        self.head: set[int] = set()
        """Pids of the GCS and the head's raylet: this Ray is over when one of them ends."""
        self.count = 0
        self.pause_s, self.not_before, self.due = _AGAIN_S[0], 0.0, 0.0
        self.growth: ray_growth.RayletGrowth | None = None
        self.stopped_until = 0.0
        """Until when an end of the head is that of a `ray stop`."""
        self.answered = ""
        self.says: dict[str, Any] = {}

    def keep(self, kind: str) -> "NoReturn":
        """Start Ray, serve until it is over, end it, and exit."""
        code = 0
        try:
            self.prepare()
            if kind == LAZY:
                self.let_go_on({})
                self.wait_for_a_connection()
            while True:
                self.start_all(dashboard=kind == DASHBOARD)
                self.serve()
                self.clear()
                say("`ray stop` has ended the job's Ray; another one starts when something connects to it")
                self.wait_for_a_connection()
        except Over:
            pass
        except (Failed, OSError, ValueError) as error:
            say(f"Ray did not start: {error}")
            code = 1
            if self.answer is None:
                self.kill_the_command("the command cannot go on without it and is killed")
        except BaseException as error:  # noqa: BLE001  # on any error, Ray must not be left behind
            say(f"the keeper of Ray failed: {error!r}")
            code = 1
        self.end()
        os._exit(code)

    def prepare(self) -> None:
        """Prepare the keeper of the head: a session of its own, so that it gets no signals of the command."""
        os.setsid()
        self.begin()
        try:
            self.ends = self.handle = os.pidfd_open(self.driver)
        except ProcessLookupError:
            raise Over from None
        self.gcs, port = raylets.held_port(socket.SO_REUSEADDR)
        host = self.own_address or raylets.own_address()
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.access = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": os.urandom(32).hex(),
            # with autoscaler v2, request_resources sends its request to the GCS
            "RAY_enable_autoscaler_v2": "1",
        }
        self.env = raylets.environment(self.access, self.folder)
        self.env["DASHBOARD_METRIC_PORT"] = str(raylets.free_port())

    def wait_for_a_connection(self) -> None:
        """Wait until something connects to RAY_ADDRESS. Raises Over.

        Meanwhile nothing of the virtual nodes is in use by Ray, so a request to use less is granted at once.
        """
        os.mkdir(f"{self.folder}/{ray_parent.TEMPORARY}")
        # where a program looks that has no RAY_ADDRESS; `ray start` leaves it as it is
        ray_parent.write(f"{self.folder}/{ray_parent.TEMPORARY}/ray_current_cluster", self.address)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", self.gcs.getsockname()[1]))
            listener.listen()
            while not select.select([listener], [], [], 0)[0]:
                self.is_stopping()
                self.reply(self.leaving(self.shown()))
                self.pause(START_S, [listener.fileno(), self.watch.fileno()])
                self.watch.read()

    def begin(self) -> None:
        """Become the subreaper of all processes of Ray, watch NODES, and make FOLDER."""
        self.become_parent()
        self.watch = watch.Watch()
        self.watch.add(pathlib.Path(self.nodes).parent, watch.MOVED_TO)
        self.make_folder()
        self.own_address = str(self.shown().get("address", ""))

    def make_folder(self) -> None:
        """Make FOLDER and watch it."""
        os.mkdir(self.folder, 0o700)
        self.watch.add(pathlib.Path(self.folder), watch.MOVED_TO)

    def start_all(self, *, dashboard: bool) -> None:
        """Start the head and all raylets, then let the command go on."""
        is_first_start = not self.count
        first, *others = self.needed(self.shown(), {}).values()
        self.client, port = raylets.held_port()
        held, busy_port = raylets.held_port()
        head = [
            "--head", f"--port={self.address.rpartition(':')[2]}", f"--ray-client-server-port={port}", "--no-monitor",
            f"--include-dashboard={str(dashboard).lower()}", f"--dashboard-host={self.own_address or raylets.LOOPBACK}",
            # Ray starts a part of its dashboard in any case; if the port is taken, Ray goes on without it
            f"--dashboard-port={0 if dashboard else busy_port}",
        ]  # fmt: skip
        for more_tries in reversed(range(TRIES)):
            try:
                self.start(first, first, head)
                break
            except Failed:
                if not more_tries:
                    raise
                super().end()
                shutil.rmtree(self.folder)
                self.make_folder()
        held.close()
        self.gcs.close()
        self.head = {self.raylets[first["id"]][0].pid, *self.pids(b"/gcs_server")}
        join = {"ray": self.ray, "address": self.address, "env": self.access}
        ray_parent.put(f"{self.folder}/{ray_parent.JOIN}", join)
        self.tell(join=join)
        self.start_others(others)
        self.wait_for_others()
        more = {}
        if dashboard:
            more["RAY_API_SERVER_ADDRESS"] = more["RAY_DASHBOARD_ADDRESS"] = url = self.dashboard()
            say(f"Ray dashboard: {url}, token {self.access['RAY_AUTH_TOKEN']}")
        elif is_first_start:
            say("Ray runs without its dashboard, so ray.util.state does not answer; --ray-dashboard adds it")
        self.let_go_on(more)

    def let_go_on(self, more: "dict[str, str]") -> None:
        """Let the command start, if it has not started yet. ``more``: variables for its environment."""
        if self.answer is not None:
            variables = {**self.access, **raylets.ways(os.environ, self.folder), **more}
            os.write(self.answer, json.dumps({"python": self.python, "variables": variables}).encode())
            os.close(self.answer)
            self.answer = None

    def start_others(self, others: "list[dict[str, Any]]") -> None:
        """Start a raylet for each of these virtual nodes; it joins the head. Raises Failed, Over."""
        for node in others:
            for more_tries in reversed(range(TRIES)):
                try:
                    self.start(node, node, self.joins())
                    break
                except Failed:
                    if not more_tries:
                        raise

    def wait_for_others(self) -> None:
        """Wait until the raylets on other machines have joined. Raises Failed, Over."""
        while True:
            shown = self.shown()
            if shown.get("failed"):
                raise Failed("a raylet on another node did not start")
            others = self.needed({"nodes": shown.get("others", [])}, {})
            if others.keys() <= set(shown.get("here", ())):
                self.tell(goes=True)
                return
            self.pause(START_S, [self.watch.fileno()])
            self.watch.read()

    def tell(self, **news: "Any") -> None:
        """Add to the messages for the keepers on other machines (NODES.said); nothing on a single machine."""
        says = {**self.says, **news}
        if self.own_address and says != self.says:
            ray_parent.put(f"{self.nodes}{ray_parent.SAID}", says)
            self.says = says

    def shown(self) -> "dict[str, Any]":
        """Read NODES: the virtual cluster as the scheduler shows it now."""
        with open(self.nodes, encoding="utf-8") as file:
            shown: dict[str, Any] = json.load(file)
        return shown

    def needed(self, shown: "dict[str, Any]", leaving: "dict[str, Any]") -> "dict[str, dict[str, Any]]":
        """The virtual nodes that need raylets, by id, with the resources that their raylets may have.

        A virtual node without resources is left out while its resources are leased idle or in separate
        raylets. ``leaving``: a request to use less; its ``nodes`` has the most that each virtual node may
        use.
        """
        nodes = {node["id"]: node for node in shown["nodes"] if node["resources"] or not node["growth"]}
        for vnode_id, limit in leaving.get("nodes", {}).items():
            less = raylets.clipped(nodes.pop(vnode_id, {"resources": {}}), limit)
            if less["resources"]:
                nodes[vnode_id] = less
        return nodes

    def leaving(self, shown: "dict[str, Any]") -> "dict[str, Any]":
        """The present request to leave resources (file NODES.leaving, else ``leaving`` in NODES), or {}."""
        request: dict[str, Any] = shown.get("leaving", {})
        try:
            with open(f"{self.nodes}{ray_parent.LEAVING}", encoding="utf-8") as file:
                request = json.load(file)
        except (FileNotFoundError, ValueError):
            pass
        return request if request and time.time() < request["until"] else {}

    def joins(self) -> list[str]:
        """The options of `ray start` for a raylet that joins; only the head has a log monitor."""
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
        """The URL of the dashboard, from the output of `ray start`. Raises Failed."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            match = re.search(re.escape(self.own_address or raylets.LOOPBACK) + ":[0-9]+", file.read())
        if match is None:
            raise Failed(f"its dashboard did not start:\n{self.last_lines()}")
        return f"http://{match[0]}"

    # ---- while the command runs ----

    def serve(self) -> None:
        """Keep the raylets in step with the virtual nodes until `ray stop` has ended the head. Raises Over."""
        while not self.check():
            if time.monotonic() < self.stopped_until:  # other raylets end before the head
                self.pause(_POLL_S, [self.watch.fileno()])
                self.watch.read()
                continue
            dead: list[Raylet] = []
            for of_node in self.raylets.values():
                for raylet in [raylet for raylet in of_node if raylet.pid in self.ended]:
                    of_node.remove(raylet)
                    dead += [raylet] if self.ended[raylet.pid] else []
                    if raylet.until is None:
                        say(f"the raylet of {raylet.name} has ended; another one is started")
            self.ended.clear()
            try:
                for raylet in dead:  # before another one has its resources
                    self.note_death(raylet.node_id)
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

    def check(self) -> bool:
        """Whether `ray stop` has ended the head. If it has ended by itself, kills the command, and raises Over."""
        if self.is_stopping():
            self.stopped_until = time.monotonic() + STOP_S
        if any(pid in self.ended for pid in self.head):
            if time.monotonic() < self.stopped_until:
                return True
            self.kill_the_command(
                "the head of the job's Ray has ended; the command cannot go on without it and is killed"
            )
            raise Over
        return False

    def is_stopping(self) -> bool:
        """Whether ray_stop.py has left word that it stops this Ray; tells it that it may go on."""
        try:
            os.unlink(f"{self.folder}/{ray_parent.STOPPING}")
        except FileNotFoundError:
            return False
        return True

    def clear(self) -> None:
        """Kill what is left of this Ray, and make ready for another one at the same address."""
        super().end()
        if self.growth is not None:
            self.growth.close()
        self.raylets.clear()
        self.ended.clear()
        self.stopped_until = 0.0
        shutil.rmtree(self.folder)
        self.make_folder()
        self.gcs, _ = raylets.held_port(socket.SO_REUSEADDR, int(self.address.rpartition(":")[2]))

    def kill_the_command(self, text: str) -> None:
        """Say why, and kill the command, which could only hang."""
        say(text)
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def due_s(self) -> float:
        """Seconds until the next look if nothing wakes this process before."""
        if any(raylet.until is not None for of_node in self.raylets.values() for raylet in of_node):
            return _POLL_S
        times = [self.not_before - time.monotonic(), self.due - time.time()]
        return min((seconds for seconds in times if seconds > 0), default=START_S)

    def follow(self, shown: "dict[str, Any]") -> float:
        """Start, drain and kill raylets until they match the virtual nodes.

        Returns the Unix time at which a request to leave resources ends; 0 if there is none. Raises Failed,
        Over, FileNotFoundError.
        """
        leaving = self.leaving(shown)
        needed = self.needed(shown, leaving)
        now = time.monotonic()
        for vnode_id, of_node in self.raylets.items():
            node = needed.get(vnode_id, {"resources": {}})
            staying = [raylet for raylet in of_node if raylet.until is None]
            while (
                staying
                and staying[-1].pid not in self.head
                and raylets.exceeds(node, [raylet.part for raylet in staying])
            ):
                raylet = staying.pop()
                raylet.until = time.monotonic() + DRAIN_S
                self.drain(raylet.node_id, ray_gcs.PREEMPTED, DRAIN_S, "the virtual cluster gives it back")
            for raylet in of_node:
                if raylet.until is not None and now > raylet.until:
                    processes.send(raylet.pid, signal.SIGKILL)
        draining = any(
            raylet.until for vnode_id in leaving.get("nodes", ()) for raylet in self.raylets.get(vnode_id, ())
        )
        if not draining:
            self.reply(leaving)
        for vnode_id, node in needed.items():
            of_node = self.raylets.setdefault(vnode_id, [])
            part = raylets.missing(node, [raylet.part for raylet in of_node])  # draining raylets still count
            if part is not None:
                if now < self.not_before:
                    continue
                self.not_before = now + self.pause_s
                self.start(node, part, self.joins())
                self.pause_s = _AGAIN_S[0]
        return float(leaving.get("until", 0))

    def reply(self, leaving: "dict[str, Any]") -> None:
        """Say that what a request to use less names is no longer in use, if that has not been said."""
        if leaving and self.answered != leaving["id"]:
            self.answered = leaving["id"]
            ray_parent.put(f"{self.nodes}{ray_parent.LEFT}", {"id": self.answered})
            self.tell(left=self.answered)

    def grow(self, shown: "dict[str, Any]") -> None:
        """Let the virtual cluster grow with the demand of this Ray, and shrink when it is idle."""
        if "elastic" in shown and self.growth is None:
            self.growth = ray_growth.RayletGrowth(self, self.nodes, dict(os.environ))
        if self.growth is not None:
            self.growth.turn(shown)

    def end(self) -> None:
        """Kill all processes of this Ray, and remove FOLDER."""
        super().end()
        shutil.rmtree(self.folder, ignore_errors=True)


def _refuse(text: str, code: int) -> "NoReturn":
    say(text)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
