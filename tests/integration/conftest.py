"""Real state directories, the real ``vctl`` command in processes of its own; whatever a test starts ends with it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vctl.ops import background
from vctl.runtime import processes
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import RunState

ROOT = Path(__file__).parents[2]
VCTL = (sys.executable, "-m", "vctl")
PATIENCE_S = 40.0
"""How long anything may take on a machine that is busy with something else; figures are asserted apart."""
FOUR = '{"CPU": 4, "memory": "8GiB"}'
SPREAD_2X1 = json.dumps(
    {
        "fixed_size_nodes": [
            {
                "nodes": [{"resources": {"CPU": 1}}, {"resources": {"CPU": 1}}],
                "scheduling_policy": "STRICT_SPREAD",
            }
        ]
    }
)
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)
"""
"""A job that ignores SIGTERM, beside a process that double-forked into a session of its own and ignores it too."""


def eventually(condition: Callable[[], Any], what: str = "it", within_s: float = PATIENCE_S) -> Any:
    """Wait for a condition and return what it returned."""
    give_up = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < give_up, f"waited {within_s} s for {what}"
        time.sleep(0.01)
    return found


def is_gone(pid: int) -> bool:
    seen = processes.process(pid)
    return seen is None or seen.state in "ZX"


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def err(self) -> str:
        return self.stderr.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class Place:
    """A state directory and the commands that work on it."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.more: dict[str, str] = {}
        """Variables of every command from now on."""
        self._started: list[subprocess.Popen[bytes]] = []

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "VCTL_HOME": str(self.home),
            "VCTL_LOCAL_NODE": "0",
            "VCTL_IDLE_EXIT": "10",
            "PYTHONPATH": str(ROOT),
            **self.more,
            **more,
        }

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """A command in a process group of its own, as a shell would start it."""
        process = subprocess.Popen(
            [*VCTL, *words], env=self.environment(env), cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        )  # fmt: skip
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], *, within_s: float = PATIENCE_S) -> Ran:
        began = time.monotonic()
        out, err = process.communicate(timeout=within_s)
        return Ran(process.returncode, out, err, time.monotonic() - began)

    def run(self, *words: str, stdin: bytes = b"", **env: str) -> Ran:
        """A command to its end, whatever it says."""
        began = time.monotonic()
        done = subprocess.run(
            [*VCTL, *words], env=self.environment(env), cwd=self.folder, input=stdin, capture_output=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def fork(self, *words: str, **env: str) -> Ran:
        """The real entry point in a fork of this process, which has imported everything: quick."""
        out, err = self.folder / ".stdout", self.folder / ".stderr"
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                os.chdir(self.folder)
                environment = self.environment(env)
                os.environ.clear()
                os.environ.update(environment)
                for number, path in enumerate((Path(os.devnull), out, err)):
                    flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                    os.dup2(os.open(path, flags), number)
                sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w") for n in range(3))
                sys.argv = ["vctl", *words]
                from vctl.__main__ import main

                status = main()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        took = time.monotonic() - began
        return Ran(os.waitstatus_to_exitcode(ended), out.read_bytes(), err.read_bytes(), took)

    def ok(self, *words: str, **env: str) -> str:
        """A command that must work; its output."""
        done = self.fork(*words, **env)
        assert done.code == 0, (words, done)
        return done.out

    def read(self, *words: str) -> Any:
        """The JSON answer of a command."""
        return json.loads(self.ok(*words, "-o", "json"))

    def add_nodes(self, count: int, resources: str = FOUR) -> None:
        self.ok("node", "add", "--count", str(count), "--simulated", "--resources", resources)

    def submit(self, *words: str) -> str:
        """Queue a job and return its submission id; nobody is started for it."""
        return self.ok("job", "submit", "--no-wait", *words, VCTL_AUTOSTART="0").strip()

    def sleeper(self, *words: str) -> str:
        return self.submit(*words, "--", "sleep", "1000")

    def job(self, ref: str) -> dict[str, Any]:
        """One job, read in this process: waiting for it must not cost the machine a command each time."""
        from vctl.ops import jobs
        from vctl.store.store import Store

        with Store.open(self.home) as store:
            return jobs.get_job(store, ref)

    def jobs(self) -> dict[str, dict[str, Any]]:
        from vctl.ops import jobs
        from vctl.store.store import Store

        with Store.open(self.home) as store:
            return {job["submission_id"]: job for job in jobs.list_jobs(store, all=True)[0]}

    def reach(self, ref: str, *statuses: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        eventually(lambda: self.job(ref)["status"] in statuses, f"{ref} to be {statuses}", within_s)
        return self.job(ref)

    def running_process(self, ref: str) -> int:
        """Pid of a job's main process, once it is known."""

        def pid() -> int | None:
            with self.sql() as db:
                row = db.execute(
                    "SELECT pid FROM runs JOIN jobs USING (job_id) WHERE submission_id = ? AND state = 'RUNNING'",
                    (ref,),
                ).fetchone()
            return None if row is None else int(row[0])

        return int(eventually(pid, f"the process of {ref}"))

    def supervisor_of(self, ref: str) -> int:
        self.running_process(ref)
        with self.sql() as db:
            (run_id,) = db.execute(
                "SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = ?",
                (ref,),
            ).fetchone()
        start = LocalRuntime(self.home).observe(run_id).start
        assert start is not None
        return start.supervisor

    def sql(self) -> Sql:
        return Sql(self.home / "cluster.db")

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that is in the tables."""
        with self.sql() as db:
            names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)}

    def daemon(self, *words: str, within: Sequence[str] = (), **env: str) -> subprocess.Popen[bytes]:
        """A daemon that schedules; its log is ``daemon.log`` beside the state. ``within``: words before its command."""
        with open(self.folder / "daemon.log", "ab") as log:
            process = subprocess.Popen(
                [*within, *VCTL, "daemon", *words], env=self.environment(env), cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip
        self._started.append(process)

        def ready() -> bool:
            assert process.poll() is None, (self.folder / "daemon.log").read_text()
            return self.heartbeat().get("pid") == process.pid

        eventually(ready, "the daemon to begin")
        return process

    def scheduler(self) -> dict[str, Any]:
        """Which scheduler is at work, as ``vctl daemon --status`` says."""
        return background.status(self.home)

    def heartbeat(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.home / "scheduler.beat").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, as sudden as it can be, and collect it."""
        process.kill()
        process.communicate(timeout=PATIENCE_S)

    def term(self, process: subprocess.Popen[bytes]) -> Ran:
        process.terminate()
        return self.finish(process)

    def free(self) -> dict[str, float]:
        """What is free on each physical node, as ``vctl nodes`` says."""
        return {node["NodeID"]: node["Available"]["CPU"] for node in self.read("nodes")["items"]}

    def assert_sound(self) -> None:
        """Nothing held, and the doctor content."""
        with self.sql() as db:
            for table in ("vnodes", "clusters"):
                assert db.execute(f"SELECT * FROM {table}").fetchall() == [], table
            assert db.execute("SELECT * FROM runs").fetchall() == []
        doctor = self.run("doctor", "--prove", "-o", "json")
        assert doctor.code == 0, doctor.out
        assert doctor.json["findings"] == []

    def end(self) -> None:
        """End every command, then every run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=PATIENCE_S)
        background.stop(self.home)
        if not (self.home / "records").is_dir():
            return
        runtime = LocalRuntime(self.home)
        for run_id in runtime.known_runs():
            runtime.stop(run_id, grace_s=0)
        over = (RunState.EXITED, RunState.LOST, RunState.NEVER_STARTED)
        for run_id in runtime.known_runs():
            eventually(
                lambda run_id=run_id: runtime.observe(run_id).state in over, f"the end of run {run_id}"
            )
            runtime.clear_lost(run_id)
        runtime.close()
        complaints = self.home / "launcher.log"
        assert not complaints.exists() or complaints.read_text() == ""


class Sql:
    """A look at the raw tables: closed at the end, changes committed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        self._db = sqlite3.connect(self._path, timeout=30)
        return self._db

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._db.commit()
        self._db.close()


@pytest.fixture(scope="session", autouse=True)
def everything_imported() -> None:
    """So that no fork imports it again."""
    import sqlite_utils.migrations  # noqa: F401

    from vctl.cli import bridge, catalog, output, screen, table  # noqa: F401
    from vctl.daemon import loop  # noqa: F401
    from vctl.ops import health, jobs, views, waiting  # noqa: F401
    from vctl.scheduler import feasibility  # noqa: F401
    from vctl.spec import cluster_spec, job_request, options, shape, source  # noqa: F401

    catalog.load_all()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty state directory without nodes."""
    here = Place(tmp_path / "state", tmp_path / "work")
    yield here
    here.end()


@pytest.fixture
def two(place: Place) -> Place:
    """Two simulated nodes of 4 CPUs."""
    place.add_nodes(2)
    return place


@pytest.fixture
def one(place: Place) -> Place:
    """One simulated node of 4 CPUs."""
    place.add_nodes(1)
    return place


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C: the terminal sends it to the whole foreground group."""
    os.killpg(process.pid, signal.SIGINT)
