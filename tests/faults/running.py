"""Real schedulers: one whose own calls fail, one that a submit starts, and one whose command server has the submit.

What must hold in addition to what holds for a submit: each job runs once and to its end, be it by the next scheduler,
and no process stays.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tests.faults.commands import (
    Ended,
    Modules,
    begun,
    collected,
    ended,
    import_all,
    is_a_sentence,
    play,
    vctl,
    warm,
)
from tests.faults.points import ROOT, Points
from tests.faults.submit import Submit
from tests.faults.supervised import none_stays
from vctl import SOCKET
from vctl.config import load
from vctl.daemon import command_server
from vctl.operations import jobs, nodes
from vctl.operations.declare import Context
from vctl.ops import background
from vctl.ops.prove import prove
from vctl.store import locks
from vctl.store.store import Store

PATIENCE_S = 20.0
ENDS = {"one": ("SUCCEEDED", 0), "three": ("FAILED", 3), "behind": ("SUCCEEDED", 0)}


def until(holds: Callable[[], bool]) -> bool:
    """Whether something holds before long."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True


def statuses(home: Path) -> dict[str, tuple[str, int | None]]:
    with Store.open(home) as store:
        rows = store.rows("SELECT submission_id, status, exit_code FROM jobs")
    return {row[0]: (row[1], row[2]) for row in rows}


class Started(Submit):
    """A submit that starts a scheduler; only the points of the start differ from those of the others."""

    autostart = "1"
    statuses = ("PENDING", "SUCCEEDED")

    def _left(self, home: Path, ended: Ended, *, killed: bool) -> list[str]:
        wrong = []
        if locks.scheduler_is_starting(home) or locks.scheduler_is_running(home):
            is_over = until(lambda: all(status == "SUCCEEDED" for status, _ in statuses(home).values()))
            if not is_over:
                wrong.append(f"a scheduler was started, and does not run the jobs: {statuses(home)}")
        elif ended.code == 0 and "Warning: " not in ended.err:
            wrong.append("no scheduler was started, and nobody says so")
        background.stop(home)
        wrong += none_stays(home)
        return wrong + super()._left(home, ended, killed=killed)


class Played(ABC):
    """A subject that notes its points itself."""

    work: Path

    def counted(self, kind: str) -> list[str]:
        notes = self.work / ".points"
        wrong = self._play(kind, Points(), notes)
        assert not wrong, wrong
        return list(json.loads(notes.read_text()))

    def fails(self, kind: str, at: int, turn: int) -> list[str]:
        """What does not hold when the point of this number fails."""
        return self._play(kind, Points(at, turn))

    @abstractmethod
    def _play(self, kind: str, failing: Points, notes: Path | None = None) -> list[str]:
        """What does not hold after one play. ``notes``: where to write the points."""


