"""Where benchmarks run: an own state directory, the installed vctl, a daemon, peers, a stopwatch."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from vctl import SOCKET

VCTL = str(Path(sys.executable).with_name("vctl"))


class Bed:
    """One state directory, removed at the end. Nothing schedules in it but ``daemon()``, which a benchmark ends."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VCTL_")}
        own = {"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"}
        self.env = {**kept, **own, "PYTHONDONTWRITEBYTECODE": "1"}

    def vctl(self, *words: str, check: bool = True) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            [VCTL, *words],
            env=self.env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"vctl {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def read(self, *words: str) -> Any:
        """The JSON answer of a command."""
        return json.loads(self.vctl(*words, "-o", "json"))

    def add_nodes(self, count: int, resources: dict[str, object]) -> None:
        """Declare equal simulated nodes."""
        self.vctl("node", "add", "--count", str(count), "--resources", json.dumps(resources), "--simulated")

    def submit_many(self, requests: Sequence[dict[str, Any]]) -> list[str]:
        """Queue many jobs from one process, one transaction each: a client with an open connection."""
        from vctl.ops import submitting
        from vctl.spec.job_request import JobRequest
        from vctl.store.store import Store

        environment = {"PATH": os.environ["PATH"]}
        with Store.open(self.home) as store:
            return [
                submitting.submit(store, JobRequest(**request), environment=environment)["submission_id"]
                for request in requests
            ]

    def scheduler(self) -> dict[str, Any]:
        """What ``vctl status`` says about the scheduler."""
        said: dict[str, Any] = self.read("status")["scheduler"]
        return said

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        """A scheduler that is ready for work, and beside it the process that answers commands."""
        with open(self.home / "benchmark-daemon.log", "ab") as log:
            process = subprocess.Popen([VCTL, "daemon"], env=self.env, stdout=log, stderr=log, stdin=log)
        try:
            give_up = time.monotonic() + 60
            while not (self.scheduler()["running"] and (self.home / SOCKET).exists()):
                if process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError("the daemon does not run:\n" + Path(log.name).read_text())
                time.sleep(0.05)
            yield process
        finally:
            process.terminate()
            process.wait(30)

    def running(self) -> list[dict[str, Any]]:
        """Jobs that run now."""
        found: list[dict[str, Any]] = self.read("job", "list", "--filter", "status=RUNNING")["items"]
        return found

    def end_all(self) -> None:
        """End what waits and what runs, so that nothing is left behind; needs a scheduler."""
        from vctl.ops import jobs
        from vctl.store.store import Store

        with Store.open(self.home) as store:
            waiting, _ = jobs.list_jobs(store, filters=["status=PENDING"])
            for job in waiting:
                jobs.stop(store, job["submission_id"])
            running, _ = jobs.list_jobs(store, filters=["status=RUNNING"])
            for job in running:
                jobs.stop(store, job["submission_id"], grace_s=0)
            while jobs.list_jobs(store, limit=1)[1]:
                time.sleep(0.05)


# Removed when the run of the benchmarks ends, not with each bed: a file system may pass over the places of files
# that were just deleted, one by one, and whoever creates files next (peers too) would pay for it.
_beds = ExitStack()
atexit.register(_beds.close)


@contextmanager
def bed() -> Iterator[Bed]:
    """A fresh state directory."""
    folder = _beds.enter_context(tempfile.TemporaryDirectory(prefix="vctl-bench-"))
    home = Path(folder) / "home"
    home.mkdir(mode=0o700)
    yield Bed(home)


def wall_ms(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """How long a command takes, from start to end."""
    started = time.perf_counter_ns()
    subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return (time.perf_counter_ns() - started) / 1e6


def interleaved(
    rounds: int, commands: Mapping[str, Sequence[str]], env: dict[str, str]
) -> dict[str, list[float]]:
    """Milliseconds of each command, taken in turns so that a noisy minute hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        wall_ms(command, env)  # compiled modules and page cache, once
    for _ in range(rounds):
        for name, command in commands.items():
            taken[name].append(wall_ms(command, env))
    return taken


def which(*names: str) -> str | None:
    """The first of several spellings of a peer that is installed."""
    return next((found for name in names if (found := shutil.which(name))), None)
