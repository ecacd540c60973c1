"""A supervisor and its runs, of which each call and each allocation fails once; all processes are real.

Its runs end by themselves, fail, are stopped, write to a bounded log, and cannot be started. What must hold: no command
starts twice; a run that has ended has the exit code and the log of its command; one whose end nobody can know is lost,
which is the run of a supervisor that was killed; nothing hangs, and no process stays.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path

from tests.faults.points import Points
from vctl.runtime import forkserver, processes
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import LaunchRequest, RunState

PATIENCE_S = 20.0
AGAIN_S = 2.0
"""As a scheduler: a run that was not taken within that time is launched again."""
CODES = {"ends": (0,), "fails": (3,), "stopped": (143, 137), "bounded": (0,), "missing": (127,)}
SCRIPT = os.path.join(os.path.dirname(__file__), "launch.py")


class Supervised:
    """A runtime whose first supervisor has the point that fails."""

    lost: Counter[str]

    def __init__(self, work: Path) -> None:
        self.work = work
        self.lost = Counter()
        self.crashes = 0

    def counted(self, kind: str) -> list[str]:
        wrong = self._play(kind, Points())
        assert not wrong, wrong
        return list(json.loads((self.work / "fault.points").read_text()))

    def fails(self, kind: str, at: int, turn: int) -> list[str]:
        """What does not hold when the point of this number fails."""
        return self._play(kind, Points(at, turn))

    def _play(self, kind: str, failing: Points) -> list[str]:
        home = self.work / "state"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        (self.work / "fault").write_text(json.dumps([kind, failing.at, failing.turn]))
        usual, forkserver._SCRIPT = forkserver._SCRIPT, SCRIPT
        runtime = LocalRuntime(home)
        runtime._supervisors.supervisors = 1  # all runs are of the one with the point
        try:
            runtime.prepare()
            wrong = _Playing(home, runtime, self.lost).go()
        finally:
            runtime.close()
            forkserver._SCRIPT = usual
        until = time.monotonic() + PATIENCE_S
        while left := _processes_of(home):
            if time.monotonic() > until:
                wrong.append(f"processes stay: {left}")
                for pid in left:
                    os.kill(pid, 9)
                break
            time.sleep(0.005)
        log = home / "launcher.log"
        said = log.read_text() if log.exists() else ""
        if failing.at == 0 and said:
            wrong.append(said)
        return [f"{one}; {said[-1500:]}" for one in wrong]


def _processes_of(home: Path) -> list[int]:
    name = os.fsencode(home)
    return [
        one.pid for one in processes.all_processes()
        if one.pid != os.getpid() and one.state not in "ZX" and name in b" ".join(processes.command(one.pid))
    ]  # fmt: skip


class _Playing:
    """The runs of one play, and what a scheduler does about them."""

    def __init__(self, home: Path, runtime: LocalRuntime, lost: Counter[str]) -> None:
        self.home, self.runtime, self.lost = home, runtime, lost
        self.ran = home / "ran"
        self.over: dict[str, int | None] = {}
        """How each run that is over has ended; None: it is lost."""
        self.launched: dict[str, float] = {}
        mark = f'echo "$0" >> {self.ran}; '
        self.commands = {
            "ends": ("sh", "-c", f"{mark} echo out", "ends"),
            "fails": ("sh", "-c", f"{mark} sleep 0.02; echo out; exit 3", "fails"),
            "stopped": ("sh", "-c", f"{mark} echo out; exec sleep 1000", "stopped"),
            "bounded": ("sh", "-c", f"{mark} echo out; sleep 0.02", "bounded"),
            "missing": ("./no-such-command",),
        }
        number = runtime.assign()
        numbers = {"ends": number, "fails": number, "missing": number}
        self.requests = {
            name: LaunchRequest(
                run_id=name, argv=argv, own={"PATH": os.environ["PATH"]}, cwd=str(home), grace_s=0.2,
                log_path=str(runtime.logs / name), supervisor=numbers.get(name) or runtime.assign(),
                log_max_bytes=100_000 if name == "bounded" else 0,
            )
            for name, argv in self.commands.items()
        }  # fmt: skip

    def go(self) -> list[str]:
        until = time.monotonic() + PATIENCE_S
        while len(self.over) < len(self.requests):
            if time.monotonic() > until:
                return [f"it hangs: only {self.over}"]
            self.runtime.changes()
            for name in self.requests.keys() - self.over.keys():
                self._look(name)
            time.sleep(0.002)
        return self._judged()

    def _look(self, name: str) -> None:
        """What a scheduler does about a run."""
        seen, now = self.runtime.observe(name), time.monotonic()
        if seen.state is RunState.NEVER_STARTED and now > self.launched.get(name, -1e9) + AGAIN_S:
            self.launched[name] = now
            self.runtime.launch(self.requests[name])
        elif seen.state is RunState.RUNNING and name == "stopped" and self._has_begun():
            self.runtime.stop(name, grace_s=0.2)
        elif seen.state is RunState.EXITED:
            assert seen.exit is not None
            self.over[name] = seen.exit.exit_code
        elif seen.state is RunState.LOST and not self.runtime.clear_lost(name):
            self.over[name] = None

    def _judged(self) -> list[str]:
        """What does not hold at the end."""
        ran = Counter(self.ran.read_text().split()) if self.ran.exists() else Counter[str]()
        wrong = [f"{name} ran {count} times" for name, count in ran.items() if count > 1]
        for name, code in self.over.items():
            if code is None:
                self.lost[name] += 1
            elif code not in CODES[name]:
                wrong.append(f"{name} has exit code {code}")
            elif name != "missing" and not ran[name]:
                wrong.append(f"{name} has ended and did not run")
            elif name != "missing" and (self.runtime.logs / name).read_text() != "out\n":
                wrong.append(f"{name} has another log")
        return wrong

    def _has_begun(self) -> bool:
        return self.ran.exists() and "stopped" in self.ran.read_text()
