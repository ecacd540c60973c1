"""Whatever others wrote, and whatever stands in the tables: nothing of it is raw on a terminal (spec 13, 14).

The one exception are logs: they are the bytes of their owner and leave as they came.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import httpx
import pytest

from tests.cli.conftest import SERVER, Cli
from tests.operations.test_declared import DECLARED
from tests.specification import spec
from vctl.cli import catalog

pytestmark = spec("13.errors", "13.output", "14.api")

EVIL = "e\x1b]8;;http://x\x07f\x1b]52;c;aGk=\x07\x9b2J\r\x85\x7f\u202ec\u2066d\u200be\u2028g"
"""A link, the clipboard, C1 control characters, a carriage return, a bell, and changes of the writing direction."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TEXTS = {
    "jobs": ("name", "message", "user"), "commands": ("entrypoint",), "nodes": ("reason", "author"),
    "clusters": ("message",), "tasks": ("name", "message"),
}  # fmt: skip
SHOWN = """ps -a|job list -a --sort name|job list -a --columns submission_id,name,entrypoint,metadata
status|why wide|job status x|job status wide|job status over|get jobs x|get nodes t-00|get clusters shared
get tasks task-1|list jobs|list events|timeline|job why wide
list events --detail|events|node list|node get t-00|nodes|vc list|vc tree|vc get shared
vc get primary|task list|task status task-1|why task-1|summary jobs|summary tasks|demand|lease list
vc export|list vnodes|list objects|gpus|limit list|report"""
COMMANDS = [line for row in SHOWN.splitlines() for line in row.split("|")]


def raw(text: str) -> set[str]:
    """What of a text a terminal would act on, or would hide."""
    return {char for char in COLOURS.sub("", text) if char != "\n" and not char.isprintable()}


@pytest.fixture
def hostile(nodes: Cli) -> Cli:
    """Jobs, nodes, clusters and a task with such text in every field that has text."""
    submit = ("job", "submit", "--no-wait", "--submission-id")
    one = '{"CPU": 4}'
    assert nodes("node", "add", "t-00", "--template", "t", "--simulated", "--resources", one).code == 0
    assert nodes("vc", "create", "shared", "--replica-sets", '{"t": 1}').code == 0
    for words in (("x", "--hold"), ("wide", "--num-cpus", "3", "--nodes", "2"), ("over",), ("runs",)):
        assert nodes(*submit, *words, "--", "echo", EVIL).code == 0
    assert nodes("stop", "over").code == 0
    with closing(sqlite3.connect(nodes.home / "cluster.db")) as db, db:
        db.execute(
            "UPDATE jobs SET status = 'RUNNING', started_at = submitted_at WHERE submission_id = 'runs'"
        )
    assert nodes("task", "run", "--no-wait", "--job", "runs", "--", "true").code == 0
    with closing(sqlite3.connect(nodes.home / "cluster.db")) as db, db:
        for table, wanted in TEXTS.items():
            there = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            for column in there.intersection(wanted):
                db.execute(f"UPDATE {table} SET {column} = ?", (EVIL,))
    return nodes


@pytest.mark.parametrize("form", ["table", "table --color always", "json", "jsonl", "yaml"])
def test_what_is_shown(hostile: Cli, form: str) -> None:
    seen = ""
    for line in COMMANDS:
        ran = hostile(f"{line} -o {form}")
        assert ran.code == 0, (line, ran.err)
        assert raw(ran.out + ran.err) == set(), line
        seen += ran.out
    assert "1b]52;c;aGk=" in seen  # it is there, as letters


def test_words_that_are_wrong(hostile: Cli) -> None:
    """Errors repeat words; they and ``-o json`` show them as letters."""
    ends = ([EVIL], [f"--{EVIL}"], [f"--{EVIL}={EVIL}"], ["-o", EVIL], ["--columns", EVIL], ["--sort", EVIL],
            ["--filter", EVIL], ["-c", EVIL], ["--spec", f"@{EVIL}"], ["--resources", EVIL])  # fmt: skip
    for path in ("", "job", "vc", "help", "ps", "job status", "job submit --no-wait", "vc get", "node add", "vc create",
                 "why", "list jobs", "lease list", "demand", "task list", "simulate", "completion"):  # fmt: skip
        for end in ends:
            for words in ([*path.split(), *end], [*path.split(), "-o", "json", *end]):
                ran = hostile(*words) if len(words) > 1 else hostile(*words, "-h")
                assert raw(ran.out + ran.err) == set(), words
                assert "internal error" not in ran.out + ran.err, words


def test_headings(cli: Cli) -> None:
    """Also where a list is empty and no row says which fields there are."""
    for line in ("ps", "lease list", "demand", "task list", "node list"):
        for option in ("--columns", "--sort"):
            ran = cli(*line.split(), option, EVIL)
            assert (ran.code, raw(ran.out + ran.err)) == (2, set()), line


@pytest.mark.parametrize("backend", [SERVER], indirect=True)
@pytest.mark.on_the_machine
def test_json_of_the_server(hostile: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec 14: somebody looks at it with curl."""
    import os

    socket = os.environ["VCTL_ADDRESS"].removeprefix("unix:")
    names = {"job": "x", "node": "t-00", "cluster": "shared", "task": "task-1", "vnode": "nobody"}
    seen = ""
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=socket), base_url="http://localhost", timeout=30
    ) as http:
        for verb in DECLARED:
            if verb.method == "GET":
                path = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: names.get(found[1], "nobody"), verb.path)
                text = http.get(f"/api/v1{path.rstrip('?')}", params={"all": "true"}).content.decode()
                assert raw(text) == set(), verb.path
                seen += text
        for path in (
            f"/api/v1/jobs/{EVIL.encode().hex()}",
            "/api/jobs/",
            "/virtual_clusters",
            "/api/v1/nothing",
        ):
            assert raw(http.get(path).content.decode()) == set(), path
        refused = http.post("/api/v1/jobs", json={"entrypoint": ["true"], "submission_id": EVIL, EVIL: 1})
        assert refused.status_code >= 400
        assert raw(refused.content.decode()) == set()
    assert "1b]52;c;aGk=" in seen


def test_what_a_shell_offers(hostile: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    from vctl.cli.completion import offer

    for line in ("job status", "why", "node get", "vc get", "task status"):
        assert offer([*line.split(), ""]) == 0
        assert raw(capsys.readouterr().out) <= {"\t"}, line


def test_every_command_that_shows_something_is_here() -> None:
    reading = {path for path, command in catalog.load_all().items() if "watch" in command.common}
    missing = {path for path in reading if not any(line.startswith(path) for line in COMMANDS)}
    assert missing <= {
        "available-resources", "cluster-resources", "config path", "config show", "current-cluster", "current-node",
        "doctor", "job list", "get", "list", "token list",
    }, missing  # fmt: skip
