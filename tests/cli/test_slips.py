"""spec 13: what hands slip at is answered with what to write instead."""

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec
from vctl.cli import catalog

pytestmark = spec("13.errors")

NO_VALUE = {
    "job submit --notify -- true": "--notify: its value is missing before --",
    "run --notify --no-wait -- true": "--notify: its value is missing before --no-wait",
    "run -n -- true": "-n: its value is missing before --",
    "run --name -d -- true": "--name: its value is missing before -d",
    "vc create --spec --divisible x": "--spec: its value is missing before --divisible",
    "ps --sort -a": "--sort: its value is missing before -a",
}


@pytest.mark.parametrize("line", NO_VALUE)
def test_an_option_without_its_value_does_not_take_the_next_one(nodes: Cli, line: str) -> None:
    """It took `--` for the command that is told, and `true` for a word of it: a job without notices."""
    ran = nodes(line)
    assert (ran.code, ran.out) == (2, "")
    assert f"Error: {NO_VALUE[line]}\n" in ran.err
    assert f"Fix: write `{NO_VALUE[line].partition(':')[0]} " in ran.err
    assert nodes("job list -o name").out == ""


def test_a_value_may_look_like_an_option_behind_an_equals_sign(nodes: Cli) -> None:
    assert nodes("job submit --no-wait --submission-id a --name=-- --priority -5 -- true").code == 0
    job = nodes("job status a -o json").json
    assert (job["name"], job["priority"]) == ("--", -5)


TRAILING = {
    "job submit --virtual-cluster": ('{"flexible_resource_min": {"CPU": 1},}', '{"flexible_resource_min": {"CPU": 1}}'),
    "job submit --entrypoint-resources": ('{"x": 1, }', '{"x": 1}'),
    "job submit --metadata-json": ('{"a": "b",}', '{"a": "b"}'),
    "job submit --runtime-env-json": ('{"env_vars": {"A": "1",}}', '{"env_vars": {"A": "1"}}'),
    "vc create x --spec": ("{'flexible_resource_min': {'CPU': 1}}", '{"flexible_resource_min": {"CPU": 1}}'),
    "vc create x --replica-sets": ('{8c16g: 1, "b": 2}', '{"8c16g": 1, "b": 2}'),
    "vc create x --borrow-limit": ('{"CPU": 1', '{"CPU": 1}'),
    "vc create x --lending-limit": ("{CPU: 1}", '{"CPU": 1}'),
    "node add x --resources": ('{"CPU": 8,}', '{"CPU": 8}'),
}  # fmt: skip


@pytest.mark.parametrize("line", TRAILING)
def test_json_with_a_usual_mistake_is_shown_mended(nodes: Cli, line: str) -> None:
    given, mended = TRAILING[line]
    command = ["--", "true"] if line.startswith("job") else []
    ran = nodes(*line.split(), given, *command)
    assert (ran.code, ran.out) == (2, "")
    assert f": '{mended}'" in ran.err.partition("Fix: ")[2]


@pytest.mark.parametrize("word", sorted(catalog.INSTEAD))
def test_a_word_without_a_command_says_what_does_it(nodes: Cli, word: str) -> None:
    """`vctl report` offered `vctl restore`, which replaces the state."""
    ran = nodes(word)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"Error: vctl has no command {word!r}\nFix: {catalog.INSTEAD[word]}\n"
    for named in ran.err.split("`")[1::2]:
        command, rest = catalog.find(shlex.split(named)[1:])
        options = {name for param in command.params for name in param.info.names}
        assert {"--", *options} >= {option for option in rest if option.startswith("-")}, named


def test_a_job_in_a_stopped_cluster_says_who_must_do_what(nodes: Cli, tmp_path: Path) -> None:
    """It printed the id alone, and the job waited for ever."""
    assert nodes("vc create a --min CPU=1").code == 0
    quiet = nodes("job submit --no-wait -c a --submission-id before -- true")
    warning = "Warning: it waits, because the cluster is stopped: a admits no jobs until `vctl vc resume a`\n"
    assert nodes("vc stop a").code == 0
    (tmp_path / "jobs").write_text('{"entrypoint": ["true"], "cluster": "a"}\n{"entrypoint": ["true"]}\n')
    for line in (
        "job submit --no-wait -c a -- true",
        "job submit --no-wait -c a --array 1-3 -- true",
        f"job submit --no-wait --from {tmp_path / 'jobs'}",
        "job rerun before --no-wait",
    ):
        ran = nodes(line)
        assert ran.code == 0, ran.err
        assert ran.err.count(warning) == 1, line
    assert "stopped" not in quiet.err
    assert "stopped" not in nodes("job submit --no-wait -- true").err


def test_a_limit_without_a_unit_is_said_by_whatever_takes_one(nodes: Cli) -> None:
    """A time of 60 is a minute in Slurm; beside `job submit`, whatever takes a time limit says so."""
    assert nodes("job submit --no-wait --hold --submission-id a -- true").code == 0
    for line in (
        "job submit --no-wait --time-limit 60 -- true",
        "job edit a --time-limit 60",
        "job rerun a -d --time-limit 60",
    ):
        assert "Warning: --time-limit: 60 means 60 seconds. Write 60m or 60h for more" in nodes(line).err, (
            line
        )


FIXES = {
    "ps --sort -age": "did you mean submitted_at:desc?",
    "ps --sort time": "did you mean run_s?",
    "ps --sort -run_s": "did you mean run_s:desc?",
    "ps --columns ID,STATUS": "did you mean job_id?",
    "node list --sort type": "did you mean template_id?",
    "events --follow": "did you mean --watch?",
    "events -f": "did you mean --watch?",
    "daemon status": "did you mean `vctl daemon --status`?",
    "daemon stop": "did you mean `vctl daemon --stop`?",
    "stop --all": "a pattern names all jobs: `vctl stop '*'`",
    "stop all": "a pattern names all jobs: '*'",
    "stop one,two": "write the ids as separate words: one two",
    "logs mine": "it is the name of one: write the id",
    "run -c team/sub -- true": "an id is no path: write sub",
    "vc update team --min CPU=+2": "write the whole amount: CPU=8",
}


@pytest.mark.parametrize("line", FIXES)
def test_what_is_meant_is_said(nodes: Cli, line: str) -> None:
    assert nodes("job submit --no-wait --hold --submission-id one --name mine -- true").code == 0
    assert nodes("vc create team --min CPU=1").code == 0
    ran = nodes(line)
    assert ran.code in (2, 4)
    assert ran.out == ""
    assert f"Fix: {FIXES[line]}\n" in ran.err


@pytest.mark.on_the_machine
def test_a_file_is_no_cluster_to_export(nodes: Cli) -> None:
    ran = nodes("vc export tree.yaml")
    assert (ran.code, ran.err) == (2, "Error: ID: tree.yaml is a file\nFix: vctl vc export > tree.yaml\n")
