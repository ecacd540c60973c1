"""Each call and each allocation of a submit, of a scheduler and of a supervisor fails once.

Here every place of the code is played once, and of the allocations a few that the day chooses. All of them: the mark
soak, or ``python -m tests.faults``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.points import KINDS, ROOT
from tests.specification import spec

pytestmark = [spec("12.daemon-death", "13.submit", "17.durable"), pytest.mark.timeout(600)]

SUBJECTS = (
    "submit", "first-submit", "starting-submit", "served-submit", "serving-submit", "turns", "daemon", "supervisor",
)  # fmt: skip
NOT_IN = {
    ("supervisor", "io"), ("supervisor", "sqlite"),
    ("served-submit", "io"), ("served-submit", "sqlite"), ("serving-submit", "io"), ("serving-submit", "sqlite"),
}  # fmt: skip
"""A supervisor has no database, nor has a client of the command server; that server is no fork of this process."""


def played(tmp_path: Path, *words: str) -> None:
    """Play points in a process that has imported nothing else."""
    env = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
    sys.stdout.write(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "call", "--places"),
        ("submit", "io", "--places"),
        ("first-submit", "call", "--places"),
        ("turns", "call", "--places"),
        ("turns", "io", "--places"),
        ("supervisor", "call", "--places"),
        ("served-submit", "call"),
        ("serving-submit", "call", "--places", "--of", "command_server|handing|frames"),
        ("starting-submit", "call", "--places", "--of", "background|detached|StartLock"),
        ("daemon", "call", "--places", "--of", "vctl/(runtime|daemon/(loop|command_server))"),
    ],
    ids="-".join,
)
def test_a_call_fails_at_each_place(tmp_path: Path, words: tuple[str, ...]) -> None:
    played(tmp_path, *words)


@pytest.mark.parametrize(
    ("subject", "kind", "every"),
    [
        ("submit", "memory", 300),
        ("submit", "sqlite", 300),
        ("turns", "memory", 9_000),
        ("turns", "sqlite", 1_500),
        ("supervisor", "memory", 600),
    ],
)
def test_some_allocations_fail(tmp_path: Path, subject: str, kind: str, every: int) -> None:
    """Always the same ones, as what fails here has to fail again; ``SEED`` chooses others."""
    chance = random.Random(os.environ.get("SEED", "0"))
    played(tmp_path, subject, kind, "--every", str(every), "--from", str(chance.randrange(1, every)))


@pytest.mark.soak
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize(
    ("subject", "kind"), [(s, k) for s in SUBJECTS for k in KINDS if (s, k) not in NOT_IN]
)
def test_every_call_and_every_allocation_fails(tmp_path: Path, subject: str, kind: str) -> None:
    played(tmp_path, subject, kind)
