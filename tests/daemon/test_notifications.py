"""Which starts and ends give a notice, whoever writes them; sent or not, each once."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_holding import submit
from tests.specification import spec
from vctl.core.identity import Identity
from vctl.ops import job_edits, notifying
from vctl.ops import jobs as job_ops
from vctl.spec.options import parse_array
from vctl.store import notifications, upkeep

pytestmark = spec("13.notices")

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
HOOK = "true"


@pytest.fixture
def here(life: Life) -> Life:
    life.nodes(2, "t")
    return life


def notices(life: Life) -> list[tuple[str, str]]:
    return [
        tuple(row) for row in life.store.rows("SELECT subject, moment FROM notifications ORDER BY number")
    ]


def over(life: Life, name: str) -> None:
    life.until(lambda: life.job(name)["status"] in OVER)


def send(life: Life) -> None:
    """Record all notices that are due as sent."""
    while (notice := notifying.next_notice(life.store, ())) is not None:
        notifying.over(life.store, notice, None)


def test_a_start_and_an_end_give_one_notice_each(here: Life) -> None:
    submit(here, "a", "true", notify=HOOK)
    submit(here, "quiet", "true")
    submit(here, "none", "true", notify="none")
    for name in ("a", "quiet", "none"):
        over(here, name)
    assert notices(here) == [("a", "start"), ("a", "end")]


def test_a_job_that_is_tried_again_starts_once_and_ends_once(here: Life) -> None:
    submit(here, "a", "false", notify=HOOK, max_retries=2, retry_on=("ExitCode",), backoff_s=0)
    here.until(lambda: notices(here) == [("a", "start")])
    send(here)
    over(here, "a")
    assert here.job("a")["attempt"] == 3
    assert notices(here) == [("a", "start"), ("a", "end")]


def test_a_job_that_never_started_has_an_end_only(here: Life) -> None:
    submit(here, "a", "true", notify=HOOK, hold=True)
    job_ops.stop(here.store, "a")
    assert notices(here) == [("a", "end")]
    assert upkeep.is_unfinished(here.store)  # there is a notice to send
    send(here)
    assert not upkeep.is_unfinished(here.store)


def test_an_array_starts_once_and_ends_once(here: Life) -> None:
    submit(here, "a", "sh", "-c", "exit $VCTL_ARRAY_INDEX", notify=HOOK, array=parse_array("0-3%1"))
    here.until(lambda: here.job("a")["array"]["done"] >= 2)
    assert notices(here) == [("a", "start")]
    send(here)
    over(here, "a")
    assert notices(here) == [("a", "start"), ("a", "end")]


def test_an_array_that_is_stopped_whole_ends_once(here: Life) -> None:
    submit(here, "a", "true", notify=HOOK, array=parse_array("0-99"), hold=True)
    job_ops.stop(here.store, "a")
    assert notices(here) == [("a", "end")]


def test_an_array_goes_on_after_its_last_member_is_stopped_alone(here: Life) -> None:
    submit(here, "a", "true", notify=HOOK, array=parse_array("0-2"), hold=True)
    job_ops.stop(here.store, "a_2")
    assert notices(here) == []
    job_edits.release(here.store, "a")
    over(here, "a")
    assert notices(here) == [("a", "start"), ("a", "end")]


def test_work_that_begins_again_ends_again(here: Life) -> None:
    """A member that waits once more opens its array: the end that was told of was not the last one."""
    submit(here, "a", "true", notify=HOOK, array=parse_array("0-1"))
    over(here, "a")
    send(here)
    again = "UPDATE jobs SET status = ? WHERE submission_id = 'a_1'"
    with here.store.transaction():
        here.store.db.execute(again, ("PENDING",))
    assert notices(here) == [("a", "start")]
    with here.store.transaction():
        here.store.db.execute(again, ("SUCCEEDED",))
    assert notices(here) == [("a", "start"), ("a", "end")]
    assert notifications.is_due(here.store)


def test_notices_go_with_their_jobs(here: Life) -> None:
    submit(here, "a", "true", notify=HOOK)
    submit(here, "b", "true", notify=HOOK, array=parse_array("0-1"))
    for name in ("a", "b"):
        over(here, name)
        job_ops.delete(here.store, name)
    assert notices(here) == []


def test_the_start_comes_first_and_jobs_do_not_wait_for_each_other(here: Life) -> None:
    for name in ("a", "b"):
        submit(here, name, "true", notify=HOOK)
        over(here, name)
    first = notifying.next_notice(here.store, ())
    assert first is not None
    assert (first.subject, first.moment) == ("a", "start")
    second = notifying.next_notice(here.store, ["a"])
    assert second is not None
    assert (second.subject, second.moment) == ("b", "start")
    assert notifying.next_notice(here.store, ["a", "b"]) is None


def test_a_failure_is_an_event_of_the_job(here: Life) -> None:
    submit(here, "a", "true", notify=HOOK)
    over(here, "a")
    notice = notifying.next_notice(here.store, ())
    assert notice is not None
    notifying.over(here.store, notice, "exit code 3: words")
    assert here.events("notice.failed") == ["a"]
    assert here.job("a")["status"] == "SUCCEEDED"
    send(here)
    assert here.events("notice.failed") == ["a"]  # one that was sent is no event
    here.turn()


def test_a_notice_after_the_end_tells_of_the_start_as_it_was(here: Life) -> None:
    submit(here, "a", "false", notify=HOOK)
    over(here, "a")
    reported = notifying.variables(notifying.as_started(job_ops.get_job(here.store, "a")))
    assert (reported["VCTL_STATUS"], reported["VCTL_EXIT_CODE"]) == ("RUNNING", "")
    reported = notifying.variables(job_ops.get_job(here.store, "a"))
    assert (reported["VCTL_STATUS"], reported["VCTL_EXIT_CODE"]) == ("FAILED", "1")


def test_members_that_share_a_row_are_waited_for(here: Life) -> None:
    """A long array ends when its last member does, also one without a row of its own."""
    submit(here, "a", "true", notify=HOOK, array=parse_array("0-4999"), hold=True)
    job_ops.stop(here.store, "a_0")
    job_ops.stop(here.store, "a_4000")  # it gets its row first
    assert here.store.value("SELECT count(*) FROM jobs WHERE NOT notifies") == 0
    assert here.store.value("SELECT max(members) FROM jobs WHERE status = 'PENDING'") > 1
    assert notices(here) == []
    job_ops.stop(here.store, "a")
    assert notices(here) == [("a", "end")]


@spec("19.service")
@pytest.mark.parametrize("notify", ["mailto:ana@example.org", "https://example.org/hook"])
def test_a_notice_of_another_user_has_nothing_of_his_environment(
    here: Life, monkeypatch: pytest.MonkeyPatch, notify: str
) -> None:
    """PATH chose the program that ran, and OPENSSL_CONF a library that was loaded, under the service's account."""
    monkeypatch.setenv("OPENSSL_CONF", "/home/ana/evil.cnf")
    here.store.identity = Identity(1000, "ana")
    submit(here, "a", "true", notify=notify)
    over(here, "a")
    notice = notifying.next_notice(here.store, ())
    assert notice is not None
    assert notice.carry_out.args[-1].keys() == {"PATH"}  # type: ignore[attr-defined]
    assert "/home" not in notice.carry_out.args[-1]["PATH"]  # type: ignore[attr-defined]


@spec("19.service")
def test_no_command_of_another_user_is_started(here: Life) -> None:
    """Also if it is in the tables, however it came there."""
    submit(here, "a", "true", notify=HOOK)
    with here.store.transaction():
        here.store.db.execute("UPDATE jobs SET uid = 1000")
    over(here, "a")
    notice = notifying.next_notice(here.store, ())
    assert notice is not None
    with pytest.raises(PermissionError, match="no command of a user"):
        notice.carry_out()
