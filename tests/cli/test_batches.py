"""``job submit --from``: many jobs at once, on a state directory and through a server.

A bad line anywhere leaves nothing in the queue, and the error names it.
"""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.contents import LAUNCHES
from tests.specification import spec
from vctl.spec import source

pytestmark = spec("13.batch", "4.errors", "14.remote")

JOB = {"entrypoint": ["true"]}
LINE = json.dumps(JOB).encode()


def written(lines: bytes | list[dict[str, Any]]) -> str:
    """The name of a file with these lines."""
    content = (
        lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    )
    Path("jobs.jsonl").write_bytes(content)
    return "jobs.jsonl"


def submit(cli: Cli, lines: bytes | list[dict[str, Any]], *words: str) -> Any:
    return cli("job", "submit", "--from", written(lines), "--no-wait", *words)


def everything(home: Path) -> list[object]:
    """What a submit writes."""
    with closing(sqlite3.connect(home / "cluster.db")) as db:
        tables = (
            "jobs",
            "commands",
            "environments",
            "requests",
            "arrays",
            "dependencies",
            "events",
            "feasible",
        )
        return [db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]


def rows(home: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home / "cluster.db")) as db:
        return db.execute(sql).fetchall()


def test_a_job_for_each_line_in_their_order(nodes: Cli) -> None:
    lines = [
        {**JOB, "submission_id": "prepare", "priority": 3},
        {**JOB, "submission_id": "many", "array": "0-9%2", "after": ["ok:prepare"]},
        {
            **JOB,
            "after": ["any:many", "ok:many_3"],
            "virtual_cluster": {"flexible_resource_min": {"CPU": 0.1}},
        },
    ]
    ran = submit(nodes, lines)
    assert ran.code == 0, ran.err
    first, second, third = ran.out.split()
    assert (first, second) == ("prepare", "many") and third.startswith("job-")
    found = rows(nodes.home, "SELECT submission_id, priority, waits_for, resources FROM jobs ORDER BY job_id")
    assert [name for name, *_ in found] == ["prepare", *(f"many_{n}" for n in range(10)), third]
    assert found[0][1:3] == (3, 0) and found[5][1:3] == (0, 1) and found[11][2] == 2
    assert json.loads(found[11][3]) == {"CPU": 1000}
    assert rows(nodes.home, "SELECT condition, awaited FROM dependencies WHERE job_id = 12 ORDER BY 1") == [
        ("any", "many"), ("ok", "many_3"),
    ]  # fmt: skip


def test_all_of_them_are_one_transaction(nodes: Cli) -> None:
    """The journal has an entry for each, at one moment, and a scheduler is woken once."""
    assert submit(nodes, [JOB] * 300).code == 0
    assert rows(nodes.home, "SELECT count(*), count(DISTINCT submitted_at) FROM jobs") == [(300, 1)]
    assert rows(nodes.home, "SELECT count(*) FROM events WHERE kind = 'job.submitted'") == [(300,)]


def test_the_answer_as_data(nodes: Cli) -> None:
    ran = submit(nodes, [{**JOB, "submission_id": name} for name in "abc"], "-o", "json")
    assert ran.json == {"submission_ids": ["a", "b", "c"]}
    ran = submit(nodes, [{**JOB, "submission_id": name} for name in "def"], "-o", "name")
    assert ran.out == "d\ne\nf\n"


def test_standard_input(nodes: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINE + b"\n" + LINE)))
    assert len(nodes("job", "submit", "--from", "-", "--no-wait").out.split()) == 2


