"""The guard of tests with real Ray ends what they started, also when they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import eventually, is_gone
from tests.specification import spec

pytestmark = spec("16.ray")

TESTS = """
import subprocess, time
from tests import ray_guard

ray_guard.begin()
sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(sleeper.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGTERM])
def test_what_tests_have_started_ends_with_them(signo: int) -> None:
    before = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    tests = subprocess.Popen(
        [sys.executable, "-c", TESTS], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
    )
    try:
        assert tests.stdout is not None
        started = int(tests.stdout.readline())
        assert not is_gone(started)
        os.kill(tests.pid, signo)
        tests.communicate()
        eventually(lambda: is_gone(started), "what they have started to end")
        assert before.poll() is None
    finally:
        before.kill()
        before.wait()
