"""``--after``: who waits for whom, and what becomes of those for whom it ended wrongly."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_holding import status, submit
from tests.specification import spec
from vctl.errors import NotFound
from vctl.ops import job_edits
from vctl.ops import jobs as job_ops
from vctl.spec.options import parse_dependency

pytestmark = spec("8.after")

ENDINGS = {"well": ("true",), "badly": ("false",)}
FAILED = ("FAILED", "DependencyFailed")
RUNS = ("SUCCEEDED", None)
CASES = {
    ("ok", "well"): RUNS,
    ("ok", "badly"): FAILED,
    ("any", "well"): RUNS,
    ("any", "badly"): RUNS,
    ("notok", "well"): FAILED,
    ("notok", "badly"): RUNS,
}


@pytest.fixture
def here(life: Life) -> Life:
    life.nodes(1, "t")
    return life


def after(*words: str) -> tuple:  # type: ignore[type-arg]
    return tuple(parse_dependency(word) for word in words)


@pytest.mark.parametrize(("case", "want"), CASES.items(), ids=[" ".join(case) for case in CASES])
@pytest.mark.parametrize("early", [True, False], ids=["submitted before the end", "after it"])
def test_conditions(here: Life, case: tuple[str, str], want: tuple[str, str | None], early: bool) -> None:
    condition, end = case
    submit(here, "first", *ENDINGS[end], hold=True)
    if early:
        submit(here, "next", "true", after=after(f"{condition}:first"))
        here.turn()
        assert status(here, "next") == ("PENDING", "Dependency")
        assert here.job("next")["message"] == f"waits for {condition}:first"
    job_edits.release(here.store, "first")
    here.until(lambda: here.job("first")["status"] in ("SUCCEEDED", "FAILED"))
    if not early:
        submit(here, "next", "true", after=after(f"{condition}:first"))
    here.until(lambda: here.job("next")["status"] in ("SUCCEEDED", "FAILED"))
    assert status(here, "next") == want
    assert (here.job("next")["started_at"] is None) == (want == FAILED)
    assert here.store.value("SELECT count(*) FROM dependencies") == 0


def test_impossible_at_submit_is_accepted_and_fails_without_a_scheduler(here: Life) -> None:
    submit(here, "first", "true")
    job_ops.stop(here.store, "first")
    submit(here, "next", "true", after=after("first"))
    assert status(here, "next") == FAILED
    assert here.job("next")["message"] == "it waited for first to succeed, which can no longer happen"


def test_several_and_chains(here: Life) -> None:
    submit(here, "a", "true", hold=True)
    submit(here, "b", "false", hold=True)
    submit(here, "both", "true", after=after("ok:a", "notok:b"))
    submit(here, "then", "true", after=after("ok:both"))
    submit(here, "never", "true", after=after("ok:b"))
    submit(here, "neither", "true", after=after("ok:never"))
    submit(here, "cleanup", "true", after=after("any:neither", "any:then"))
    assert here.job("both")["message"] == "waits for ok:a, notok:b"
    job_edits.release(here.store, "a")
    here.until(lambda: here.job("a")["status"] == "SUCCEEDED")
    here.turn()
    assert here.job("both")["message"] == "waits for notok:b"
    job_edits.release(here.store, "b")
    here.until(lambda: here.job("cleanup")["status"] == "SUCCEEDED")
    assert [status(here, name) for name in ("both", "then", "never", "neither")] == [
        RUNS,
        RUNS,
        FAILED,
        FAILED,
    ]


def test_a_retry_is_not_an_end(here: Life) -> None:
    submit(
        here,
        "a",
        "sh",
        "-c",
        "exit $((2 - VCTL_ATTEMPT))",
        max_retries=1,
        retry_on=("ExitCode",),
        backoff_s=0,
    )
    submit(here, "next", "true", after=after("ok:a"))
    here.until(lambda: here.job("next")["status"] != "PENDING")
    assert here.job("a")["attempt"] == 2
    here.until(lambda: here.job("next")["status"] == "SUCCEEDED")


def test_unknown_ids(here: Life) -> None:
    with pytest.raises(NotFound):
        submit(here, "next", "true", after=after("ok:nobody"))
    with pytest.raises(NotFound):
        submit(here, "next", "true", after=after("ok:next"))
    assert here.store.value("SELECT count(*) FROM jobs") == 0


def test_what_ended_while_no_scheduler_looked(here: Life) -> None:
    submit(here, "a", "true", hold=True)
    submit(here, "next", "true", after=after("notok:a"))
    submit(here, "other", "true", after=after("any:a"))
    here.turn()
    here.die()
    job_ops.stop(here.store, "a")
    job_ops.delete(here.store, "a")
    here.until(lambda: here.job("other")["status"] == "SUCCEEDED")
    assert status(here, "next") in (RUNS, FAILED)


def test_held_and_dependent(here: Life) -> None:
    submit(here, "a", "true")
    submit(here, "next", "true", hold=True, after=after("ok:a"))
    here.until(lambda: here.job("a")["status"] == "SUCCEEDED")
    here.turn()
    assert status(here, "next") == ("PENDING", "Held")
    job_edits.release(here.store, "next")
    here.until(lambda: here.job("next")["status"] == "SUCCEEDED")
