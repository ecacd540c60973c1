"""Memory that a job has on this machine is a limit; on a declared node it is a number (spec 8, 16)."""

from __future__ import annotations

import sys

import pytest

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("16.local", "8.retries")

FILL = "import sys, time; kept = b'x' * (200 << 20); time.sleep(float(sys.argv[1]))"
LARGE = (sys.executable, "-I", "-S", "-c", FILL)


@pytest.fixture
def here(place: Place) -> Place:
    """This machine as the only node."""
    place.daemon(VCTL_LOCAL_NODE="1")
    return place


def test_a_job_that_uses_more_memory_than_it_has_fails_and_says_so(here: Place) -> None:
    ran = here.run(
        "job", "submit", "--submission-id", "j", "-n", "1", "--memory", "64MiB", "--", *LARGE, "60"
    )
    assert ran.code == 137
    job = here.job("j")
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("FAILED", "OutOfMemory", 137)
    assert job["message"].startswith("asked 64 MiB, peak ")
    assert "--memory" in ran.err, "it names the fix"
    here.assert_sound()


def test_it_is_tried_again_only_where_that_cause_was_asked_for(here: Place) -> None:
    words = ("-n", "1", "--memory", "64MiB", "--max-retries", "1", "--backoff", "0.1s")
    here.run("job", "submit", "--submission-id", "a", *words, "--retry-on", "OutOfMemory", "--", *LARGE, "60")
    here.run("job", "submit", "--submission-id", "b", *words, "--", *LARGE, "60")
    assert [(here.job(one)["attempt"], here.job(one)["state_reason"]) for one in "ab"] == [
        (2, "OutOfMemory"),
        (1, "OutOfMemory"),
    ]


def test_a_task_has_its_own_limit(here: Place) -> None:
    task = [sys.executable, "-m", "vctl", "task", "run", "--memory", "64MiB", "--", *LARGE, "60"]
    gang = ("-n", "1", "--memory", "1GiB", "--entrypoint-num-cpus", "0", "--entrypoint-memory", "0")
    ran = here.run("job", "submit", "--submission-id", "j", *gang, "--", *task)
    assert ran.code == 137, ran.err
    (found,) = here.read("task", "list", "--job", "j")["items"]
    assert (found["state"], found["state_reason"]) == ("FAILED", "OutOfMemory")


@pytest.mark.parametrize("words", [("-n", "1"), ("-n", "1", "--memory", "1GiB")])
def test_a_job_with_enough_or_without_a_limit_goes_on(here: Place, words: tuple[str, ...]) -> None:
    assert here.run("job", "submit", *words, "--", *LARGE, "1.5").code == 0


def test_the_memory_of_a_declared_node_is_a_number(one: Place) -> None:
    one.daemon()
    assert one.run("job", "submit", "-n", "1", "--memory", "64MiB", "--", *LARGE, "1.5").code == 0
