"""A sweep of a student as commands: 30 trainings of which 7 fail and 3 run out of time, and what failed again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import vctl
from tests.integration.conftest import PATIENCE_S, Place, eventually
from tests.specification import spec

pytestmark = spec("8.arrays", "13.waiting", "13.attached")

TRAINING = """
echo "epoch 1, try $VCTL_ATTEMPT"
case $VCTL_ARRAY_INDEX in 2|11|29) sleep $SLOW;; esac
if [ ! -e data ]; then
    case $VCTL_ARRAY_INDEX in 3|7|8|9|15|20|28) echo "no data" >&2; exit 4;; esac
fi
echo $((VCTL_ARRAY_INDEX * VCTL_ARRAY_INDEX)) > "result.$VCTL_ARRAY_INDEX"
"""
LATE, FAILED = "2,11,29", "3,7-9,15,20,28"


def test_a_sweep_is_repaired(one: Place) -> None:
    """Five commands: the submit, what failed and why, a log, the rerun of it with more time, the results by index."""
    one.daemon()
    words = [
        "--submission-id",
        "sweep",
        "--array",
        "0-29",
        "-n",
        "0.1",
        "--time-limit",
        "1.2s",
        "--env",
        "SLOW=60",
    ]
    ran = one.run("job", "submit", *words, "--", "sh", "-c", TRAINING)
    assert ran.code == 124, ran  # of the first member by index
    reported = [
        "sweep: 10 of 30 did not succeed",
        f"  FAILED: 7 NonZeroExit: exited with code 4: {FAILED}",
        f"  FAILED: 3 TimeLimit: ran longer than its time limit: {LATE}",
        "Run them again with: vctl job rerun sweep --failed",
    ]
    assert ran.err.splitlines()[-4:] == reported
    assert one.run("job", "wait", "sweep").err.splitlines() == reported
    status = one.ok("job", "status", "sweep")
    assert f"7 NonZeroExit: exited with code 4: {FAILED}" in status
    assert one.ok("job", "logs", "sweep_3") == "epoch 1, try 1\nno data\n"
    numbers = {name: job["job_id"] for name, job in one.jobs().items()}

    (one.folder / "data").touch()
    words = ["--time-limit", "60s", "--env", "SLOW=0.1"]
    ran = one.run("job", "rerun", "sweep", "--failed", *words)
    assert (ran.code, ran.out) == (0, ""), ran
    assert ran.err.splitlines()[-1] == "sweep: 30 of 30 done"
    results = {path.suffix[1:]: path.read_text() for path in one.folder.glob("result.*")}
    assert results == {str(index): f"{index * index}\n" for index in range(30)}
    jobs = one.jobs()
    assert {name: job["job_id"] for name, job in jobs.items()} == numbers
    again = {2, 11, 29, 3, 7, 8, 9, 15, 20, 28}
    assert {job["array_index"] for job in jobs.values() if job["attempt"] == 2} == again
    assert {job["array_index"] for job in jobs.values() if job["time_limit_s"] == 60} == again

    lines = one.ok("job", "logs", "sweep").splitlines()
    assert len(lines) == 30 + 10 + 7
    assert [line for line in lines if line.startswith("3: ")] == [
        "3: epoch 1, try 1", "3: no data", "3: epoch 1, try 2",
    ]  # fmt: skip
    assert one.ok("job", "logs", "sweep", "-n", "1").splitlines()[29] == "29: epoch 1, try 2"
    refused = one.run("job", "rerun", "sweep", "--failed")
    assert (refused.code, refused.err.splitlines()) == (
        5,
        [
            "Error: no member of sweep has failed: 30 SUCCEEDED",
            "Fix: vctl job rerun sweep submits all of it again under a new id",
        ],
    )
    one.assert_sound()


def test_patterns_and_ranges_name_jobs(one: Place) -> None:
    one.daemon()
    one.submit("--submission-id", "sweep", "--array", "1,5,7-9", "-n", "0.1", "--hold", "--", "sleep", "1000")
    one.submit("--submission-id", "sweeper", "--hold", "--", "true")
    one.submit("--submission-id", "sweep_7-8", "--hold", "--", "true")  # an id, which is no range
    members = ["sweep_1", "sweep_5", "sweep_7", "sweep_8", "sweep_9"]
    assert names(one, "ps", "sweep") == members
    assert names(one, "ps", "sweep*") == sorted([*members, "sweep_7-8", "sweeper"])
    assert names(one, "ps", "sweep_7-9", "sweep_[1,5]") == members
    assert one.ok("job", "release", "sweep_7-9").splitlines() == [
        f"job {name} is released" for name in members[2:]
    ]
    for name in members[2:]:
        one.running_process(name)
    assert one.ok("job", "release", "sweep_7-8").splitlines() == ["job sweep_7-8 is released"]
    assert one.run("job", "wait", "sweep_7-8").code == 0
    several = one.run("job", "status", "sweep_?")
    assert (several.code, several.err.splitlines()[0]) == (
        2, "Error: 'sweep_?' names 5 jobs: sweep_1, sweep_5, sweep_7, sweep_8, sweep_9",
    )  # fmt: skip
    assert one.read("job", "status", "sweep_[5]")["submission_id"] == "sweep_5"
    assert one.read("job", "status", "sweep?r")["submission_id"] == "sweeper"
    assert one.ok("job", "edit", "sweep_[1-5]", "--priority", "3").splitlines() == [
        "job sweep_1 changed", "job sweep_5 changed",
    ]  # fmt: skip
    for words in (
        ["stop", "sweep_2-4"],
        ["wait", "nothing*"],
        ["logs", "x?"],
        ["delete", "s_*"],
        ["hold", "sweep_9-10"],
    ):
        ran = one.run("job", *words)
        assert (ran.code, words[1] in ran.err) == (4, True), ran
    assert one.ok("job", "stop", "sweep_[7-8]").splitlines() == [
        "job sweep_7 is STOPPED",
        "job sweep_8 is STOPPED",
    ]
    assert one.run("job", "delete", "sweep_[7-9]").code == 5
    assert one.ok("job", "delete", "sweep_7,8").splitlines() == ["job sweep_7 deleted", "job sweep_8 deleted"]
    about = one.read("job", "status", "sweep")["array"]
    assert (about["count"], about["states"]) == (3, {"PENDING": 2, "RUNNING": 1})
    assert one.ok("job", "stop", "sweep_*").splitlines()[-1] == "job sweep_9 is STOPPED"
    deleted = one.run("job", "wait", "sweep", "--progress")
    assert deleted.err.splitlines()[0] == "sweep: 3 of 3 done, 3 stopped", deleted  # and not 3 of 5
    again = one.ok("job", "rerun", "sweep_[1,5]", "--failed", "--hold", "-d").splitlines()
    assert again == ["sweep_1", "sweep_5"]
    one.assert_sound()


def names(one: Place, *words: str) -> list[str]:
    return sorted(one.ok(*words, "-o", "name").split())


def test_wait_for_the_first_and_follow_all(one: Place) -> None:
    one.daemon()
    shell = (
        "echo first; test $VCTL_ARRAY_INDEX = 1 && exit 7; until [ -e go ]; do sleep 0.02; done; printf last"
    )
    one.submit("--submission-id", "a", "--array", "0-2", "-n", "0.1", "--", "sh", "-c", shell)
    first = one.run("job", "wait", "--any", "a")
    assert (first.code, first.out) == (7, "a_1 FAILED\n")
    assert one.run("job", "wait", "--any", "a_0", "a_2", "--timeout", "0.2s").code == 7
    following = one.start("job", "logs", "--follow", "a")
    (one.folder / "go").touch()
    ran = one.finish(following)
    assert ran.code == 7
    assert sorted(ran.out.splitlines()) == ["0: first", "0: last", "1: first", "2: first", "2: last"]
    assert ran.err.splitlines()[0] == "a: 1 of 3 did not succeed"
    assert one.ok("job", "logs", "a") == "0: first\n0: last\n1: first\n2: first\n2: last\n"


class OverPython:
    """The student's script as a program."""

    def __init__(self, place: Place) -> None:
        self.client = vctl.connect(place.home)
        self.folder = place.folder

    def submit(self, notify: str) -> int | None:
        job = self.client.submit(
            ["sh", "-c", TRAINING], submission_id="sweep", array="0-29", num_cpus=0.1, time_limit=1.5,
            env={"SLOW": "60"}, notify=notify, working_dir=str(self.folder),
        )  # fmt: skip
        return job.wait(timeout_s=PATIENCE_S)

    def failures(self) -> list[dict[str, Any]]:
        return self.client.jobs.get("sweep").info()["array"]["failures"]  # type: ignore[typeddict-item]

    def rerun(self) -> int | None:
        again = self.client.jobs.rerun("sweep", failed=True, time_limit=3, env={"SLOW": "0.1"})
        return again.wait(timeout_s=PATIENCE_S)

    def exit_codes(self) -> dict[int, int]:
        found = self.client.jobs.list(filters=["array_id=sweep"])
        return {job["array_index"]: job["exit_code"] for job in found}


