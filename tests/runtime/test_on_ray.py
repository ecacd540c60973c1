"""A Ray cluster as the machine, as far as it goes without Ray: names, reservations, logs, and the agent of a node."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.runtime.conftest import PATIENCE_S, eventually, is_gone
from tests.specification import spec
from vctl.core.resources import CPU, GPU, MEMORY, SCALE
from vctl.ray.on_ray import connection, wire
from vctl.ray.on_ray.agent import Agent
from vctl.ray.on_ray.logs import Copies
from vctl.ray.on_ray.runtime import RayRuntime
from vctl.ray.on_ray.wire import Packed
from vctl.runtime.protocol import LaunchRequest, ReservedParts, RunState, Seen

pytestmark = spec("16.ray")

NODE = "2aecebbf6a0b74acc9bc253ad44a0ad8b44825f3c47a4248e1627af6"


def test_a_node_has_what_ray_lets_users_ask_for() -> None:
    group = "CPU_group_0_b352c79efad708e5ed847c0a63ef01000000"
    resources = {
        "CPU": 2.0, "GPU": 1.0, "memory": 2e9, "object_store_memory": 8e7, "node:127.0.0.2": 1.0, "tpu-slot": 0.5,
        "node:__internal_head__": 1.0, "accelerator_type:A100": 1.0, group: 2.0,
    }  # fmt: skip
    found = {
        "NodeID": NODE,
        "NodeManagerAddress": "127.0.0.2",
        "Alive": True,
        "Resources": resources,
        "Labels": {"a": "b"},
    }
    node = wire.node_of(found)
    assert node.amounts == {CPU: 2 * SCALE, GPU: SCALE, MEMORY: 2 * 10**9 * SCALE, "tpu-slot": SCALE // 2}
    assert (node.node_id, node.address, node.labels, node.death) == (NODE, "127.0.0.2", {"a": "b"}, "")
    assert wire.node_of({**found, "Alive": False, "DeathReasonMessage": "gone"}).death == "gone"


def test_a_reservation_grows_by_what_is_missing() -> None:
    """Nothing is reserved twice; what moved to another node is reserved there."""
    first = [("v0", "n0", {CPU: SCALE}), ("v1", "n1", {CPU: SCALE, GPU: SCALE})]
    assert wire.missing(first, []) == first
    assert wire.missing(first, first) == []
    grown = [("v0", "n0", {CPU: 3 * SCALE}), ("v1", "n2", {CPU: SCALE})]
    added = wire.missing(grown, first)
    assert added == [("v0", "n0", {CPU: 2 * SCALE}), ("v1", "n2", {CPU: SCALE})]
    assert wire.missing(grown, [*first, *added]) == []
    shrunk = [("v0", "n0", {CPU: SCALE // 2})]
    assert wire.missing(shrunk, first) == []
    group = wire.group_of("g", first, {"v1"})
    assert group == ("g", [("n0", {"CPU": 1.0}), ("n1", {"CPU": 1.0, "GPU": 1.0})], [(1, "v1")])


def test_devices_are_those_of_ray() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "1,0", "A": "b"}
    chosen = wire.chosen_of({"0": ("v", 0), "1": ("v", 1), "4": ("w", 0)}, {"v": ["3", "5"], "w": ["7"]})
    assert chosen == {"0": "3", "1": "5", "4": "7"}
    assert wire.devices(env, chosen) == {"CUDA_VISIBLE_DEVICES": "5,3", "A": "b"}
    assert wire.devices({"CUDA_VISIBLE_DEVICES": ""}, chosen) == {"CUDA_VISIBLE_DEVICES": ""}
    shown = json.dumps({"nodes": [{"id": "v", "gpus": ["1"]}, {"id": "w", "gpus": []}]})
    assert wire.with_devices(shown, {}) == shown
    assert wire.with_devices("", chosen) == "", "a run without a Ray is shown nothing"
    assert [one["gpus"] for one in json.loads(wire.with_devices(shown, chosen))["nodes"]] == [["5"], []]


def test_messages_arrive_whole_and_in_order() -> None:
    messages: list[Packed] = [("a", 1, b"\0" * 1000), ("b", {"x": (None, 2.5)}), ("c",)]
    data = b"".join(map(wire.framed, messages))
    received, found = bytearray(), []
    for place in range(0, len(data), 7):
        received += data[place : place + 7]
        found += list(wire.unframed(received))
    assert found == messages
    assert not received


@pytest.mark.parametrize(("host", "says"), [("127.0.0.1", "refused"), ("no.such.host.invalid", "known")])
def test_an_address_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, host: str, says: str) -> None:
    monkeypatch.setattr(connection, "LISTEN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connection.nobody_at(f"127.0.0.1:{port}") == ""
    assert says in connection.nobody_at(f"{host}:{port}")
    assert connection.nobody_at("127.0.0.1:70000")
    assert connection.nobody_at("auto") == ""


# ---- logs ----


def test_a_log_is_taken_over_once(tmp_path: Path) -> None:
    """Parts that come twice are written once; members of a gang share a log."""
    log = str(tmp_path / "log")
    copies = Copies(tmp_path)
    copies.write("a", log, 0, b"one ", 0)
    copies.write("b", log, 0, b"two ", 0)
    copies.write("a", log, 0, b"one three", 0)
    assert Path(log).read_bytes() == b"one two three"
    assert (copies.copied("a"), copies.copied("b"), copies.copied("c")) == (9, 4, 0)
    copies.close()


@pytest.mark.parametrize("written", [0, 2, 4])
def test_a_log_after_a_crash(tmp_path: Path, written: int) -> None:
    """Killed between the note and its bytes: the part comes again, to the same place."""
    log = str(tmp_path / "log")
    copies = Copies(tmp_path)
    copies.write("a", log, 0, b"one ", 0)
    copies.write("b", log, 0, b"two ", 0)
    copies.close()
    with open(log, "r+b") as file:
        file.truncate(4 + written)
    after = Copies(tmp_path)
    after.load({"a": log, "b": log})
    assert (after.copied("a"), after.copied("b")) == (0, 0)
    after.write("a", log, 0, b"one more", 0)
    after.write("b", log, 0, b"two ", 0)
    assert Path(log).read_bytes() == b"one two more"
    after.forget("a")
    after.forget("b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """What a full disk did not take is written when it comes again."""
    log = str(tmp_path / "log")
    copies = Copies(tmp_path)
    copies.write("a", log, 0, b"one ", 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            copies.write("a", log, 4, b"x" * 200, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert copies.copied("a") == 4
    copies.write("a", log, 4, b"x" * 200 + b" more", 0)
    assert Path(log).read_bytes() == b"one " + b"x" * 200 + b" more"
    assert copies.copied("a") == 209
    copies.close()


# ---- the state directory ----


def test_a_copy_has_another_name(tmp_path: Path) -> None:
    """What the copy knows of runs is the original's."""
    import shutil

    home = tmp_path / "home"
    first = RayRuntime(home, "nowhere:1")
    (home / "ray" / "runs" / "r").write_text('["n", "g", "log", 0, {}]')
    again = RayRuntime(home, "nowhere:1")
    assert (again.state, again.known_runs()) == (first.state, ["r"])
    shutil.copytree(home, tmp_path / "copy")
    copy = RayRuntime(tmp_path / "copy", "nowhere:1")
    assert copy.state != first.state
    assert copy.known_runs() == []


