import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Cli, python
from tests.specification import spec
from vctl import __version__
from vctl.cli import catalog, output
from vctl.cli import yaml as own_yaml

pytestmark = spec("13.output")

ROOT = Path(__file__).parents[2]
SUBMIT = ("job", "submit", "--no-wait", "--submission-id")


@pytest.fixture
def jobs(nodes: Cli) -> Cli:
    for name in ("first", "second"):
        assert nodes(*SUBMIT, name, "--", "echo", "a b").code == 0
    return nodes


def test_no_wait_prints_the_id_and_says_that_nothing_schedules(nodes: Cli) -> None:
    ran = nodes(*SUBMIT, "x", "--", "true")
    assert ran.out == "x\n"
    assert "No scheduler is running" in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--memory 16", "--memory: 16 means 16 bytes. Write 16GiB"),
        ("-n 1 --entrypoint-memory 4 --memory 1GiB", "--entrypoint-memory: 4 means 4 bytes"),
        ("--memory 1048576", ""),
        ("--memory 16B", ""),
        ("--memory 0 -n 1", ""),
    ],
)
def test_a_size_without_a_unit_that_is_a_mistake_is_told(nodes: Cli, words: str, told: str) -> None:
    """spec 2: memory is in bytes; nobody means so few."""
    ran = nodes(f"run --no-wait --submission-id x {words} -- true")
    assert (ran.code, ran.out) == (0, "x\n"), ran.err
    assert ("Warning" in ran.err) == bool(told)
    assert told in ran.err


def test_a_change_in_json_is_the_object(nodes: Cli) -> None:
    ran = nodes(*SUBMIT, "x", "-o", "json", "--", "true")
    assert ran.json["submission_id"] == "x"
    assert nodes("node drain 4c8g-00 -o name").out == "4c8g-00\n"
    assert nodes("node undrain 4c8g-00").out == "node 4c8g-00 is ALIVE\n"


def test_lists_come_in_an_envelope(jobs: Cli) -> None:
    data = jobs("job list -o json").json
    assert (data["api_version"], data["kind"], data["total"]) == ("vctl/v1", "JobList", 2)
    assert {item["submission_id"] for item in data["items"]} == {"first", "second"}


GROWING = ("wait_s", "expected_start")


def still(data: Any) -> Any:
    """The same without the values that grow between two looks at a job that waits and may start now."""
    if isinstance(data, list):
        return [still(one) for one in data]
    if isinstance(data, dict):
        return {name: still(value) for name, value in data.items() if name not in GROWING}
    return data


def test_every_form_tells_the_same(jobs: Cli) -> None:
    data = jobs("job list -o json").json
    assert still(yaml.safe_load(jobs("job list -o yaml").out)) == still(data)
    lines = [json.loads(line) for line in jobs("job list -o jsonl").out.splitlines()]
    assert still(lines) == still(data["items"])
    assert jobs("job list -o name").out.split() == [item["submission_id"] for item in data["items"]]
    rows = list(csv.DictReader(io.StringIO(jobs("job list -o csv").out)))
    assert [row["submission_id"] for row in rows] == [item["submission_id"] for item in data["items"]]
    assert json.loads(rows[0]["resources"]) == data["items"][0]["resources"]


def test_names_and_csv_are_those_of_the_same_jobs_as_in_json(jobs: Cli) -> None:
    """Finished ones and members of arrays were missing from the names."""
    assert jobs("job stop first").code == 0
    assert jobs("job submit --array 0-1 --submission-id sweep --no-wait -- true").code == 0
    for line in (
        "ps",
        "ps --user nobody-else",
        "ps --limit 2",
        "job list --filter status=STOPPED",
        "ps --sort name",
    ):
        wanted = [item["submission_id"] for item in jobs(f"{line} -o json").json["items"]]
        assert jobs(f"{line} -o name").out.split() == wanted, line
        rows = list(csv.DictReader(io.StringIO(jobs(f"{line} -o csv").out)))
        assert [row["submission_id"] for row in rows] == wanted, line
    assert len(jobs("ps -o name").out.split()) == 4