def test_options_hold_for_the_lines_without_the_field(nodes: Cli) -> None:
    lines = [
        {**JOB, "submission_id": "a"},
        {
            **JOB,
            "submission_id": "b",
            "priority": 1,
            "env": {"B": "2"},
            "metadata": {"m": "2"},
            "cwd": "/usr",
        },
    ]
    options = "--priority 9 --time-limit 1h --env A=1 --env B=1 --metadata m=1 --cwd /tmp --clean-env".split()
    assert submit(nodes, lines, *options).code == 0
    found = rows(
        nodes.home,
        f"SELECT priority, time_limit_s, metadata, env, cwd FROM {LAUNCHES} ORDER BY job_id",
    )
    assert found[0][:3] == (9, 3600, '{"m":"1"}') and found[1][:3] == (1, 3600, '{"m":"2"}')
    assert json.loads(found[0][3]).items() >= {"A": "1", "B": "1"}.items()
    assert json.loads(found[1][3]).items() >= {"A": "1", "B": "2"}.items()
    assert [row[4] for row in found] == ["/tmp", "/usr"]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"", b"\n\n \r\n"], ids=["LF", "CRLF", "none", "blank"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_files_as_editors_write_them(nodes: Cli, ending: bytes, mark: bytes) -> None:
    between = b"\r\n" if ending == b"\r\n" else b"\n"
    ran = submit(nodes, mark + LINE + between + LINE + ending)
    assert (ran.code, len(ran.out.split())) == (0, 2), ran.err


BAD_FILES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 2, "jobs.jsonl is empty"),
    "blank lines alone": (b"\n \r\n", 2, "jobs.jsonl is empty"),
    "blank line inside": (LINE + b"\n\n" + LINE, 2, "line 2: it is empty"),
    "a list": (b"[" + LINE + b"]", 2, "line 1: a job must be an object, not a list"),
    "a list over lines": (b"[\n" + LINE + b"\n]", 2, "line 1: this is not JSON"),
    "one object over lines": (json.dumps(JOB, indent=1).encode(), 2, "line 1: this is not JSON"),
    "cut": (LINE + b"\n" + LINE[:-3], 2, "line 2: this is not JSON"),
    "two on a line": (LINE + LINE, 2, "line 1: this is not JSON: Extra data"),
    "no JSON": (b"true", 2, "line 1: a job must be an object, not true"),
    "NUL": (LINE + b"\n\0" + LINE, 2, "line 2: it contains a NUL byte"),
    "NUL as text": (b'{"entrypoint": ["a\\u0000"]}', 2, "line 1: entrypoint[0]: "),
    "half a surrogate": (b'{"entrypoint": ["a"], "name": "\\ud800"}', 2, "line 1: name: "),
    "Latin-1": (LINE + b'\n{"name": "\xfc"}', 2, "line 2: it is not UTF-8 text"),
    "UTF-16": (LINE.decode().encode("utf-16"), 2, "line 1: it contains a NUL byte"),
    "BOM inside": (LINE + b"\n\xef\xbb\xbf" + LINE, 2, "line 2: this is not JSON"),
    "twice": (b'{"entrypoint": ["a"], "entrypoint": ["b"]}', 2, 'line 1: the key "entrypoint" appears twice'),
    "NaN": (b'{"entrypoint": ["a"], "num_cpus": NaN}', 2, "line 1: NaN is not a JSON number"),
    "deep": (b"[" * 100_000, 2, "line 1: nested more than 100 levels deep"),
    "deep but closed": (b'{"metadata": ' + b"[" * 200 + b"]" * 200 + b"}", 2, "line 1: nested more than 100"),
    "digits": (b'{"priority": ' + b"9" * 5000 + b"}", 2, "line 1: a number has too many digits"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_none_of_jobs(nodes: Cli, name: str) -> None:
    content, code, problem = BAD_FILES[name]
    before = everything(nodes.home)
    ran = submit(nodes, content)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert problem in ran.err and "Fix: " in ran.err and len(ran.err) < 1000
    assert everything(nodes.home) == before


@pytest.mark.parametrize(("limit", "problem"), [
    ("MAX_LINE_BYTES", "line 2: 128 bytes are too many"), ("MAX_BATCH_BYTES", "jobs.jsonl is larger than 100 bytes"),
])  # fmt: skip
def test_too_many_bytes(nodes: Cli, monkeypatch: pytest.MonkeyPatch, limit: str, problem: str) -> None:
    monkeypatch.setattr(source, limit, 100)
    before = everything(nodes.home)
    ran = submit(nodes, LINE + b"\n" + json.dumps({**JOB, "name": "x" * 92}).encode())
    assert (ran.code, ran.out) == (2, "") and problem in ran.err
    assert everything(nodes.home) == before


def test_a_line_of_64_MiB(nodes: Cli) -> None:  # noqa: N802  # the unit
    before = everything(nodes.home)
    ran = submit(nodes, b'{"entrypoint": ["' + b"x" * (64 << 20) + b'"]}')
    assert (ran.code, ran.out) == (2, "") and "--from: jobs.jsonl is larger than 67108864 bytes" in ran.err
    assert everything(nodes.home) == before


BAD_JOBS: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown field": ({"priorty": 1}, 2, "priorty: unknown field"),
    "option's name": ({"time-limit": "1h"}, 2, "time-limit: unknown field"),
    "type": ({"priority": "1"}, 2, 'priority: "1" is not a whole number'),
    "range": ({"nodes": 0}, 2, "nodes: 0 is out of range"),
    "null": ({"hold": None}, 2, "hold: null is not true or false"),
    "no list": ({"entrypoint": "true"}, 2, 'entrypoint: "true" is not a list of strings'),
    "no command": ({"entrypoint": []}, 2, "entrypoint: there is no command"),
    "duration": ({"time_limit_s": 0}, 2, "time_limit_s: the job would end at once"),
    "amount": ({"num_cpus": "many"}, 2, "num_cpus: "),
    "spec": ({"virtual_cluster": {"fixed": 1}}, 2, "fixed: unknown field"),
    "both": ({"num_cpus": 1, "virtual_cluster": {}}, 2, "num_cpus: cannot be combined with virtual_cluster"),
    "choice": ({"job_scope": "both"}, 2, 'job_scope: "both" is not one of the choices'),
    "directory": ({"cwd": "here"}, 2, 'cwd: "here" is not an absolute path'),
    "array": ({"array": "5-1"}, 2, "array: "),
    "infeasible": ({"num_cpus": 64}, 3, "the job can never run"),
    "cluster": ({"cluster": "nowhere"}, 4, "nowhere"),
    "taken": ({"submission_id": "old"}, 5, "job old exists already"),
    "taken member": ({"submission_id": "olds", "array": "0-3"}, 5, "job olds_2 exists already"),
    "unknown dependency": ({"after": ["ok:nobody"]}, 4, "after: there is no job 'nobody'"),
    "condition": ({"after": ["when:old"]}, 2, "after: "),
    "itself": ({"submission_id": "x", "after": ["ok:x"]}, 2, "after: it is the job itself"),
}
"""What a line is given besides a command, the exit code, and what the message says behind the number of the line."""
COUNT = 5


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_line_at_each_position_leaves_nothing(nodes: Cli, name: str) -> None:
    fields, code, problem = BAD_JOBS[name]
    for taken in ("old", "olds_2"):
        assert nodes("job", "submit", "--no-wait", "--submission-id", taken, "--", "true").code == 0
    before = everything(nodes.home)
    for position in range(COUNT):
        lines: list[dict[str, Any]] = [
            {**JOB, "submission_id": f"good-{n}", "num_cpus": 2} for n in range(COUNT)
        ]
        lines[position] = {**JOB, **fields}
        ran = submit(nodes, lines, "-o", "json")
        error = ran.json["error"]
        assert (ran.code, error["exit_code"], error["details"]["line"]) == (code, code, position + 1), error
        assert error["message"].startswith(f"line {position + 1}: {problem}" if code == 2 else "line "), error
        assert problem in error["message"]
        assert everything(nodes.home) == before


