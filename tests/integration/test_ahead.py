"""Jobs of one kind that follow each other without a look of the scheduler: killed at any moment, none is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise

import pytest

from tests.integration.conftest import PATIENCE_S, Place, eventually
from tests.integration.test_crashes import keeper
from tests.specification import spec
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import SCALE
from vctl.ops import submitting
from vctl.runtime import processes
from vctl.runtime.supervisor import NAME
from vctl.spec.job_request import JobRequest
from vctl.store.store import Store

pytestmark = spec("8.arrays", "12.daemon-death", "17.durable")

SAY = 'echo "$VCTL_SUBMISSION_ID $VCTL_ATTEMPT" >> ran; exit $((VCTL_ARRAY_INDEX % 3))'
FOLLOWED = "SELECT count(*) FROM changes WHERE change LIKE '%\"was_ahead\":true%'"

STARTS = """
SELECT parent_cluster_id, change LIKE '%"was_ahead":true%' FROM events JOIN changes USING (seq) JOIN jobs USING (job_id)
WHERE kind = 'job.started' ORDER BY seq
"""
"""The cluster of each job in the order of their starts, and whether it was assigned ahead."""


def supervisors(place: Place) -> list[int]:
    """Those of this state directory."""
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    home = os.fsencode(place.home)
    return [pid for pid in found if processes.name(pid) == NAME and processes.command(pid)[-1:] == [home]]


def is_over(place: Place) -> bool:
    with place.sql() as db:
        (left,) = db.execute("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')").fetchone()
    return not left


def ended(place: Place) -> dict[str, tuple[str, int | None, int]]:
    with place.sql() as db:
        rows = db.execute("SELECT submission_id, status, exit_code, attempt FROM jobs").fetchall()
    return {name: (status, code, attempt) for name, status, code, attempt in rows}


def ran(place: Place) -> Counter[str]:
    return Counter(line.split()[0] for line in (place.folder / "ran").read_text().splitlines())


def all_is_recorded(place: Place, count: int) -> None:
    """Each member ran once, and its own code is recorded."""
    expected = {f"a_{n}": ("SUCCEEDED" if n % 3 == 0 else "FAILED", n % 3, 1) for n in range(1, count + 1)}
    assert ended(place) == expected
    assert ran(place) == Counter(expected.keys())
    with place.sql() as db:
        assert db.execute("SELECT count(*) FROM runs_ahead").fetchone() == (0,)
    place.assert_sound()


def test_members_survive_kills_of_the_daemon(place: Place) -> None:
    place.add_nodes(1, '{"CPU": 2}')
    count = 400
    with keeper(place, 8, 5, ["daemon"]) as process:
        place.ok("job", "submit", "--no-wait", "--submission-id", "a", "--array", f"1-{count}", "--",
                 "sh", "-c", SAY)  # fmt: skip
        last = int(process.stdout.readline())  # type: ignore[union-attr]
        eventually(lambda: is_over(place), "the array to end", 4 * PATIENCE_S)
        with place.sql() as db:
            assert db.execute(FOLLOWED).fetchone()[0] > 0
        os.kill(last, signal.SIGTERM)
        process.wait(PATIENCE_S)
    all_is_recorded(place, count)


def test_single_jobs_follow_each_other_across_kills_of_the_daemon(place: Place) -> None:
    """Each has its own command, and is started with that."""
    place.add_nodes(1, '{"CPU": 2}')
    count = 200
    with Store.open(place.home) as store:
        for n in range(1, count + 1):
            words = ("sh", "-c", SAY.replace("VCTL_ARRAY_INDEX", str(n)))
            request = JobRequest(argv=words, submission_id=f"a_{n}", cwd=str(place.folder))
            submitting.submit(store, request, environment={"PATH": os.environ["PATH"]})
    with keeper(place, 8, 3, ["daemon"]) as process:
        last = int(process.stdout.readline())  # type: ignore[union-attr]
        eventually(lambda: is_over(place), "the jobs to end", 4 * PATIENCE_S)
        with place.sql() as db:
            assert db.execute(FOLLOWED).fetchone()[0] > 0
        os.kill(last, signal.SIGTERM)
        process.wait(PATIENCE_S)
    all_is_recorded(place, count)


def test_the_place_of_a_job_goes_over_to_siblings_across_kills_of_the_daemon(place: Place) -> None:
    """Whoever borrows the whole machine next has it at once: each runs once, and is started with its own command.

    The priorities have the next job in another cluster at each end, so there are over a hundred places to go over.
    In the order of arrival the jobs of one cluster would go first, and on a busy machine none of three would.
    """
    place.add_nodes(2, '{"CPU": 2}')
    clusters = [f"c{number}" for number in range(4)]
    for name in clusters:
        place.ok("vc", "create", name, "--divisible", "--spec", "{}")
    count = 120
    gang = ClusterSpec(groups=(Group((FixedNode({"CPU": 2 * SCALE}),) * 2, "STRICT_SPREAD"),), flexible=False)
    with Store.open(place.home) as store:
        for n in range(1, count + 1):
            words = ("sh", "-c", SAY.replace("VCTL_ARRAY_INDEX", str(n)))
            request = JobRequest(
                argv=words,
                submission_id=f"a_{n}",
                cwd=str(place.folder),
                spec=gang,
                cluster=clusters[n % len(clusters)],
                priority=count - n,
            )
            submitting.submit(store, request, environment={"PATH": os.environ["PATH"]})
    with keeper(place, 8, 11, ["daemon"]) as process:
        last = int(process.stdout.readline())  # type: ignore[union-attr]
        eventually(lambda: is_over(place), "the jobs to end", 4 * PATIENCE_S)
        os.kill(last, signal.SIGTERM)
        process.wait(PATIENCE_S)
    with place.sql() as db:
        starts = db.execute(STARTS).fetchall()
    over = sum(after[1] and before[0] != after[0] for before, after in pairwise(starts))
    assert over > 0, (over, len(starts))  # how many depends on the load of the machine
    for name in clusters:
        place.ok("vc", "delete", name)
    all_is_recorded(place, count)


def test_members_survive_kills_of_supervisors(place: Place) -> None:
    """What a killed supervisor ran is lost, as ever; what was to follow it runs elsewhere, once."""
    place.add_nodes(1, '{"CPU": 2}')
    place.daemon()
    count, chance = 400, random.Random(3)
    place.ok("job", "submit", "--no-wait", "--submission-id", "a", "--array", f"1-{count}", "--",
             "sh", "-c", SAY)  # fmt: skip
    for _ in range(12):
        time.sleep(chance.uniform(0.02, 0.2))
        for pid in supervisors(place)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    eventually(lambda: is_over(place), "the array to end", 4 * PATIENCE_S)
    found = ended(place)
    assert {attempt for _, _, attempt in found.values()} == {1}
    assert set(ran(place).values()) == {1}
    known = {name for name, (_, code, _) in found.items() if code == int(name[2:]) % 3}
    assert len(known) >= count - 12
    assert known <= set(ran(place))
    place.assert_sound()


@pytest.mark.parametrize("verb", ["hold", "stop"])
def test_a_change_of_a_member_that_is_about_to_start_holds(place: Place, verb: str) -> None:
    """Either it had started, or it never does: held members wait, and those that were stopped never ran."""
    place.add_nodes(1, '{"CPU": 2}')
    place.daemon()
    count = 600
    place.ok("job", "submit", "--no-wait", "--submission-id", "a", "--array", f"1-{count}", "--",
             "sh", "-c", SAY)  # fmt: skip
    for _ in range(6):
        with place.sql() as db:
            row = db.execute("SELECT max(job_id) FROM jobs WHERE status = 'RUNNING'").fetchone()
        first = (row[0] or 0) + 1
        place.run("job", verb, *(f"a_{n}" for n in range(first, first + 3) if n <= count))

    def rests() -> bool:
        with place.sql() as db:
            sql = "SELECT count(*) FROM jobs WHERE status = 'RUNNING' OR (status = 'PENDING' AND NOT held)"
            return bool(db.execute(sql).fetchone() == (0,))

    eventually(rests, "the others to end", 4 * PATIENCE_S)
    times = ran(place)
    assert set(times.values()) == {1}
    for name, (status, code, attempt) in ended(place).items():
        if status == "PENDING" or attempt == 0:
            assert name not in times, (name, status)
        elif status != "STOPPED":
            assert (code, times[name]) == (int(name[2:]) % 3, 1)
    place.assert_sound()