def test_no_cell_has_raw_json(jobs: Cli) -> None:
    """Objects inside an object are words: `spec`, `replica_sets`, `array`, `metadata`, the details of events."""
    assert jobs("vc", "create", "team-a", "--divisible", "--replica-sets", '{"4c8g": 1}').code == 0
    spec_ = '{"flexible_resource_min": {"CPU": 2, "memory": "1GiB"}}'
    assert jobs("vc", "create", "small", "--parent", "team-a", "--spec", spec_).code == 0
    submit = [
        "job",
        "submit",
        "--array",
        "0-3",
        "--metadata",
        "run=7",
        "--submission-id",
        "sweep",
        "--no-wait",
    ]
    assert jobs(*submit, "--", "true").code == 0
    pages = {line: jobs(line) for line in ("job status sweep", "job status first", "vc get team-a", "vc get small",
             "events", "list vnodes", "status", "vc list", "node get 4c8g-00", "config show")}  # fmt: skip
    for line, page in pages.items():
        assert "{" not in page.out, line
    assert "flexible_resource_min (CPU 2, memory 1GiB)" in pages["vc get small"].out


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "yaml", "csv", "name"])
@pytest.mark.parametrize(
    "line",
    [
        "ps",
        "list jobs",
        "list tasks",
        "list objects",
        "list leases",
        "list vnodes",
        "events",
        "demand",
        "node list",
    ],
)
def test_an_empty_list_has_every_form(cli: Cli, line: str, form: str) -> None:
    ran = cli(f"{line} -o {form}")
    assert ran.code == 0, ran.err
    if form in ("json", "yaml"):
        data = yaml.safe_load(ran.out)
        assert (data["items"], data["total"]) == ([], 0)
    elif form == "csv":
        assert re.fullmatch(r"[a-z_]+(,[a-z_]+)+\n", ran.out)
        assert cli(f"{line} -o csv --no-header").out == ""
    elif form != "table":
        assert ran.out == ""


@pytest.mark.parametrize(
    ("line", "nothing"),
    [
        ("job list -a", "status=nothing"),
        ("job list -a --columns status,job_id", "status=nothing"),
        ("list jobs", "name=nothing"),
        ("node list", "state=nothing"),
        ("vc list", "kind=nothing"),
        ("list events", "kind=nothing"),
        ("demand", "kind=nothing"),
        ("list clusters", "kind=nothing"),
        ("list nodes", "state=nothing"),
        ("list vnodes", "kind=nothing"),
    ],
)
def test_an_empty_csv_has_the_header_of_a_full_one(jobs: Cli, line: str, nothing: str) -> None:
    """A program that reads columns, by name or by place, meets them where nothing is listed too."""
    assert jobs("vc create team --replica-sets {}").code == 0
    assert jobs("vc", "create", "part", "--spec", '{"flexible_resource_min": {"CPU": 1}}').code == 0
    header, *rows = jobs(f"{line} -o csv").out.splitlines()
    assert rows
    assert jobs(f"{line} -o csv --filter {nothing}").out.splitlines() == [header]


@pytest.mark.parametrize(
    "line", ["nodes", "cluster-resources", "available-resources", "summary vnodes", "list vnodes", "demand"]
)
def test_so_has_the_csv_about_a_cluster_with_nothing_in_it(jobs: Cli, line: str) -> None:
    for name, own in (("none", "{}"), ("part", '{"flexible_resource_min": {"CPU": 1}}')):
        assert jobs("vc", "create", name, "--divisible", "--spec", own).code == 0
    assert jobs("job submit --no-wait -c part --num-cpus 1 -- true").code == 0
    header, *rows = jobs(f"{line} -c part -o csv").out.splitlines()
    assert rows
    assert jobs(f"{line} -c none -o csv").out.splitlines() == [header]


def test_one_object_is_itself(jobs: Cli) -> None:
    data = jobs("job status first -o json").json
    assert data["submission_id"] == "first"
    assert "kind" not in data
    assert still(jobs("job status first -o jsonl").json) == still(data)
    assert still(yaml.safe_load(jobs("job status first -o yaml").out)) == still(data)
    assert jobs("job status first").out.startswith("job_id")


@spec("11.views")
def test_what_get_shows_is_what_the_list_has(nodes: Cli) -> None:
    nodes('vc create team --spec {"flexible_resource_min":{"CPU":2}}')
    for kind, key in (("vnodes", "vnode_id"), ("nodes", "node_id"), ("events", "seq")):
        item = nodes(f"list {kind} -o json").json["items"][0]
        got = nodes(f"get {kind} {item[key]} -o json").json
        assert got == item, kind
    refused = nodes("get vnodes team/9 -o json").json["error"]
    assert (refused["exit_code"], refused["message"]) == (4, "there is no virtual node 'team/9'")