def test_names_are_given_once_in_a_batch(nodes: Cli) -> None:
    one, members = {**JOB, "submission_id": "a_1"}, {**JOB, "submission_id": "a", "array": "0-3"}
    cases = [
        ([one, one], "line 2: job a_1 exists in line 1 already"),
        ([members, one], "line 2: job a_1 exists in line 1 already"),
        ([one, members], "line 2: job a_1 exists in line 1 already"),
        ([members, members], "line 2: job a exists in line 1 already"),
        ([{**JOB, "submission_id": "a"}, members], "line 2: job a exists in line 1 already"),
    ]
    for lines, problem in cases:
        ran = submit(nodes, lines)
        assert (ran.code, ran.out) == (5, "") and problem in ran.err, lines
    others = [{**JOB, "submission_id": name} for name in ("a_4", "a_01", "a_1_", "b_1")]
    assert submit(nodes, [members, *others]).code == 0


def test_a_circle_is_a_line_that_waits_for_a_later_one(nodes: Cli) -> None:
    circle = [
        {**JOB, "submission_id": "a", "after": ["ok:c"]}, {**JOB, "submission_id": "b", "after": ["ok:a"]},
        {**JOB, "submission_id": "c", "after": ["ok:b"]},
    ]  # fmt: skip
    ran = submit(nodes, circle)
    assert (ran.code, ran.out) == (2, "")
    assert "line 1: after: line 3 submits c later" in ran.err and "Fix: put the lines" in ran.err
    member = [{**JOB, "after": ["ok:a_1"]}, {**JOB, "submission_id": "a", "array": "0-3"}]
    assert "line 1: after: line 2 submits a_1 later" in submit(nodes, member).err
    assert rows(nodes.home, "SELECT count(*) FROM jobs") == [(0,)]