class OverHttp:
    """The student's script as requests."""

    def __init__(self, place: Place) -> None:
        socket = place.home / "sweep.sock"
        place.start("serve", "--uds", str(socket))
        eventually(socket.exists, "the server's socket")
        self.folder = place.folder
        self.socket = str(socket)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        transport = httpx.HTTPTransport(uds=self.socket)
        with httpx.Client(
            transport=transport, base_url="http://localhost/api/v1", timeout=PATIENCE_S
        ) as http:
            answer = http.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def submit(self, notify: str) -> int:
        body = {
            "entrypoint": ["sh", "-c", TRAINING], "submission_id": "sweep", "array": "0-29", "num_cpus": 0.1,
            "time_limit_s": 1.5, "env": {"SLOW": "60"}, "notify": notify, "cwd": str(self.folder),
        }  # fmt: skip
        self.ask("POST", "jobs", body)
        return self.wait()

    def wait(self) -> int:
        answer = self.ask("GET", "jobs/sweep/wait?timeout_s=60")
        assert answer["over"]
        return int(answer["job"]["exit_code"])

    def failures(self) -> list[dict[str, Any]]:
        return list(self.ask("GET", "jobs/sweep")["array"]["failures"])

    def rerun(self) -> int:
        body = {"failed": True, "time_limit_s": 3, "env": {"SLOW": "0.1"}}
        self.ask("POST", "jobs/sweep/rerun", body)
        return self.wait()

    def exit_codes(self) -> dict[int, int]:
        found = self.ask("GET", "jobs?filter=array_id=sweep&all=true")["items"]
        return {job["array_index"]: job["exit_code"] for job in found}