def test_piped_tables_are_plain_and_whole(nodes: Cli) -> None:
    long = "x" * 300
    nodes(*SUBMIT, "x", "--", "echo", long)
    ran = nodes("job list")
    heading, row = ran.out.splitlines()
    assert heading.split()[:2] == ["SUBMISSION", "ID"]
    assert row.endswith(f"echo {long}")
    assert "\x1b" not in ran.out


@spec("3.totals")
def test_tables_show_what_is_held_of_a_resource_that_a_node_has_no_more(nodes: Cli) -> None:
    nodes(*"node add shrinks --resources".split(), '{"GPU": 2, "licence": 1}', "--simulated")
    nodes(*"vc create team --spec".split(), '{"flexible_resource_min": {"GPU": 2, "licence": 1}}')
    nodes(*"node update shrinks --resources".split(), '{"GPU": 0, "licence": 0, "CPU": 1}')
    assert " 2/0 " in nodes("node list").out
    assert " 2/0 " in nodes("nodes").out
    assert re.search(r"GPU +0 +2 +0", nodes("status").out)


def test_header_and_colour_can_be_chosen(jobs: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(jobs("job list --no-header").out.splitlines()) == 2
    assert not jobs("job list -o csv --no-header").out.startswith("job_id")
    assert "\x1b[" in jobs("job list --color always").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in jobs("job list").out


def test_a_limited_table_says_how_many_more(jobs: Cli) -> None:
    ran = jobs("job list --limit 1")
    assert len(ran.out.splitlines()) == 2
    assert "… 1 more" in ran.err
    data = jobs("job list --limit 1 -o json")
    assert (len(data.json["items"]), data.json["total"]) == (1, 2)
    assert "more" not in data.err


def test_a_limit_of_0_does_not_say_that_there_are_none(jobs: Cli) -> None:
    ran = jobs("job list --limit 0")
    assert (ran.out, "… 2 more" in ran.err) == ("", True)


def test_a_page_has_amounts_with_units_and_a_dash_for_none(nodes: Cli) -> None:
    """Spec 13: tables are for people, data has numbers."""
    lines = dict(line.split(None, 1) for line in nodes("current-cluster").out.splitlines())
    assert lines["used_object_store_memory"] == "0B"
    nodes("vc create empty")
    lines = dict(line.split(None, 1) for line in nodes("vc get empty").out.splitlines())
    assert lines["total_resources"] == "-"


def test_the_log_of_a_job_that_never_started_says_why_there_is_none(jobs: Cli) -> None:
    jobs("job stop first")
    ran = jobs("job logs first")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "job first never started, so it has no output: stopped before it started\n"


@spec("11.why")
def test_why_says_that_a_node_drains_beside_who_holds_it(nodes: Cli) -> None:
    made = nodes("vc", "create", "held", "--spec", '{"flexible_resource_min": {"CPU": 1}}', "-o", "json").json
    (node_id,) = made["node_instances"]
    nodes(f"node drain {node_id}")
    nodes(*SUBMIT, "waits", "--", "true")
    (line,) = (line for line in nodes("why waits").out.splitlines() if line.strip().startswith(node_id))
    assert line.endswith("held (CPU 1); the node is DRAINING")


@spec("11.why")
def test_why_says_what_makes_a_node_infeasible_not_who_holds_some_of_it(nodes: Cli) -> None:
    """Nobody's end would help there: the line had only the name of a holder beside enough free CPUs."""
    made = nodes("vc", "create", "held", "--spec", '{"flexible_resource_min": {"CPU": 1}}', "-o", "json").json
    (node_id,) = made["node_instances"]
    part = {"resources": {"CPU": 1}, "label_selector": {"ray.io/node-id": f"!{node_id}"}}
    wanted = json.dumps({"fixed_size_nodes": [{"nodes": [part]}]})
    assert nodes(*SUBMIT, "waits", "--virtual-cluster", wanted, "--", "true").code == 0
    (line,) = (line for line in nodes("why waits").out.splitlines() if line.strip().startswith(node_id))
    assert line.endswith(f"labels do not match ray.io/node-id: !{node_id}")


@spec("13.errors")
@pytest.mark.parametrize("kind", ["job", "task"])
def test_the_end_of_a_log_is_refused_where_it_cannot_be_shown(jobs: Cli, kind: str) -> None:
    """The same words on both backends; until now a state directory took it for nothing."""
    ran = jobs(f"{kind} logs first --tail -1")
    assert (ran.code, ran.err) == (2, "Error: --tail: -1 is negative\nFix: write 0 or more\n")
    ran = jobs(f"{kind} logs first --follow --tail 1")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "Error: --tail: it cannot be combined with --follow")


