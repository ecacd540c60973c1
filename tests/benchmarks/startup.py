"""What one command costs from a cold process, against a bare Python: wall time, and CPU with what carries it out."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.bed import VCTL, Bed, bed, interleaved, which
from tests.benchmarks.report import Report

BASE = "python -c pass"
CONNECT = [sys.executable, "-c", "import vctl; vctl.connect()"]
SETTLE_S = 0.05
"""Seconds after a command in which forks that have ended it give back what they hold."""


def run(options: argparse.Namespace) -> Report:
    """Cold starts, interleaved; the queue is empty. With a scheduler, commands are handed to its command server."""
    report = Report("startup: wall time of one command, cold process")
    with bed() as place:
        place.add_nodes(1, {"CPU": 64})
        words = ("status -o json", "ps -o json", "job submit --no-wait -- true", "status", "ps")
        waiting = ("run -- true", "job wait last", "logs -f last", "--help", "run --help")
        commands = {BASE: [sys.executable, "-c", "pass"], "vctl --version": [VCTL, "--version"]}
        commands |= {f"vctl {line}": [VCTL, *line.split()] for line in (*words, *waiting)}
        alone = {
            f"vctl {line}, no scheduler": ["env", "VCTL_DEBUG=1", VCTL, *line.split()]
            for line in (*words, "--help", "run --help")
        }
        alone["import vctl; vctl.connect()"] = CONNECT
        if tsp := which("tsp", "ts"):
            commands["tsp"] = [tsp, "true"]
        else:
            report.remark("task-spooler is not installed: no comparison with tsp")
        rounds = options.rounds or 20
        with place.daemon() as daemon:
            taken = interleaved(rounds, commands | alone, place.env)
            used = _used(place, daemon, rounds, commands | alone)
            place.end_all()
    for name, samples in taken.items():
        report.add(name, "ms", samples, base=None if name == BASE else BASE)
    for name, samples in used.items():
        base = None if name == BASE else f"CPU: {BASE}"
        report.add(f"CPU: {name}", "ms", samples, base=base)
    report.remark(
        "CPU is that of the command, of the fork that carries it out, and of the server that makes forks"
    )
    return report


def _used(
    place: Bed, daemon: subprocess.Popen[bytes], rounds: int, commands: dict[str, list[str]]
) -> dict[str, list[float]]:
    """CPU milliseconds of each command, taken in turns; one more waits for a job that goes on."""
    sleeper = [VCTL, "run", "-d", "--submission-id", "sleeper", "--", "sleep", "1000"]
    subprocess.run(sleeper, env=place.env, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    commands = commands | {"vctl wait JOB --timeout 0.5": [VCTL, "wait", "sleeper", "--timeout", "0.5"]}
    used: dict[str, list[float]] = {name: [] for name in commands}
    server = _server(daemon.pid)
    for _ in range(rounds):
        for name, command in commands.items():
            used[name].append(_cpu_ms(place, server, command))
    return used


def _server(daemon: int) -> int:
    """The process that answers commands for a scheduler."""
    for pid in _children(daemon):
        if b"vctl.cli.command_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise RuntimeError("the scheduler has no command server")


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_ms(place: Bed, server: int, command: Sequence[str]) -> float:
    """CPU of a command, of the forks of the server meanwhile, and of the server."""
    forks: dict[int, tuple[int, int]] = {}
    over = threading.Event()
    before = {pid: _ns(pid) for pid in (server, *_children(server))}

    def watch() -> None:
        while not over.wait(0.001):
            for pid in (server, *_children(server)):
                if found := _ns(pid):
                    forks[pid] = before.get(pid, 0), found

    watching = threading.Thread(target=watch)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    watching.start()
    subprocess.run(command, env=place.env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    time.sleep(SETTLE_S)
    over.set()
    watching.join()
    then = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_command = (then.ru_utime + then.ru_stime - own.ru_utime - own.ru_stime) * 1e3
    return of_command + sum(last - first for first, last in forks.values()) / 1e6


def _ns(pid: int) -> int:
    """The CPU time of a process; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except OSError:
        return 0