@pytest.mark.parametrize("words", [["--", "true"], ["--dry-run"], ["--stdin"], ["--pty"]], ids=" ".join)
def test_what_does_not_go_with_a_file(nodes: Cli, words: list[str]) -> None:
    ran = submit(nodes, [JOB], *words)
    assert (ran.code, ran.out) == (2, "") and "it cannot be combined with --from" in ran.err
    assert rows(nodes.home, "SELECT count(*) FROM jobs") == [(0,)]


def test_a_file_that_cannot_be_read(nodes: Cli) -> None:
    for name in ("missing.jsonl", ".", ""):
        ran = nodes("job", "submit", "--no-wait", "--from", name)
        assert ran.code == 2 and "Error: --from: " in ran.err, name


def test_a_command_is_needed_without_a_file(nodes: Cli) -> None:
    for word in ("job submit", "run"):
        ran = nodes(f"{word} --no-wait")
        assert (ran.code, ran.err.splitlines()[0]) == (2, "Error: Missing argument 'CMD'")
        assert f"`vctl {word} -- python train.py`; see `vctl {word} --help`" in ran.err


def test_ten_thousand_lines(nodes: Cli) -> None:
    """A chain, a fan and whatever lies between: each waits for the one with half its number."""
    lines = [
        {**JOB, "submission_id": f"j{n}", "after": [f"ok:j{n // 2}"] if n else []} for n in range(10_000)
    ]
    ran = submit(nodes, lines)
    assert (ran.code, len(ran.out.split())) == (0, 10_000), ran.err
    assert rows(nodes.home, "SELECT count(*), sum(waits_for) FROM jobs") == [(10_000, 9_999)]
    lines.append({**JOB, "submission_id": "j10000", "after": ["ok:j10001"]})
    before = everything(nodes.home)
    assert "line 1: job j0 exists already" in submit(nodes, lines).err
    assert everything(nodes.home) == before


def test_too_many_lines(nodes: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from vctl.operations import jobs
    from vctl.ops import batches

    ran = submit(nodes, (LINE + b"\n") * (jobs.MAX_LINES + 1))
    assert (ran.code, ran.out) == (2, "") and "jobs: 100001 are too many" in ran.err
    monkeypatch.setattr(batches, "MAX_JOBS", 100)
    ran = submit(nodes, [JOB, {**JOB, "array": "0-99"}])
    assert (ran.code, ran.out) == (2, "") and "101 jobs are too many" in ran.err
    assert rows(nodes.home, "SELECT count(*) FROM jobs") == [(0,)]