def test_a_node_dies_before_its_runs(tmp_path: Path) -> None:
    """spec 12: the guard ends what runs on a node whose raylet is gone. That is no end of a run until the scheduler,
    which knows of the death, has asked for it."""
    home = tmp_path / "home"
    RayRuntime(home, "nowhere:1")
    for run_id in ("guarded", "silent"):
        log = home / "logs" / run_id
        (home / "ray" / "runs" / run_id).write_text(json.dumps([NODE, "g", str(log), 0, {}]))
    runtime = RayRuntime(home, "nowhere:1")
    start = (100, 1, 99, 1, "boot", 5)
    ended = (143, 15, None, "", True, 7, 0, 0, 0)
    runtime._handle("nodes", [[(NODE, "10.0.0.1", {CPU: SCALE}, {}, "")]])
    runtime._handle("seen", ["guarded", ("exited", start, ended, ""), 0, b"", ""])
    runtime._handle("seen", ["silent", ("running", start, None, ""), 0, b"", ""])
    runtime._handle("nodes", [[(NODE, "10.0.0.1", {CPU: SCALE}, {}, "gone")]])
    assert [runtime.observe(one).state for one in ("guarded", "silent")] == [RunState.RUNNING] * 2
    assert runtime.changes() == {"guarded", "silent"}
    for run_id in ("guarded", "silent"):
        runtime.stop(run_id, grace_s=0)
    assert runtime.changes() == {"guarded", "silent"}
    assert runtime.observe("guarded").exit is not None
    assert runtime.observe("silent").state is RunState.LOST
    runtime.link.drop()