@spec("13.notices")
@pytest.mark.parametrize("surface", [OverPython, OverHttp])
def test_a_sweep_is_repaired_over(one: Place, surface: type[OverPython | OverHttp]) -> None:
    """The same 30 trainings with a program and with requests: each round ends with one notice."""
    one.daemon()
    notices = one.folder / "notices"
    notify = f"sh -c 'echo $VCTL_SUBMISSION_ID $VCTL_STATUS $VCTL_EXIT_CODE >> {notices}'"

    def reported(count: int) -> list[str]:
        lines = notices.read_text().splitlines() if notices.exists() else []
        return lines if len(lines) >= count else []

    student = surface(one)
    assert student.submit(notify) == 124
    why = {(one["state_reason"], one["count"], one["indices"]) for one in student.failures()}
    assert why == {("NonZeroExit", 7, FAILED), ("TimeLimit", 3, LATE)}
    assert eventually(lambda: reported(2), "two notices") == ["sweep RUNNING", "sweep FAILED 124"]
    (one.folder / "data").touch()
    assert student.rerun() == 0
    assert student.exit_codes() == dict.fromkeys(range(30), 0)
    results = {int(path.suffix[1:]): path.read_text() for path in one.folder.glob("result.*")}
    assert results == {index: f"{index * index}\n" for index in range(30)}
    again = {job["array_index"] for job in one.jobs().values() if job["attempt"] == 2}
    assert again == {2, 11, 29, 3, 7, 8, 9, 15, 20, 28}
    assert eventually(lambda: reported(3), "one notice more")[2:] == ["sweep SUCCEEDED 0"]
    one.assert_sound()
