"""spec 3: this machine becomes a node by the first command that submits or places work, by none that only reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec
from vctl.cli import catalog

pytestmark = spec("3.sources")

READING = """
status; vc list; vc tree; node list; nodes; cluster-resources; available-resources; current-cluster; list nodes
list jobs; summary jobs; events; demand; lease list; job list -a; ps; task list; config show; vc export
vc plan -f tree.yaml; job submit --dry-run -- true; doctor; replay --dry-run
"""
LINES = [line.strip() for line in READING.replace("\n", ";").split(";") if line.strip()]
PLACING = {
    "job submit": ["run", "--no-wait", "--", "true"],
    "vc create": ["vc", "create", "a", "--spec", '{"flexible_resource_min": {"CPU": 1}}'],
    "vc apply": ["vc", "apply", "-f", "tree.yaml"],
}


@pytest.fixture
def fresh(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """An empty state directory where this machine may be a node; nothing schedules by itself."""
    monkeypatch.delenv("VCTL_LOCAL_NODE")
    monkeypatch.setenv("VCTL_AUTOSTART", "0")
    Path("tree.yaml").write_text("clusters:\n  - id: a\n    spec: {flexible_resource_min: {CPU: 1}}\n")
    return cli


def sources(cli: Cli) -> list[str]:
    return [node["source"] for node in cli("node list -o json").json["items"]]


@pytest.mark.parametrize("line", LINES)
def test_a_command_that_reads_registers_nothing(fresh: Cli, line: str) -> None:
    fresh(line)
    assert sources(fresh) == []


def test_a_dry_run_in_an_empty_directory_says_what_a_submit_would_do(fresh: Cli) -> None:
    ran = fresh("job submit --dry-run -o json -- true")
    assert (ran.code, ran.json["verdict"]) == (0, "starts now"), ran.err
    ran = fresh("vc plan -f tree.yaml -o json")
    assert ran.code == 0
    assert ran.json["changes"][0]["cluster_id"] == "a"
    assert fresh("run", "--dry-run", "--num-cpus", "100000", "--", "true").code == 3
    assert sources(fresh) == []


@pytest.mark.parametrize("words", PLACING.values(), ids=list(PLACING))
def test_a_command_that_places_work_registers_this_machine(fresh: Cli, words: list[str]) -> None:
    ran = fresh(*words)
    assert ran.code == 0, ran.err
    assert sources(fresh) == ["local"]
    fresh("node", "add", "--simulated", "--resources", '{"CPU": 2}')
    fresh("run --no-wait --no-local-node -- true")
    assert sorted(sources(fresh)) == ["local", "simulated"], "once there it stays"


@pytest.mark.parametrize("words", PLACING.values(), ids=list(PLACING))
def test_it_joins_by_itself_only_while_there_is_no_other_node(fresh: Cli, words: list[str]) -> None:
    assert fresh("node", "add", "--simulated", "--resources", '{"CPU": 2}').code == 0
    assert fresh(*words).code == 0
    assert sources(fresh) == ["simulated"]


@pytest.mark.parametrize("how", ["option", "variable", "file"])
def test_it_does_not_join_when_told_not_to(fresh: Cli, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "--no-wait", "--", "true"]
    if how == "option":
        words.insert(1, "--no-local-node")
    elif how == "variable":
        monkeypatch.setenv("VCTL_LOCAL_NODE", "0")
    else:
        Path(".vctl.toml").write_text("local_node = false\n")
    assert fresh(*words).code == 3
    assert sources(fresh) == []


def test_python_reads_without_registering_and_submits_with_it(fresh: Cli) -> None:
    program = """
import json, vctl
c = vctl.connect()
c.status(); vctl.nodes(); vctl.list_jobs(); vctl.cluster_resources()
before = c.physical_nodes.list()
c.submit(["true"])
print(json.dumps([len(before), len(c.physical_nodes.list())]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(ran.stdout) == [0, 1]


def test_the_option_stands_only_where_it_means_something() -> None:
    found = {path for path, command in catalog.load_all().items() if "no_local_node" in command.common}
    assert found == {
        "job submit",
        "job rerun",
        "vc create",
        "vc update",
        "vc plan",
        "vc apply",
        "reserve",
        "daemon",
        "serve",
    }