# ---- the Ray of a job on several nodes ----


class Heard:
    """The other end of a scheduler's link."""

    def __init__(self, home: Path) -> None:
        self.runtime = runtime = RayRuntime(home, "nowhere:1")
        runtime.link.channel, self.channel = socket.socketpair()
        runtime.link.channel.setblocking(False)
        self.channel.setblocking(False)
        runtime.link.poll.register(runtime.link.channel)
        runtime.link.connected = True
        nodes = [
            (node, address, {CPU: SCALE}, {}, "")
            for node, address in (("n0", "10.0.0.1"), ("n1", "10.0.0.2"))
        ]
        runtime._handle("nodes", [nodes])
        runtime.settle(dict.fromkeys(runtime.known_runs(), 1))

    def messages(self, kind: str) -> list[Packed]:
        """What was sent of a kind since it was asked last."""
        received = bytearray()
        while True:
            try:
                received += self.channel.recv(1 << 16)
            except BlockingIOError:
                return [message for message in wire.unframed(received) if message[0] == kind]

    def saw(self, run_id: str, state: str, **said: object) -> None:
        start = None if state == "never-started" else (100, 1, 99, 1, "boot", 5)
        end = (0, None, None, "", False, 7, 0, 0, 0) if state == "exited" else None
        self.runtime._handle(
            "seen", [run_id, (state, start, end, ""), 0, b"", json.dumps(said) if said else ""]
        )

    def end(self) -> None:
        self.channel.close()
        self.runtime.link.drop()
        self.runtime.copies.close()


def shown_of(*nodes: str) -> dict[str, object]:
    return {
        "nodes": [
            {"id": f"v{rank}", "node": node, "resources": {"CPU": 1.0}, "growth": False, "gpus": []}
            for rank, node in enumerate(nodes)
        ]
    }


def launched_ray(home: Path) -> Heard:
    """A job with two virtual nodes on two nodes; its first keeper has started the head."""
    heard = Heard(home)
    reserved = ReservedParts("1.1", (("v0", "n0", {CPU: SCALE}), ("v1", "n1", {CPU: SCALE})), "v0")
    request = LaunchRequest(
        "1.1.1", ("job",), {"A": "b"}, "/", str(home / "logs" / "job"), node_id="n0", reservation=reserved, ray="plain",
        shown=shown_of("n0", "n1"),
    )  # fmt: skip
    heard.runtime.launch(request)
    ((_, packed, node_id, _, _, kind, shown),) = heard.messages("launch")
    assert (packed[1], node_id, kind) == (("job",), "n0", "plain")
    document = json.loads(shown)
    assert [node["id"] for node in document["nodes"]] == ["v0"]
    assert [node["id"] for node in document["others"]] == ["v1"]
    assert (document["address"], document["here"]) == ("10.0.0.1", [])
    heard.saw("1.1.1", "running")
    assert heard.messages("launch") == []
    heard.saw("1.1.1", "running", join={"address": "10.0.0.1:5"})
    ((_, packed, node_id, groups, _, kind, shown),) = heard.messages("launch")
    assert (packed[0], packed[1], packed[2]["VCTL_NODE_ID"]) == ("1.1.1.ray1", ("job",), "n1")
    assert (node_id, kind, groups[0][2]) == ("n1", "satellite", [(1, "v1")])
    assert json.loads(shown)["join"] == {"address": "10.0.0.1:5"}
    return heard


