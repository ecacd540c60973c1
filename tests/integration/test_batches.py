"""``job submit --from`` with real processes: graphs of jobs run in their order, with and without a scheduler."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from tests.integration.conftest import Place, eventually
from tests.specification import spec

pytestmark = spec("13.batch", "13.waiting")


def written(place: Place, lines: list[dict[str, Any]]) -> str:
    (place.folder / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "jobs.jsonl"


def shell(line: str, **fields: Any) -> dict[str, Any]:
    return {"entrypoint": ["sh", "-c", line], **fields}


def test_a_graph_runs_in_its_order_and_the_first_bad_code_is_told(place: Place) -> None:
    """The scheduler is started by the submit; a job that waits sees what the awaited ones wrote."""
    place.add_nodes(1)
    name = written(place, [
        shell("echo a > a", submission_id="a"),
        shell("cat a a > b", submission_id="b", after=["ok:a"]),
        shell("cat a b > c$VCTL_ARRAY_INDEX; exit $VCTL_ARRAY_INDEX", submission_id="c", array="0-2", after=["ok:b"]),
        shell("exit 9", submission_id="d", after=["notok:c"]),
        shell("touch never", submission_id="e", after=["ok:d"]),
    ])  # fmt: skip
    ran = place.run("job", "submit", "--from", name, "--cwd", str(place.folder))
    assert (ran.code, ran.out) == (1, ""), ran.err
    assert (place.folder / "c2").read_text() == "a\na\na\n"
    assert not (place.folder / "never").exists()
    states = {name: (job["status"], job["exit_code"]) for name, job in place.jobs().items()}
    assert states["c"] == ("FAILED", 1) if "c" in states else states["c_1"] == ("FAILED", 1)
    assert states["d"] == ("FAILED", 9) and states["e"] == ("FAILED", None)


def test_what_is_submitted_without_a_scheduler_runs_when_there_is_one(place: Place) -> None:
    place.add_nodes(1)
    lines = b"".join(
        json.dumps(
            shell(f"echo {n} >> order", after=[f"ok:j{n - 1}"] if n else [], submission_id=f"j{n}")
        ).encode()
        + b"\n"
        for n in range(20)
    )
    words = ("job", "submit", "--from", "-", "-d", "--cwd", str(place.folder))
    ran = place.run(*words, stdin=lines, VCTL_AUTOSTART="0")
    assert (ran.code, ran.out.split()) == (0, [f"j{n}" for n in range(20)]), ran.err
    assert {job["status"] for job in place.jobs().values()} == {"PENDING"}
    assert place.run("job", "wait", "j19").code == 0
    assert (place.folder / "order").read_text().split() == [str(n) for n in range(20)]


def test_a_bad_line_among_many_leaves_nothing(place: Place) -> None:
    """With a scheduler that has work: it goes on, and sees none of the lines."""
    place.add_nodes(1)
    runs = place.run("job", "submit", "-d", "--", "sleep", "1000").out.strip()
    place.reach(runs, "RUNNING")
    good: list[dict[str, Any]] = [shell("true", submission_id=f"g{n}") for n in range(2_000)]
    for position, bad, code in (
        (0, {"x": 1}, 2),
        (1_000, {"num_cpus": 99}, 3),
        (2_000, {"submission_id": runs}, 5),
    ):
        lines = [*good[:position], shell("true", **bad), *good[position:]]
        ran = place.run("job", "submit", "--from", written(place, lines))
        assert ran.code == code and f"Error: line {position + 1}: " in ran.err, ran
        assert place.jobs().keys() == {runs}
    place.ok("job", "stop", runs, "--grace", "0")


def test_ctrl_c_detaches_or_stops_them_all(place: Place) -> None:
    place.add_nodes(1)
    for option, status in (("--progress", "RUNNING"), ("--stop-on-interrupt", "STOPPED")):
        names = [f"{status.lower()}-{n}" for n in range(3)]
        name = written(place, [shell("exec sleep 1000", submission_id=one) for one in names])
        process = place.start("job", "submit", "--from", name, option)
        for one in names:
            eventually(lambda one=one: one in place.jobs(), one)
            place.reach(one, "RUNNING")
        os.killpg(process.pid, signal.SIGINT)
        ran = place.finish(process)
        assert {place.job(one)["status"] for one in names} == {status}, ran
        if status == "RUNNING":
            assert ran.code == 130 and "Detached: 3 jobs go on." in ran.err, ran
            place.ok("job", "stop", *names, "--grace", "0")
        else:
            assert ran.code not in (0, 130), ran


def test_a_file_is_read_by_the_process_of_the_caller(place: Place) -> None:
    """Not by the process that answers commands: a relative name is one of the caller's directory (spec 19)."""
    place.add_nodes(1)
    assert place.run("job", "submit", "--", "true").code == 0  # now somebody answers commands
    below = place.folder / "below"
    below.mkdir()
    (below / "own.jsonl").write_text(json.dumps(shell("true", submission_id="own")) + "\n")
    process = place.start("job", "submit", "--from", "below/own.jsonl", "-d")
    assert place.finish(process).out == "own\n"
