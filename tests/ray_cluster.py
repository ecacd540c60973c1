"""A Ray cluster on loopback addresses for tests: each node is a raylet of its own; all of it ends with the test.

Also what tests with real Ray share: their marks, and what a daemon on a Ray cluster has there and leaves.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Place, eventually
from vctl.ray.private.private_ray import TRIES
from vctl.ray.private.raylets import SETTINGS, free_port, held_port
from vctl.runtime import processes

NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is needed: pip install -e '.[ray]'")
WITH_RAY = (
    NEEDS_RAY, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("alone_with_ray")
)  # fmt: skip
"""The marks of tests with real Ray."""
IN_CI = pytest.mark.in_ci
"""Of the most telling ones, which run wherever Ray is installed."""
RAY_S = 400.0
"""How long a start and an end of Ray may take on a machine that is busy with something else."""
_MARK = "VCTL_TEST_RAY"
_ANY_PORT = (
    "--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0", "--metrics-export-port=0",
    "--runtime-env-agent-port=0", "--node-manager-port=0", "--object-manager-port=0", "--min-worker-port=0",
    "--max-worker-port=0", "--disable-usage-stats", "--object-store-memory=80000000", "--memory=1000000000",
)  # fmt: skip


class RayCluster:
    """One cluster. The node of the head has no CPUs, so work runs on the others."""

    def __init__(self, token: str = "") -> None:
        folder = tempfile.mkdtemp(prefix="vr-", dir="/tmp")  # short: its sockets have paths in there
        self.folder = Path(folder)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.env = {
            **os.environ, **SETTINGS, "HOME": folder, _MARK: folder,
            "RAY_health_check_initial_delay_ms": "2000", "RAY_health_check_timeout_ms": "3000",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        }  # fmt: skip
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
            self.env.pop(name, None)
        let_in = (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
        )
        self.env.update(let_in)
        self.nodes = 0
        self.raylets: dict[str, int] = {}
        """Address -> pid of its raylet."""
        self.environment = {"HOME": folder, "TMPDIR": folder, **let_in}
        """What a daemon needs to be let in."""
        try:
            self.begin()
        except BaseException:  # nobody has what could end it
            self.end()
            raise

    def begin(self, *more: str) -> None:
        """Start the head, without a part of its dashboard, as vctl does."""
        held, taken = held_port()
        with held:
            self._start(
                "--head", f"--port={self.port}", "--node-ip-address=127.0.0.1", f"--temp-dir={self.folder}",
                "--num-cpus=0", "--include-dashboard=false", f"--dashboard-port={taken}",
                f"--ray-client-server-port={free_port()}", *(more or ["--no-monitor"]),
            )  # fmt: skip
        self.head_raylet = set(self._raylets())

    def add(self, cpus: int = 2, gpus: int = 0) -> str:
        """One more node; its address."""
        self.nodes += 1
        address = f"127.0.0.{self.nodes + 1}"
        before = set(self._raylets())
        self._start(
            f"--address={self.address}",
            f"--node-ip-address={address}",
            f"--num-cpus={cpus}",
            f"--num-gpus={gpus}",
        )
        (self.raylets[address],) = set(self._raylets()) - before
        return address

    def _start(self, *words: str) -> None:
        """Ray gives up a start after 30 s, which a busy machine may need: it is tried again, as vctl does."""
        ray, before = Path(sys.executable).parent / "ray", self.processes().keys()
        for left in reversed(range(TRIES)):
            try:
                subprocess.run(
                    [ray, "start", *words, *_ANY_PORT], env={**self.env, "TMPDIR": str(self.folder)}, check=True,
                    timeout=RAY_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                )  # fmt: skip
                return
            except BaseException as error:
                self._kill(lambda: self.processes().keys() - before)
                if not left or not isinstance(error, subprocess.CalledProcessError):
                    raise

    def processes(self) -> dict[int, list[bytes]]:
        """All processes of this Ray, and what came from them."""
        found = processes.marked(_MARK.encode(), f"HOME={self.folder}".encode())
        mine = found.get(os.fsencode(self.folder), [])
        return {one.pid: processes.command(one.pid) for one in mine if one.state not in "ZX"}

    def _raylets(self) -> list[int]:
        return [pid for pid, words in self.processes().items() if words and words[0].endswith(b"/raylet")]

    def kill_raylet(self, address: str) -> None:
        """The node is dead, as suddenly as can be."""
        os.kill(self.raylets.pop(address), signal.SIGKILL)

    def kill_raylets(self) -> None:
        """All nodes but the head's are dead."""
        for pid in set(self._raylets()) - self.head_raylet:
            os.kill(pid, signal.SIGKILL)
        self.raylets.clear()

    def kill_head(self) -> None:
        """Ray's control service is gone."""
        for pid, words in self.processes().items():
            if words and words[0].endswith(b"/gcs_server"):
                os.kill(pid, signal.SIGKILL)

    def ask(self, code: str) -> str:
        """What a program of another user of this Ray prints; it has `ray` and is connected."""
        options = "namespace='other', log_to_driver=False, logging_level=logging.ERROR"
        start = f"import ray, logging\nray.init({self.address!r}, {options})\n"
        done = subprocess.run(
            [sys.executable, "-c", start + code], env=self.env, check=True, timeout=RAY_S, capture_output=True,
            text=True,
        )  # fmt: skip
        return done.stdout

    def groups(self) -> list[str]:
        """The placement groups that there are."""
        code = (
            "from ray.util import placement_group_table\n"
            "print(*(g['name'] for g in placement_group_table().values() if g['state'] != 'REMOVED'))"
        )
        return sorted(self.ask(code).split())

    def agents(self) -> list[str]:
        """The actors with names."""
        code = "print(*(a['name'] for a in ray.util.list_named_actors(all_namespaces=True)))"
        return sorted(self.ask(code).split())

    def kill(self) -> None:
        """Kill all of it."""
        self.raylets.clear()
        self._kill(self.processes)

    def _kill(self, look: Callable[[], Iterable[int]]) -> None:
        until = time.monotonic() + RAY_S
        while left := look():
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            assert time.monotonic() < until
            time.sleep(0.05)

    def end(self) -> None:
        """Kill all of it, and remove what it has left."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def running(*cpus_and_gpus: tuple[int, int], token: str = "") -> Iterator[RayCluster]:
    """A head without CPUs and nodes with so many CPUs and GPUs, until the tests of a module are over."""
    made = RayCluster(token)
    try:
        for cpus, gpus in cpus_and_gpus:
            made.add(cpus, gpus)
        yield made
    finally:
        made.end()


# ---- a daemon of vctl on a cluster ----


def begin(place: Place, cluster: RayCluster) -> subprocess.Popen[bytes]:
    """Start a daemon, which brings the nodes."""
    place.more.update(cluster.environment)
    daemon = place.daemon("--ray", cluster.address)
    eventually(lambda: alive(place), "the nodes", RAY_S)
    return daemon


def alive(place: Place) -> list[str]:
    """The addresses of live nodes."""
    return sorted(one["hostname"] for one in place.read("node", "list")["items"] if one["state"] == "ALIVE")


def log_of(place: Place, ref: str) -> str:
    """What a job has written."""
    path = place.home / "logs" / f"{ref}.log"
    return path.read_text() if path.exists() else ""


def left_of(place: Place) -> dict[int, list[bytes]]:
    """Processes of jobs of a state directory."""
    found = processes.marked(b"VCTL_JOB_ID", b"VCTL_HOME=" + os.fsencode(place.home))
    return {one.pid: processes.command(one.pid)[:3] for many in found.values() for one in many}


def settled(cluster: RayCluster) -> set[bytes]:
    """What runs there of vctl: guards, launchers, supervisors."""
    mine = (b"vctl.runtime", b"launcher.py")
    found = cluster.processes().values()
    return {b" ".join(words) for words in found if any(one in word for one in mine for word in words)}


def agents(cluster: RayCluster) -> list[int]:
    """The processes of agents."""
    found = cluster.processes().items()
    return sorted(pid for pid, words in found if words and words[0].startswith(b"ray::Agent"))


def leave(place: Place, cluster: RayCluster) -> None:
    """End the daemon, and wait until it has left: no job, no reservation, no agent."""
    for process in place._started:
        if process.poll() is None and "daemon" in process.args:  # type: ignore[operator]
            place.term(process)
    eventually(lambda: not left_of(place), "the processes of jobs to end", RAY_S)
    eventually(lambda: cluster.groups() == [], "the reservations to go", RAY_S)
    eventually(lambda: cluster.agents() == [], "the agents to go", RAY_S)


HEAD_TYPE = "ray.head.default"


class AutoscalingRay(RayCluster):
    """A cluster whose autoscaler makes nodes on this machine, as processes; it begins with a head without CPUs.

    Of version 2 there are only the requests: its provider for one machine lacks a file in what the package index has.
    """

    def __init__(self, types: Mapping[str, Mapping[str, Any]], *, version: int) -> None:
        self.types, self.version = types, version
        super().__init__()

    def begin(self, *more: str) -> None:
        """Start the head with its autoscaler."""
        if self.version == 2:
            self.env["RAY_enable_autoscaler_v2"] = "1"
            super().begin(*more)
            return
        head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
        provider = {"type": "fake_multinode", "gcs_address": self.address, "launch_multiple": True}
        provider |= {"disable_node_updaters": True, "disable_launch_config_check": True}
        types = {name: {"node_config": {}, **of} for name, of in self.types.items()}
        described = {
            "cluster_name": "test", "max_workers": 8, "upscaling_speed": 8.0, "idle_timeout_minutes": 0.1,
            "provider": provider, "head_node_type": HEAD_TYPE, "available_node_types": {HEAD_TYPE: head, **types},
            "auth": {}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False,
            "cluster_synced_files": [], "rsync_exclude": [], "rsync_filter": [], "initialization_commands": [],
            "setup_commands": [], "head_setup_commands": [], "worker_setup_commands": [],
            "head_start_ray_commands": [], "worker_start_ray_commands": [],
        }  # fmt: skip
        path = self.folder / "autoscaler.yaml"
        path.write_text(json.dumps(described))
        self.env.update({"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"})
        super().begin(f"--autoscaling-config={path}", *more)

    def wanted(self) -> list[dict[str, float]]:
        """What Ray's autoscaler was asked for, as Ray has it."""
        if self.version == 1:
            code = (
                "from ray.experimental.internal_kv import _internal_kv_get as get\n"
                "from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL as key\n"
                "print((get(key) or b'[]').decode())"
            )
        else:
            code = (
                "import json\nfrom ray.autoscaler.v2.sdk import get_cluster_resource_state\n"
                "from ray._raylet import GcsClient\n"
                f"state = get_cluster_resource_state(GcsClient({self.address!r}))\n"
                "asked = [one for many in state.cluster_resource_constraints for one in many.resource_requests]\n"
                "print(json.dumps([dict(o.request.resources_bundle) for o in asked for _ in range(o.count)]))"
            )
        found: list[dict[str, float]] = json.loads(self.ask(code))
        return found
