"""A null where an amount or a count stands is refused with its path and a fix (spec 4)."""

import json

import pytest

from tests.cli.conftest import Cli, Ran
from tests.specification import spec

pytestmark = spec("4.errors", "2.amounts")

CPU, NODE = '{"CPU": null}', '{"nodes": [{"resources": {"GPU": null}}]}'
SPEC = {
    "flexible_resource_min.CPU": f'{{"flexible_resource_min": {CPU}}}',
    "flexible_resource_min.memory": '{"flexible_resource_min": {"CPU": 1, "memory": null}}',
    "flexible_resource_max.CPU": f'{{"flexible_resource_max": {CPU}}}',
    "fixed_size_nodes[0].nodes[0].resources.GPU": f'{{"fixed_size_nodes": [{NODE}]}}',
    "fixed_size_nodes[0].resources.mine": '{"fixed_size_nodes": [{"resources": {"mine": null}}]}',
    "replica_sets.4c8g": '{"replica_sets": {"4c8g": null}}',
}
YAML = {
    "flexible_resource_min.CPU": "flexible_resource_min:\n  CPU:\n",
    "replica_sets.4c8g": "replica_sets: {4c8g: ~}\n",
}
COMMANDS = {
    "run --num-cpus null -- true": "--num-cpus",
    "task run --job j --no-wait --num-gpus null -- true": "--num-gpus",
    "node add n --simulated --resources {}": "--resources.CPU",
    "node update 4c8g-00 --resources {}": "--resources.CPU",
    "vc create a --spec {} --borrow-limit {}": "--borrow-limit.CPU",
    "vc create a --spec {} --lending-limit {}": "--lending-limit.CPU",
    "vc update team --lending-limit {}": "--lending-limit.CPU",
    "vc update team --borrow-limit {}": "--borrow-limit.CPU",
    "run --entrypoint-resources {} -- true": "--entrypoint-resources.CPU",
    "task run --job j --no-wait --resources {} -- true": "--resources.CPU",
}
"""Commands; ``{}`` stands for the null (where there are two, for the second one)."""


def refuses(ran: Ran, path: str) -> None:
    error = ran.json["error"]
    assert ran.code == 2, error
    assert error["details"]["path"].removeprefix("--virtual-cluster.").removeprefix("--spec.") == path
    assert "null" in error["message"]
    assert error["hint"]


@pytest.mark.parametrize("path", SPEC)
def test_in_a_spec(nodes: Cli, path: str, tmp_path) -> None:
    text = SPEC[path]
    for words in (["--dry-run"], ["-d"]):
        refuses(nodes("run", *words, "-o", "json", "--virtual-cluster", text, "--", "true"), path)
    refuses(nodes("vc", "create", "a", "-o", "json", "--spec", text), path)
    if path in YAML:
        (tmp_path / "spec.yaml").write_text(YAML[path])
        refuses(nodes("vc", "create", "a", "-o", "json", "--spec", f"@{tmp_path / 'spec.yaml'}"), path)
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps({"clusters": [{"id": "a", "spec": json.loads(text)}]}))
    for verb in ("plan", "apply"):
        refuses(nodes("vc", verb, "-f", str(tree), "-o", "json"), f"clusters[0].spec.{path}")
    assert nodes("ps -a -o name").out == ""
    assert nodes("vc list -o name").out.split() == ["kPrimaryClusterID"]


@pytest.mark.parametrize("line", COMMANDS)
def test_in_an_option(nodes: Cli, line: str) -> None:
    assert nodes("vc create team --spec {}").code == 0
    assert nodes("run", "-d", "--hold", "--submission-id", "j", "--", "true").code == 0
    words = line.split()
    if "{}" in words:
        at = len(words) - 1 - words[::-1].index("{}")
        words[at] = CPU
    front = words.index("--") if "--" in words else len(words)
    before = nodes("list events -o json").json["total"]
    ran = nodes(*words[:front], "-o", "json", *words[front:])
    error = ran.json["error"]
    assert (ran.code, error["message"].partition(": ")[0]) == (2, COMMANDS[line])
    assert error["hint"]
    assert nodes("list events -o json").json["total"] == before


@pytest.mark.parametrize("field", ["replica_sets", "borrow_limit", "lending_limit"])
def test_in_a_tree_file(nodes: Cli, field: str, tmp_path) -> None:
    name = "4c8g" if field == "replica_sets" else "CPU"
    (tmp_path / "tree.yaml").write_text(f"clusters:\n- id: a\n  {field}:\n    {name}:\n")
    refuses(
        nodes("vc", "apply", "-f", str(tmp_path / "tree.yaml"), "-o", "json"), f"clusters[0].{field}.{name}"
    )


def test_replica_sets_of_an_option(nodes: Cli) -> None:
    refuses(
        nodes("vc", "create", "a", "-o", "json", "--replica-sets", '{"4c8g": null}'), "--replica-sets.4c8g"
    )


@spec("9.provider")
@pytest.mark.on_the_machine
@pytest.mark.parametrize(
    ("template", "path"), [
        ('{"resources": {"CPU": null}}', "provider.templates.t.resources.CPU"),
        ('{"resources": {"CPU": 2}, "max": null}', "provider.templates.t.max"),
        ('{"resources": null}', "provider.templates.t.resources"),
    ],
)  # fmt: skip
def test_in_a_template_of_a_provider(cli: Cli, monkeypatch, template: str, path: str) -> None:
    monkeypatch.setenv("VCTL_PROVIDER", f'{{"kind": "simulated", "templates": {{"t": {template}}}}}')
    refuses(cli("run", "-d", "-o", "json", "--", "true"), path)
