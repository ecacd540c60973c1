"""A Slurm to compare with: a controller, a node and munge of its own, in a temporary folder, ended with it."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.bed import which

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
IS_INSTALLED = all(which(name, f"/usr/sbin/{name}") for name in PROGRAMS) and os.geteuid() == 0
"""Only root may run the node of a cluster in which its user submits."""
PATIENCE_S = 60.0
CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1,bf_interval=1,default_queue_depth=1000
Epilog={true}
MaxArraySize=200001
MaxJobCount=400000
NodeName=bench NodeHostname={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=all Nodes=bench Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
"""Nothing is accounted, and it looks for the next job as soon as it can.

Without an epilog a node only answers that a job is over, and the controller looks again when a second has passed.
"""
MOST_JOBS = 500
"""Its rate hardly depends on how many wait, and more take minutes."""


@contextmanager
def cluster(slots: int) -> Iterator[dict[str, str]]:
    """The environment in which its commands find a cluster that is ready for work."""
    with tempfile.TemporaryDirectory(prefix="vctl-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # munge wants nobody else to write above its socket
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        for one in ("state", "spool"):
            (folder / one).mkdir()
        host = socket.gethostname().partition(".")[0]
        ports = {"controller_port": _free_port(), "node_port": _free_port()}
        conf = folder / "slurm.conf"
        conf.write_text(CONF.format(folder=folder, host=host, slots=slots, true=which("true"), **ports))
        env = {"PATH": f"{os.environ['PATH']}:/usr/sbin", "SLURM_CONF": str(conf), "HOME": name}
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        munge = [f"--{option}={folder}/munge.{suffix}" for option, suffix in files.items()]
        daemons = (
            ["munged", "--foreground", *munge],
            ["slurmctld", "-D", "-i", "-f", str(conf)],
            ["slurmd", "-D", "-N", "bench", "-f", str(conf)],
        )
        with open(folder / "out", "ab") as out:
            for words in daemons:
                process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
                stack.callback(_end, process)
                if words[0] == "munged":
                    _until((folder / "munge.socket").exists, folder)
        _until(lambda: "idle" in _said(env, "sinfo", "-h", "-o", "%T"), folder)
        yield env


@contextmanager
def waiting(jobs: int) -> Iterator[dict[str, str]]:
    """The variables with which ``squeue`` finds so many waiting jobs."""
    with cluster(2) as env:
        words = ["sbatch", "--hold", f"--array=1-{jobs}", "--chdir=/", "--wrap", "true"]
        subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
        yield {"SLURM_CONF": env["SLURM_CONF"]}


def seconds(slots: int, jobs: int) -> float:
    """How long an array takes, from before its submit to the end of its last member."""
    with cluster(slots) as env:
        words = ["sbatch", f"--array=1-{jobs}", "--chdir=/", f"--output={os.devnull}", "--wrap", "true"]
        started = time.perf_counter()
        subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
        while subprocess.run(["squeue", "-h"], env=env, check=True, capture_output=True).stdout:
            time.sleep(0.05)
        return time.perf_counter() - started


def _said(env: dict[str, str], *words: str) -> str:
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout.strip()


def _until(condition: Callable[[], object], folder: Path) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up:
            said = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
            raise RuntimeError(f"Slurm does not run:\n{said}{(folder / 'out').read_text()}")
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