def test_finished_jobs_show_with_all_in_json_and_when_asked_for(jobs: Cli) -> None:
    assert jobs("job stop first first").out == "job first is STOPPED\n"
    assert "first" not in jobs("job list").out
    assert "first" in jobs("job list -a").out
    assert "first" in jobs("job list --filter status=STOPPED").out
    assert jobs("job list -o json").json["total"] == 2


def test_output_may_come_from_the_environment_or_a_file(
    jobs: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".vctl.toml").write_text('output = "name"\n')
    assert jobs("job list").out == "second\nfirst\n"
    monkeypatch.setenv("VCTL_OUTPUT", "json")
    assert jobs("job list").json["total"] == 2
    assert jobs("job list -o name").out == "second\nfirst\n"


@pytest.mark.on_the_machine  # --home names another directory
def test_shared_options_may_stand_in_front(jobs: Cli, tmp_path: Path) -> None:
    for line in (
        "-o json job list",
        "-ojson job list",
        "job -o json list",
        "--output=json job list",
        "job --output json list",
    ):
        assert jobs(line).json["total"] == 2, line
    assert jobs("--home", str(tmp_path / "other"), "-o", "json", "job", "list").json["total"] == 0


def test_node_lists(nodes: Cli) -> None:
    assert nodes("node list -o json").json["kind"] == "NodeList"
    assert nodes("node list -o name").out == "4c8g-00\n4c8g-01\n"
    assert nodes("list nodes --filter state=DEAD -o json").json["items"] == []
    assert nodes("summary nodes -o json").json["counts"] == {"ALIVE": 2}
    assert nodes("get nodes 4c8g-00 -o json").json["resources"]["CPU"] == 4
    assert "0/4" in nodes("node list").out


def test_the_command_is_never_read_as_options(nodes: Cli) -> None:
    nodes(*SUBMIT, "x", "--", "sh", "-c", "echo $0 --help", "-o", "json", "--", "--no-wait")
    entry = nodes("job status x -o json").json["entrypoint"]
    assert entry == "sh -c 'echo $0 --help' -o json -- --no-wait"
    nodes(*SUBMIT, "y", "python", "-o", "x")
    assert nodes("job status y -o json").json["entrypoint"] == "python -o x"


def test_config_shows_values_and_origins(cli: Cli) -> None:
    items = {item["name"]: item for item in cli("config show -o json").json["items"]}
    assert items["home"]["value"] == str(cli.home)
    assert items["home"]["origin"] == "environment VCTL_HOME"
    assert "environment VCTL_HOME" in cli("config show --origin").out
    assert cli("config path -o name").out == f"{cli.home}\n"


def test_a_reader_that_leaves_is_no_error(jobs: Cli) -> None:
    script = "import sys; from vctl.__main__ import main; sys.exit(main())"
    import os
    import subprocess
    import sys

    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-c", script, "job", "list", "-o", "json"],
        stdout=write, stderr=subprocess.PIPE, env={**os.environ}, check=False, text=True,
    )  # fmt: skip
    os.close(write)
    assert ran.returncode == 141
    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr


VALUES = [
        {"a": 1, "b": [1, {"c": None, "d": []}], "e": {}},
        ["yes", "null", "1.5", "1e3", "", " x", "a: b", "# c", "- d", "x\ny", "é",
         "\x7f", "\u2028", "a#b", "~", "=", "0x1"],
        [[1, 2], [[3]], [{}]],
        [{"a": 1, "b%d": None, "c": [], "d": {"e": 1.0}}, {"a": True, "b%d": "x\ny", "c": [1, {"e": []}], "d": {}}],
        {"items": [{"a": "\u00fc%s\x7f", "b": {"c": [1, 2]}}, {"a": "\u2028", "b": {"c": [3]}}], "total": 2},
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {}],
        [{"a": 1}, 2, {"a": 3}],
        {"on": True, "1": 2, "a b": "2025-11-20T12:00:00.000000Z", "12:30:45": "12:30:45", "key: x": 0.25},
        "text",
        7,
        [],
    ]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_yaml_reads_back(value: object) -> None:
    assert yaml.safe_load(own_yaml.dump(value)) == value


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_is_written_as_the_library_indents_it(value: object, encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    output.write(output.Answer(value, rows=(), names=()), "json", stream, header=True)
    stream.seek(0)
    expected = json.dumps(value, indent=2, ensure_ascii=encoding == "ascii")
    assert stream.read() == expected.replace("\x7f", "\\u007f").replace("\u2028", "\\u2028") + "\n"


FORBIDDEN = "typer sqlite_utils pydantic rich filelock asyncio yaml tomllib subprocess click".split()
FORBIDDEN += ["dataclasses", "inspect", "copy", "sqlite3", "shutil", "bz2", "lzma"]
DECIDES = ["vctl.scheduler.cycle"]
"""With it comes all of the scheduler: who shows waiting jobs asks it when they start."""
WRITES = ["vctl.store.write"]
CHANGES = ["vctl.engine.changes", *WRITES]
"""What only commands import that change something."""
SUBMITS = ["vctl.cli.commands.job_submit", "vctl.cli.submission", "vctl.spec.options"]
"""What submits have, and other commands about jobs do not need."""
OTHERS = [
    "vctl.cli.commands.jobs",
    "vctl.spec.notify",
    "shlex",
    "vctl.store.write.tasks",
    "vctl.store.write.nodes",
]
"""What other commands and other changes need, but no plain submit."""
JUDGES = ["vctl.ops.reachable", "vctl.ops.task_reasons", "vctl.core.ledger", "heapq"]
"""What nobody needs who asks for no reason why something waits."""
HOT = {
    "job list -o json": WRITES + SUBMITS,
    "ps": WRITES + SUBMITS,
    "job list -o name": CHANGES + DECIDES,
    "job list --state succeeded -o json": CHANGES + JUDGES + DECIDES,
    "job status first -o yaml": WRITES,
    "job status first -o yaml --no-forecast": CHANGES + DECIDES,
    "job submit --no-wait -- true": JUDGES + DECIDES + OTHERS,
    "job stop second": DECIDES,
    "node list -o csv": CHANGES + DECIDES,
    "status -o json": WRITES,
    "__complete job status x": CHANGES + DECIDES,
}


@pytest.mark.parametrize("line", HOT)
def test_hot_commands_import_little(jobs: Cli, line: str) -> None:
    forbidden = {*FORBIDDEN, *HOT[line]}
    if "VCTL_ADDRESS" not in os.environ and line != "ps":  # HTTP has dates, and that table has times
        forbidden.add("datetime")
    code = (
        "import sys; sys.argv = ['vctl', *sys.argv[1:]]; from vctl.__main__ import main; code = main();"
        f"sys.stderr.write(repr([code, sorted({forbidden!r} & set(sys.modules))]))"
    )
    ran = python("-c", code, *line.split(), home=jobs.home)
    assert ran.stderr.endswith("[0, []]"), ran.stderr


@pytest.mark.parametrize("path", catalog.ALONE)
def test_a_frequent_command_is_declared_by_the_module_that_the_catalogue_names(path: str, jobs: Cli) -> None:
    code = "import sys; from vctl.cli import catalog; print(catalog.find(sys.argv[1:])[0].path)"
    assert python("-c", code, *path.split(), home=jobs.home).stdout == f"{path}\n"


def test_the_script_imports_nothing_beside_the_command() -> None:
    """What pip makes of an entry point imports ``re`` first, for 4 to 7 ms of each command."""
    script = ROOT / "vctl" / "bin" / "vctl"
    ran = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", str(script), "--version"],
        env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == f"vctl {__version__}\n"
    assert not {"re", "enum", "functools"} & {
        line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()
    }


# ---- which entries, and text of others (spec 13) ----


def test_lists_are_chosen_by_user_state_and_time(jobs: Cli) -> None:
    assert jobs("job stop first").code == 0
    user = jobs("job list -o json").json["items"][0]["user"]
    assert jobs("job list --user nobody-else -o json").json["total"] == 0
    assert "first" not in jobs("job", "list", "--user", user).out  # who is over is not asked for
    assert jobs("job", "list", "--user", user, "-o", "name").out == "second\nfirst\n"
    assert jobs("job list --state stopped -o name").out == "first\n"
    assert jobs("job list --state STOPPED,PENDING -o json").json["total"] == 2
    assert jobs("job list --since 1h -o name").out == "second\nfirst\n"
    assert jobs("job list --since 2100-01-01T00:00 -o name").out == ""
    assert jobs("list jobs --state PENDING -o name").out == "second\n"
    assert jobs("list nodes --state ALIVE -o json").json["total"] == 2
    assert jobs("node list --state DEAD -o name").out == ""
    assert jobs("vc list --state ACTIVE -o json").json["total"] == 1
    assert jobs("list events --since 2100-01-01T00:00 -o json").json["total"] == 0


def test_the_history_is_chosen_by_number_and_by_time(jobs: Cli) -> None:
    """spec 11, 13: `get` knows events, every list takes a time, and -a wherever finished ones are listed."""
    events = jobs("events -o json").json["items"]
    one = events[2]
    assert jobs("get", "events", str(one["seq"]), "-o", "json").json == one
    assert jobs("get events 999999").code == jobs("get events x").code == 4
    assert jobs("events --since 1h -o json").json["items"] == events
    assert jobs("events --since 2100-01-01T00:00 -o json").json["items"] == []
    assert jobs("events", "--since", str(one["seq"]), "-o", "json").json["items"] == events[3:]
    assert jobs("events --since yesterday").code == 2
    assert jobs("job stop first").code == 0
    assert jobs("list jobs -a -o name").out == "second\nfirst\n"


def test_why_is_a_verb_of_jobs_too(jobs: Cli) -> None:
    """spec 8, 11: a job that waits always says why, under both words."""
    assert still(jobs("job why second -o json").json) == still(jobs("why second -o json").json)


def test_top_without_a_terminal_shows_the_status_once(jobs: Cli) -> None:
    """spec 13: top is a command."""
    assert jobs("top -o json").json["queue"]["pending"] == jobs("status -o json").json["queue"]["pending"] > 0
    assert "Resources" in jobs("top").out


def test_a_choice_that_means_nothing_is_refused(jobs: Cli) -> None:
    ran = jobs("job list --state RUNING")
    assert (ran.code, "did you mean RUNNING?" in ran.err) == (2, True)
    assert jobs("list nodes --user ana").code == 2
    assert jobs("job list --since yesterday").code == 2


def test_the_name_on_the_screen_is_an_id(jobs: Cli) -> None:
    assert jobs("vc get primary -o json").json["cluster_id"] == "kPrimaryClusterID"
    shown = jobs("job status first").out
    assert "primary##first" in shown
    assert "kPrimaryClusterID" not in shown
    assert jobs("job status first -o json").json["cluster_id"] == "kPrimaryClusterID##first"


def test_the_queue_of_a_cluster_is_said_in_words(nodes: Cli) -> None:
    assert nodes("vc update primary --queue-order fair --ageing 90").code == 0
    (line,) = (line for line in nodes("vc get primary").out.splitlines() if line.startswith("queue "))
    assert "order fair, discipline best-effort, weight 1, ageing 1m30s" in line
    assert not set('{}"') & set(line)


def test_a_long_field_is_cut_for_people_only(nodes: Cli) -> None:
    """Spec 11: a cluster with a thousand jobs still fits on a screen."""
    nodes("job submit --no-wait --submission-id many --array 0-29 -- true")
    said = next(line for line in nodes("vc get primary").out.splitlines() if line.startswith("jobs"))
    assert said.endswith("many_8, many_9 and 20 more (all: -o json)")
    assert len(nodes("vc get primary -o json").json["jobs"]) == 30


def test_text_of_others_does_nothing_to_a_terminal(nodes: Cli) -> None:
    evil = "a\x1b[2Jb\x9bc\u202ed\u200be"
    assert nodes(*SUBMIT, "x", "--", "echo", evil).code == 0
    for words in ("job list", "job status x", "status", "job list -o json", "job list -o yaml", "why x"):
        out = nodes(words).out
        assert not set("\x1b\x9b\u202e\u200b") & set(out), words
    assert evil in nodes("job status x -o json").json["entrypoint"]
    ran = nodes("job", "status", evil)
    assert (ran.code, ran.err.count("\n") <= 2, "\x1b" in ran.err, "\x9b" in ran.err) == (
        4,
        True,
        False,
        False,
    )