def test_the_other_nodes_of_a_ray_begin_and_end_with_its_command(tmp_path: Path) -> None:
    """Their keepers start when the first one says how to join; the command ends after them."""
    heard = launched_ray(tmp_path)
    runtime = heard.runtime
    heard.saw("1.1.1.ray1", "running", up=["v1"])
    assert [json.loads(text)["here"] for *_, text in heard.messages("show")][-1:] == [["v1"]]
    assert runtime.known_runs() == ["1.1.1"], "no table knows the others"
    assert runtime.changes() == {"1.1.1"}
    heard.saw("1.1.1", "exited", join={}, goes=True)
    assert [message[1] for message in heard.messages("stop")] == ["1.1.1.ray1"]
    assert runtime.observe("1.1.1").state is RunState.RUNNING
    heard.saw("1.1.1.ray1", "exited")
    assert runtime.changes() == {"1.1.1"}
    assert runtime.observe("1.1.1").state is RunState.EXITED
    runtime.forget("1.1.1")
    assert list((tmp_path / "ray" / "runs").iterdir()) == []
    assert [list(names) for _, names in heard.messages("release")] == [[f"vctl-{runtime.state}-1.1.0"]]
    heard.end()


def test_a_keeper_that_does_not_come_up_fails_the_command(tmp_path: Path) -> None:
    heard = launched_ray(tmp_path)
    heard.saw("1.1.1.ray1", "exited")
    assert json.loads(heard.messages("show")[-1][-1])["failed"]
    heard.end()


def test_a_keeper_that_ended_is_started_again_after_a_pause(tmp_path: Path) -> None:
    heard = launched_ray(tmp_path)
    heard.saw("1.1.1.ray1", "running", up=["v1"])
    heard.saw("1.1.1", "running", join={"address": "10.0.0.1:5"}, goes=True)
    heard.saw("1.1.1.ray1", "exited")
    assert heard.messages("launch") == []
    found: list[Packed] = []

    def again() -> bool:
        heard.runtime.changes()
        found.extend(heard.messages("launch"))
        return bool(found)

    eventually(again)
    assert [message[1][0] for message in found] == ["1.1.1.ray2"]
    heard.end()


def test_another_scheduler_goes_on_with_a_ray(tmp_path: Path) -> None:
    """It knows the keepers of other nodes, launches one that never came to its agent, and shows what has changed."""
    launched_ray(tmp_path).end()
    heard = Heard(tmp_path)
    (begin,) = [message for message in heard.messages("begin") if message]
    assert sorted(begin[1]) == ["1.1.1", "1.1.1.ray1"]
    reserved = ReservedParts("1.1", (("v0", "n0", {CPU: SCALE}), ("v1", "n1", {CPU: 2 * SCALE})), "v0")
    heard.runtime.show("1.1.1", shown_of("n0", "n1"), reserved)
    heard.saw("1.1.1", "running", join={"address": "10.0.0.1:5"})
    heard.saw("1.1.1.ray1", "never-started")
    ((_, packed, node_id, *_),) = heard.messages("launch")
    assert (packed[0], node_id) == ("1.1.1.ray1", "n1")
    assert heard.runtime.reserved[f"vctl-{heard.runtime.state}-1.1"].keys() == {
        f"vctl-{heard.runtime.state}-1.1.{number}" for number in range(2)
    }
    heard.end()
    (tmp_path / "ray" / "runs" / "1.1.1").unlink()
    heard = Heard(tmp_path)
    assert heard.runtime.runs == {}, "its command is gone, and agents end what nobody names"
    heard.end()


def test_two_runs_do_not_see_the_same_device(tmp_path: Path) -> None:
    """Of one virtual node; also for another scheduler. What a run that has ended had is another one's."""
    heard = Heard(tmp_path)
    parts = (("v", "n0", {GPU: 2 * SCALE}),)
    (tmp_path / "logs").mkdir(exist_ok=True)

    def launched(run_id: str, gpu: str) -> object:
        request = LaunchRequest(
            run_id, ("true",), {wire.VISIBLE: gpu}, "/", str(tmp_path / "logs" / run_id), node_id="n0",
            reservation=ReservedParts("job", parts, "v"),
        )  # fmt: skip
        heard.runtime.launch(request)
        ((_, _, _, _, places, *_),) = heard.messages("launch")
        return places

    assert launched("a", "1") == {"1": ("v", 0)}
    assert launched("b", "0") == {"0": ("v", 1)}
    assert launched("shares", "1") == {"1": ("v", 0)}
    heard.end()
    heard = Heard(tmp_path)
    assert launched("also", "0") == {"0": ("v", 1)}
    for run_id in ("b", "also"):
        heard.runtime.forget(run_id)
    assert launched("c", "5") == {"5": ("v", 1)}
    heard.end()


