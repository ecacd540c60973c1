"""``--sort`` and ``--columns`` of lists: by names of the JSON form, in every form of the output."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec

pytestmark = spec("13.output")

SUBMIT = ("job", "submit", "--no-wait")


@pytest.fixture
def jobs(nodes: Cli) -> Cli:
    """By priority: c, a, b. Only b has a name."""
    for name, priority, more in (("a", "2", ()), ("b", "1", ("--name", "x")), ("c", "10", ())):
        assert nodes(*SUBMIT, "--submission-id", name, "--priority", priority, *more, "--", "true").code == 0
    return nodes


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ("--sort submission_id", "abc"),
        ("--sort submission_id:desc", "cba"),
        ("--sort priority", "bac"),  # numbers as numbers
        ("--sort priority:desc --limit 2", "ca"),  # the limit is taken after sorting
        ("--sort name", "bca"),  # what has none comes last, the rest as it was: newest first
        ("--sort name:desc", "bca"),
        ("--sort queue_position", "cab"),
    ],
)
def test_sorted_in_every_form(jobs: Cli, options: str, want: str) -> None:
    for command in ("job list", "list jobs"):
        assert jobs(f"{command} {options} -o name").out.split() == list(want)
        data = jobs(f"{command} {options} -o json").json
        assert [item["submission_id"] for item in data["items"]] == list(want)
        assert data["total"] == 3
        lines = jobs(f"{command} {options} -o jsonl").out.splitlines()
        assert [json.loads(line)["submission_id"] for line in lines] == list(want)
        table = jobs(f"{command} {options} --no-header").out.splitlines()
        assert [line.split()[0] for line in table] == list(want)


def test_more_than_is_shown_is_told(jobs: Cli) -> None:
    ran = jobs("job list --sort priority --limit 1")
    assert "2 more" in ran.err
    assert len(ran.out.splitlines()) == 2


def test_columns(jobs: Cli) -> None:
    table = jobs("job list --sort priority --columns submission_id,priority,name").out.splitlines()
    assert table[0].split() == ["SUBMISSION_ID", "PRIORITY", "NAME"]
    assert [line.split() for line in table[1:]] == [["b", "1", "x"], ["a", "2", "-"], ["c", "10", "-"]]
    assert (
        jobs("list jobs --sort priority --columns priority,name -o csv").out
        == "priority,name\n1,x\n2,\n10,\n"
    )
    whole = jobs("job list --columns priority -o json").json["items"][0]
    assert {"submission_id", "status"} <= set(whole)  # JSON has everything
    assert jobs("job list --columns priority -o name").out.split() == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--sort priorty", "did you mean priority?"),
        ("--columns submission_id,zzz", "valid names: job_id"),
        ("--sort priority:up", "priority:desc"),
    ],
)
def test_what_is_not_there_is_refused(jobs: Cli, options: str, says: str) -> None:
    ran = jobs(f"job list {options}")
    assert ran.code == 2
    assert says in ran.err


def test_an_empty_list_has_the_fields_of_a_full_one(nodes: Cli) -> None:
    for kind, field in (("task list", "task_id"), ("ps", "array"), ("lease list", "since"), ("demand", "by")):
        assert nodes(f"{kind} --sort {field} --columns {field}").code == 0
        for option in ("--sort", "--columns"):
            ran = nodes(f"{kind} {option} whatever")
            assert (ran.code, f"{option}: unknown field 'whatever'" in ran.err) == (2, True)
