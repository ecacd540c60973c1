"""Plays seeds: each in a directory of its own, on its own clock, with its own randomness."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
import traceback
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.simulation.simulation import ALL_FAULTS as FAULTS
from tests.simulation.simulation import OFTEN, Simulation
from vctl.store.store import Store

__all__ = ["FAULTS", "Played", "play", "smallest"]
LAST_LINES = 40
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the directories of seeds are: what a disk does is simulated."""


@dataclass
class Played:
    """How a seed went. The same seed has the same ``fingerprint``."""

    seed: int
    fingerprint: str = ""
    steps: int = 0
    problem: BaseException | None = None
    faults: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    trace: list[str] = field(default_factory=list)

    def report(self, *, whole: bool = False) -> str:
        """What failed, and how to see it again."""
        leave_out = "".join(f" --without {name!r}" for name in sorted(self.without))
        where = "".join(traceback.format_exception(self.problem)[-12:]) if self.problem else ""
        lines = self.trace if whole else self.trace[-LAST_LINES:]
        return (
            f"seed {self.seed} fails at step {self.steps}, with faults {', '.join(self.faults)}\n"
            f"again: python -m tests.simulation {self.seed}{leave_out}\n" + "\n".join(lines) + f"\n{where}"
        )


@lru_cache
def _template() -> Path:
    """An empty state directory: making the tables costs more than a short seed."""
    folder = Path(tempfile.mkdtemp(prefix="vctl-simulation-", dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Store.open(folder / "state").close()
    (folder / "state" / "records").mkdir(exist_ok=True)
    return folder / "state"


def play(seed: int, steps: int, *, without: frozenset[str] = frozenset()) -> Played:
    """Play a seed to its end, or to its first violation."""
    played = _play(seed, steps, without, OFTEN)
    if played.problem is not None:  # everything is checked after each step now, which tells which one it was
        again = _play(seed, steps, without, 1)
        played = again if again.problem is not None else played
    return played


def _play(seed: int, steps: int, without: frozenset[str], often: int) -> Played:
    folder = Path(tempfile.mkdtemp(prefix="vctl-simulation-", dir=MEMORY))
    noise = random.Random(f"{seed} noise")
    played = Played(seed, without=without)
    world: Simulation | None = None
    try:
        shutil.copytree(_template(), folder / "state")
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()):
            patch.setattr(os, "urandom", noise.randbytes)
            patch.setattr("vctl.daemon.commit._free_port", lambda taken: max(taken, default=20_000) + 1)
            with Simulation(folder / "state", seed, without=without, often=often) as world:
                world.processes.install(patch)
                world.clients.install(patch)
                ticks = SimpleNamespace(monotonic=count(0, 0.001).__next__, sleep=world.sleep)
                patch.setattr("vctl.ops.jobs.time", ticks)
                try:
                    played.fingerprint = world.run(steps)
                except Exception as error:  # noqa: BLE001 - whatever it is, the code under test has failed
                    played.problem = error
                played.steps, played.trace, played.faults = (
                    world.steps,
                    world.trace,
                    (*world.faults, *world.clients.faults, *world.restores.faults),
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return played


def smallest(failed: Played, steps: int) -> str:
    """Leave out each fault without which it fails as well."""
    for name in failed.faults:
        again = play(failed.seed, steps, without=failed.without | {name})
        if again.problem is not None and type(again.problem) is type(failed.problem):
            failed = again
    return f"smallest: {failed.report()}"