# ---- the agent, over real processes ----


class Asker:
    """What a scheduler knows of the runs of an agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.known: dict[str, tuple[Packed | None, int, str]] = {}
        self.logs: dict[str, bytes] = {}

    def launch(self, run_id: str, *argv: str) -> None:
        self.known.setdefault(run_id, (None, 0, ""))
        env = {"PATH": os.environ["PATH"]}
        self.agent.launch(wire.packed_request(LaunchRequest(run_id, argv, env, "/", "", grace_s=0.2)), "", "")

    def until(self, run_id: str, state: RunState) -> Seen:
        """Poll until a run is seen so."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            seen, _, _ = self.known[run_id]
            if seen is not None and wire.seen_of(seen).state is state:
                return wire.seen_of(seen)
            assert time.monotonic() < give_up, seen
            for name, (packed, start, chunk, said) in self.agent.poll(self.known, 1.0).items():
                assert start == self.known[name][1]
                self.known[name] = packed, start + len(chunk), said
                self.logs[name] = self.logs.get(name, b"") + chunk


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Agent, "_end_when_idle", lambda _: None)  # it would end this process
    return "s"


@pytest.fixture
def asker(state: str, tmp_path: Path) -> Iterator[Asker]:
    one = Asker(Agent(state, NODE, str(tmp_path / "home")))
    yield one
    one.agent.settle([])
    eventually(lambda: one.agent.settle([]) or one.agent.leave(), "the agent to leave")


def test_an_agent_runs_and_tells(asker: Asker) -> None:
    asker.launch(
        "a", sys.executable, "-S", "-c", "import os; print(os.environ['VCTL_HOME']); raise SystemExit(4)"
    )
    asker.launch("a", "/bin/false")  # the same run again: it has started
    end = asker.until("a", RunState.EXITED).exit
    assert end is not None
    assert end.exit_code == 4
    assert asker.logs["a"].endswith(b"/home\n")
    asker.known["b"] = None, 0, ""
    assert asker.until("b", RunState.NEVER_STARTED).start is None


def test_each_run_has_a_supervisor_of_its_own(asker: Asker) -> None:
    """Launched while the agent is polled: none waits for the end of another one."""
    names = [f"r{number}" for number in range(40)]
    launched = Event()

    def poll() -> None:
        while not launched.is_set():
            asker.agent.poll({}, 0.0)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as pool:
            polling = [pool.submit(poll) for _ in range(4)]
            for name in names:
                asker.launch(name, "sleep", "1000")
            launched.set()
            for one in polling:
                one.result()
    finally:
        sys.setswitchinterval(switch_s)
    for name in names:
        asker.until(name, RunState.RUNNING)
    claims = {(asker.agent.claims / name).read_text() for name in names}
    assert len(claims) == len(names)


def test_what_a_keeper_is_shown_and_says(asker: Asker) -> None:
    """The parent of a raylet that cannot join: what it is shown, what lies beside, and the directory of its Ray."""
    keepers = asker.agent.keepers
    words = keepers.command("a", "joins", ())
    directory = Path(words[-1])
    assert len(str(directory)) <= 40, "unix sockets lie in it: 107 bytes"
    asker.known["a"] = None, 0, ""
    packed = wire.packed_request(LaunchRequest("a", (), {"PATH": os.environ["PATH"]}, "/", "", grace_s=0.2))
    asker.agent.show("a", "early")
    assert not Path(words[-2]).exists(), "of a run that is not here nothing is kept"
    asker.agent.launch(packed, "joins", json.dumps({"address": "10.0.0.1", "nodes": []}))
    end = asker.until("a", RunState.EXITED).exit
    assert end is not None
    directory.mkdir()
    Path(f"{words[-2]}.said").write_text('{"up": ["v"]}')
    found = asker.agent.poll(asker.known, 10.0)
    assert found["a"][3] == '{"up": ["v"]}'
    asker.agent.forget(["a"])
    assert not directory.exists()
    assert list(keepers.folder.iterdir()) == []