class Daemon(Played):
    """A scheduler from its start to its end, with three jobs."""

    def __init__(self, work: Path) -> None:
        self.work, self.home, self.ran = work, work / "state", work / "ran"
        self.folder = work / "work"
        self.folder.mkdir()
        self.env = {**os.environ, "VCTL_HOME": str(self.home), "VCTL_LOCAL_NODE": "0"}
        imported = Modules()
        wrong = self._play("none", imported, notes := work / ".modules")
        assert not wrong, wrong
        import_all(notes)

    def close(self) -> None:
        """Nothing was started that lasts."""

    def _play(self, kind: str, failing: Points, notes: Path | None = None) -> list[str]:
        self._fresh()
        done = self._served(kind, failing, notes)
        if done.code < 0 and kind == "memory":  # CPython itself does not survive it: as a kill
            wrong = []
        else:
            wrong = is_a_sentence(done) + ["it speaks of damage, and there is none"] * (
                "malformed" in done.err
            )
        if not self._are_over():
            second = self._served("none", Points())
            wrong += [f"the next scheduler: {second}"] * (second.code != 0)
        wrong += none_stays(self.home)
        if (found := statuses(self.home)) != ENDS:
            wrong.append(f"the jobs are {found}")
        if sorted(self.ran.read_text().split() if self.ran.exists() else ()) != sorted(ENDS):
            wrong.append("not each job ran once")
        with Store.open(self.home) as store:
            wrong += prove(store)
        return [f"{one}: {done}" for one in wrong]

    def _served(self, kind: str, failing: Points, notes: Path | None = None) -> Ended:
        """A scheduler, which is told to end once all jobs are over; one that ends before has said why."""
        pid = begun(vctl("daemon"), self.folder, self.env, kind, failing, notes)
        handle = os.pidfd_open(pid)
        until(lambda: bool(select.select([handle], [], [], 0)[0]) or self._are_over())
        os.close(handle)
        os.kill(pid, signal.SIGTERM)  # a child that has ended, and is not collected, gets it as well
        return ended(pid, self.folder)

    def _are_over(self) -> bool:
        return all(status not in ("PENDING", "RUNNING") for status, _ in statuses(self.home).values())

    def _fresh(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        self.ran.unlink(missing_ok=True)
        with Store.open(self.home) as store:
            context = Context(store, load(env={"VCTL_HOME": str(self.home), "VCTL_LOCAL_NODE": "0"}))
            nodes.add.run(context, resources={"CPU": 4}, count=1)
            for name, (_, code) in ENDS.items():
                jobs.submit.run(
                    context, ["sh", "-c", f"echo {name} >> {self.ran}; exit {code}"], submission_id=name, cwd="/",
                    environment={"PATH": os.environ["PATH"]}, after=["ok:one"] if name == "behind" else [],
                )  # fmt: skip


class Served(Played):
    """Submits that the command server of one scheduler carries out: points of the client, or of the server."""

    def __init__(self, work: Path, *, in_server: bool) -> None:
        self.work, self.home, self.in_server = work, work / "state", in_server
        self.folder, self.fault = work / "work", work / "fault"
        self.folder.mkdir()
        self.number = 0
        self.env = {**os.environ, "VCTL_HOME": str(self.home), "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"}
        with Store.open(self.home) as store:
            context = Context(store, load(env=self.env))
            nodes.add.run(context, resources={"CPU": 4}, count=1)
        command_server.MODULE, command_server.FIRST_S = "tests.faults.serving", 0.0
        os.environ["PYTHONPATH"] = ROOT
        self.scheduler = begun(vctl("daemon"), self.folder, self.env, "none", Points())
        assert until((self.home / SOCKET).exists)
        warm(self._submit(), self.folder, self.env)

    def close(self) -> None:
        """End the scheduler."""
        os.kill(self.scheduler, signal.SIGTERM)
        collected(self.scheduler)
        assert not (left := none_stays(self.home)), left

    def _submit(self) -> Callable[[], None]:
        self.number += 1
        name = f"j{self.number}"
        return vctl(
            "job", "submit", "--no-wait", "--submission-id", name, "--num-cpus", "1", "--",
            "sh", "-c", f"echo {name} >> {self.work}/ran",
        )  # fmt: skip

    def _play(self, kind: str, failing: Points, notes: Path | None = None) -> list[str]:
        run = self._submit()
        if self.in_server:
            self.fault.write_text(json.dumps([kind, failing.at, failing.turn]))
            done = play(run, self.folder, self.env, "none", Points())
            if notes is not None:
                assert until((self.work / "fault.points").exists)
                (self.work / "fault.points").replace(notes)
        else:
            done = play(run, self.folder, self.env, kind, failing, notes)
        wrong = [] if done.code < 0 and kind == "memory" else is_a_sentence(done)
        name = f"j{self.number}"
        is_there = name in statuses(self.home)
        if done.code == 0 and (not is_there or done.out != f"{name}\n"):
            wrong.append("success, and the job is not there, or its id is not said")
        if done.code > 0 and is_there and "was submitted" not in done.err and "took effect" not in done.err:
            wrong.append("an error, and the job is there")
        if is_there and not until(lambda: statuses(self.home)[name] == ("SUCCEEDED", 0)):
            wrong.append(f"the job does not end: {statuses(self.home)[name]}")
        ran = (self.work / "ran").read_text().split() if (self.work / "ran").exists() else []
        if ran.count(name) != int(is_there):
            wrong.append(f"it ran {ran.count(name)} times")
        with Store.open(self.home) as store:
            wrong += prove(store)
        return [f"{one}: {done}" for one in wrong]
