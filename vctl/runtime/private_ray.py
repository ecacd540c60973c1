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
"""

import ctypes
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

MYPY = False
if MYPY or __package__:
    from typing import Any, NoReturn

    from vctl.runtime import processes, raylets, watch
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import processes
    import raylets
    import watch

DASHBOARD, PLAIN = "dashboard", "plain"
START_S = 120.0
DRAIN_S = 10
_PR_SET_CHILD_SUBREAPER = 36
_AGAIN_S = (1.0, 30.0)  # first and longest wait before a raylet that ended is started again
_LOOK_S = 0.5
_TOLD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_LAST_LINES = 15


def main(words: list[str]) -> "NoReturn":
    """Become the command, or exit with 1, 126 or 127."""
    nodes, folder, kind, _, *command = words
    if shutil.which(command[0]) is None:
        _refuse(f"cannot run {command[0]}: there is no such program", 127)
    ray = raylets.program(command, os.environ.get("PATH", os.defpath))
    if ray is None:
        _refuse(f"cannot start Ray: it is not installed; pip install '{raylets.EXTRA}'", 127)
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


class Failed(Exception):
    """Ray did not start."""


class Over(Exception):
    """The command has ended."""


class Keeper:
    """The process that has started this Ray, and ends it."""

    def __init__(self, ray: str, nodes: str, folder: str, driver: int, answer: int) -> None:
        self.ray, self.nodes, self.folder, self.answer = ray, nodes, folder, answer
        self.driver = driver
        self.address = ""
        self.raylets: dict[str, list[Raylet]] = {}
        """Virtual node -> its raylets, the first one first."""
        self.head: set[int] = set()
        """Processes without which this Ray is over."""
        self.ended: dict[int, int] = {}
        self.count = 0
        self.pause_s, self.not_before = _AGAIN_S[0], 0.0

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
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for signo in (*_TOLD, signal.SIGCHLD):
            signal.signal(signo, lambda *_: None)  # not ignored, which a child would inherit
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        os.mkdir(self.folder, 0o700)
        self.watch = watch.Watch()
        self.watch.add(pathlib.Path(self.nodes).parent, watch.MOVED_TO)
        try:
            self.handle = os.pidfd_open(self.driver)
        except ProcessLookupError:
            raise Over from None
        self.env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self.told = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
        self.env |= {**raylets.SETTINGS, **self.told, "DASHBOARD_METRIC_PORT": str(raylets.free_port())}
        self.env.pop("RAY_ADDRESS", None)

    def start_all(self, *, dashboard: bool) -> None:
        """Start the head and all raylets, then let the command go on."""
        first, *others = self.wanted()
        self.client, port = raylets.held_port()
        head = [
            "--head", "--port=0", f"--temp-dir={self.folder}", f"--ray-client-server-port={port}", "--no-monitor",
            f"--include-dashboard={str(dashboard).lower()}", "--dashboard-host=127.0.0.1", "--dashboard-port=0",
        ]  # fmt: skip
        self.start(first, first, head)
        with open(f"{self.folder}/ray_current_cluster", encoding="utf-8") as file:
            self.address = file.read().strip()
        self.head = {self.raylets[first["id"]][0].pid, *self.pids(b"/gcs_server")}
        for node in others:
            self.start(node, node, self.joins())
        self.told["RAY_ADDRESS"] = self.address
        if dashboard:
            url = self.dashboard()
            self.told["RAY_API_SERVER_ADDRESS"] = url
            say(f"Ray dashboard: {url}, token {self.told['RAY_AUTH_TOKEN']}")
        else:
            say("Ray runs without its dashboard, so ray.util.state does not answer; --ray-dashboard adds it")
        os.write(self.answer, json.dumps(self.told).encode())
        os.close(self.answer)

    def wanted(self) -> "list[dict[str, Any]]":
        """The virtual nodes as they are now."""
        with open(self.nodes, encoding="utf-8") as file:
            nodes: list[dict[str, Any]] = json.load(file)["nodes"]
        return nodes

    def joins(self) -> list[str]:
        """The options of a raylet that is not the head's; one log monitor reads the logs of all."""
        return [f"--address={self.address}", f"--temp-dir={self.folder}", "--include-log-monitor=false"]

    def start(self, node: "dict[str, Any]", part: "dict[str, Any]", options: list[str]) -> None:
        """Start a raylet for a part of a virtual node, and wait until it has joined. Raises Failed, Over."""
        self.count += 1
        name = part["id"] if part["id"] not in self.raylets else f"{part['id']}#{self.count}"
        env = {**self.env, "CUDA_VISIBLE_DEVICES": ",".join(part["gpus"])}
        code = self.run(["start", *options, *raylets.arguments(part, name)], env, node["cores"])
        found = [
            pid for pid in self.pids(b"/raylet") if b"--node-name=" + name.encode() in processes.command(pid)
        ]
        if code or not found:
            raise Failed(f"`ray start` ended with {code}:\n{self.last_lines()}")
        ids = [
            word.partition(b"=")[2].decode()
            for word in processes.command(found[0])
            if word.startswith(b"--node_id=")
        ]
        self.raylets.setdefault(node["id"], []).append(Raylet(name, part, found[0], "".join(ids)))

    def run(self, words: list[str], env: dict[str, str], cores: list[int] | None) -> int:
        """Run Ray's command to its end; its exit code. Raises Over, Failed."""
        mine = os.sched_getaffinity(0)
        if cores:
            os.sched_setaffinity(0, cores)
        try:
            with open(f"{self.folder}/start.log", "ab") as log:
                process = subprocess.Popen(
                    [self.ray, *words],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        finally:
            os.sched_setaffinity(0, mine)
        give_up = time.monotonic() + START_S
        while process.pid not in self.ended:
            self.pause(give_up - time.monotonic())
            if time.monotonic() > give_up:
                raise Failed(f"`ray {words[0]}` took more than {START_S:g} s:\n{self.last_lines()}")
        process.returncode = self.ended.pop(process.pid)
        return process.returncode

    def pids(self, suffix: bytes) -> list[int]:
        """Processes below, by the end of their program's name."""
        return [
            pid
            for pid in processes.descendants(os.getpid())
            if (processes.command(pid) or [b""])[0].endswith(suffix)
        ]

    def last_lines(self) -> str:
        """The end of what Ray's command has written."""
        with open(f"{self.folder}/start.log", encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-_LAST_LINES:]).rstrip()

    def dashboard(self) -> str:
        """Where the dashboard is, as Ray's command has said. Raises Failed."""
        with open(f"{self.folder}/start.log", encoding="utf-8", errors="replace") as file:
            found = re.search(r"127\.0\.0\.1:([0-9]+)", file.read())
        if found is None:
            raise Failed(f"its dashboard did not start:\n{self.last_lines()}")
        return f"http://{found[0]}"

    # ---- while the command runs ----

    def serve(self) -> None:
        """Keep raylets and virtual nodes in step until the command, or the head, has ended."""
        while True:
            if any(pid in self.ended for pid in self.head):
                say("the head of the job's Ray has ended; the command cannot go on without it and is killed")
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
                raise Over
            for of_node in self.raylets.values():
                for one in [one for one in of_node if one.pid in self.ended]:
                    of_node.remove(one)
                    if one.until is None:
                        say(f"the raylet of {one.name} has ended; another one is started")
            self.ended.clear()
            try:
                self.follow()
            except Failed as error:
                say(f"a raylet did not start: {error}")
                self.pause_s = min(2 * self.pause_s, _AGAIN_S[1])
            except FileNotFoundError:
                pass  # the job is being ended
            if not self.ended:
                self.pause(self.due_s())
            self.watch.read()

    def due_s(self) -> float:
        """When to look again without being woken."""
        draining = any(one.until is not None for of_node in self.raylets.values() for one in of_node)
        return _LOOK_S if draining else max(self.not_before - time.monotonic(), 0) or START_S

    def follow(self) -> None:
        """Start, drain and end raylets as the virtual nodes are now. Raises Failed, Over, FileNotFoundError."""
        wanted = {node["id"]: node for node in self.wanted()}
        now = time.monotonic()
        for vnode_id, of_node in self.raylets.items():
            node = wanted.get(vnode_id, {"resources": {}})
            staying = [one for one in of_node if one.until is None]
            while (
                staying
                and staying[-1].pid not in self.head
                and raylets.exceeds(node, [one.part for one in staying])
            ):
                self.drain(staying.pop())
            for one in of_node:
                if one.until is not None and now > one.until:
                    processes.send(one.pid, signal.SIGKILL)
        for vnode_id, node in wanted.items():
            of_node = self.raylets.setdefault(vnode_id, [])
            part = raylets.missing(node, [one.part for one in of_node])  # what drains is not free yet
            if part is not None:
                if now < self.not_before:
                    continue
                self.not_before = now + self.pause_s
                self.start(node, part, self.joins())
                self.pause_s = _AGAIN_S[0]

    def drain(self, one: Raylet) -> None:
        """Let a raylet take no more work, finish what it has, and go."""
        one.until = time.monotonic() + DRAIN_S
        self.run(
            [
                "drain-node", f"--address={self.address}", f"--node-id={one.node_id}",
                "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=the virtual cluster has given it back",
                f"--deadline-remaining-seconds={DRAIN_S}",
            ],
            self.env, None,
        )  # fmt: skip

    def pause(self, most_s: float) -> None:
        """Wait until a process has ended or the virtual nodes have changed. Raises Over when the command has ended."""
        ready, _, _ = select.select(
            [self.wake, self.watch.fileno(), self.handle], [], [], max(0.0, min(most_s, START_S))
        )
        if self.handle in ready:
            raise Over
        if self.wake in ready:
            os.read(self.wake, 4096)
        self.reap()

    def reap(self) -> bool:
        """Note which processes have ended; False when there is none left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            self.ended[pid] = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill all of this Ray, and remove its files."""
        while self.reap():
            processes.kill_all(lambda: processes.descendants(os.getpid()))
            time.sleep(0.01)
        shutil.rmtree(self.folder, ignore_errors=True)


def say(text: str) -> None:
    """Write a line into the log of the job."""
    os.write(2, f"vctl: {text}\n".encode(errors="replace"))


def _refuse(text: str, code: int) -> "NoReturn":
    say(text)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