def test_a_long_log_comes_before_the_end(asker: Asker) -> None:
    size = 3 * wire.MAX_CHUNK_BYTES + 5
    asker.launch("a", sys.executable, "-S", "-c", f"import sys; sys.stdout.write('x' * {size})")
    asker.until("a", RunState.EXITED)
    assert asker.logs["a"] == b"x" * size


def test_another_agent_goes_on(asker: Asker, state: str, tmp_path: Path) -> None:
    """The first one is gone as after a kill: the run goes on, is not started twice, and is ended by the next one."""
    pid_file = tmp_path / "pid"
    shell = f"trap '' TERM; setsid sh -c 'echo $$ > {pid_file}; sleep 1000' & sleep 1000"
    asker.launch("a", "sh", "-c", shell)
    started = asker.until("a", RunState.RUNNING).start
    assert started is not None
    eventually(lambda: pid_file.exists() and pid_file.read_text())
    asker.agent.local.close()
    asker.agent = Agent(state, NODE, str(tmp_path / "home"))
    asker.known["a"] = None, 0, ""
    assert asker.until("a", RunState.RUNNING).start == started
    asker.launch("a", "/bin/false")
    asker.agent.stop("a", 0.1, 15)
    end = asker.until("a", RunState.EXITED).exit
    assert end is not None
    assert end.stopped
    assert is_gone(int(pid_file.read_text()))


def test_an_agent_that_has_left_ends(tmp_path: Path) -> None:
    """Also when who asked it to leave has ended before Ray got its request to kill the actor."""
    code = (
        "import sys, time\nfrom vctl.ray.on_ray.agent import Agent\n"
        "print(Agent(*sys.argv[1:]).leave(), flush=True)\ntime.sleep(1000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "s", NODE, str(tmp_path / "home")], env={**os.environ, "TMPDIR": str(tmp_path)},
        check=True, timeout=60, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert done.stdout == b"True\n"
    assert not list((tmp_path / f"vctl-on-ray-{os.getuid()}").iterdir())


def test_a_run_that_is_stopped_before_it_starts(asker: Asker) -> None:
    asker.agent.stop("a", 0.1, 15)
    asker.agent.poll({}, 0)  # which tidies up
    asker.launch("a", sys.executable, "-S", "-c", "print('started')")
    end = asker.until("a", RunState.EXITED).exit
    assert end is not None
    assert end.stopped
    assert "a" not in asker.logs or asker.logs["a"] == b""


def test_what_no_scheduler_wants_any_more(asker: Asker) -> None:
    """Ended runs are forgotten, live ones are ended; then nothing keeps the agent."""
    asker.launch("a", "sleep", "1000")
    asker.launch("b", "true")
    pid = asker.until("a", RunState.RUNNING).start
    asker.until("b", RunState.EXITED)
    assert not asker.agent.leave()
    asker.agent.settle([])
    assert pid is not None
    eventually(lambda: is_gone(pid.pid), "the run to end")


def test_a_new_link_hears_of_all_runs(tmp_path: Path) -> None:
    """Of those too whose launch was sent and not answered: the agent would end what nobody names."""
    runtime = RayRuntime(tmp_path, "nowhere:1")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    runtime.link.channel = ours
    runtime.link.poll.register(ours)
    runtime._handle("nodes", [[(NODE, "10.0.0.1", {CPU: SCALE}, {}, "")]])
    runtime._handle("hello", ["2.60.0"])
    runtime.settle({})
    reservation = ReservedParts("1.1", (("v", NODE, {CPU: SCALE}),), "v")
    log = str(tmp_path / "logs" / "a")
    runtime.launch(LaunchRequest("a", ("true",), {}, "/", log, node_id=NODE, reservation=reservation))
    runtime._handle("hello", ["2.60.0"])
    received = bytearray(theirs.recv(1 << 16))
    kinds = [(message[0], message[1]) for message in wire.unframed(received)]
    assert [kind for kind, _ in kinds] == ["begin", "launch", "begin", "launch"]
    assert kinds[0][1] == {}
    assert kinds[2][1] == {"a": (NODE, None, 0, "")}
    theirs.close()
    runtime.link.drop()
