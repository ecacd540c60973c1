"""What people mistype, through the real command: exit code, the field named, a fix given, and no table changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import specification
from tests.integration.conftest import Place

pytestmark = specification.spec("4.errors", "13.errors")

GANG = '{{"fixed_size_nodes": [{{"nodes": [{{"resources": {}}}]}}]}}'
ENTRY = "fixed_size_nodes[0].nodes[0]"
HUGE = "9" * 5000


def spec(document: str) -> list[str]:
    return ["job", "submit", "--no-wait", "--virtual-cluster", document, "--", "true"]


def gang(resources: str) -> list[str]:
    return spec(GANG.format(resources))


def submit(*options: str) -> list[str]:
    return ["job", "submit", "--no-wait", *options, "--", "true"]


CASES: dict[str, tuple[list[str], int, str]] = {
    # documents
    "broken JSON": (spec('{"fixed_size_nodes": ['), 2, "--virtual-cluster"),
    "JSON that lost its quotes": (spec("{fixed_size_nodes:"), 2, "--virtual-cluster"),
    "single quotes inside": (spec("{'fixed_size_nodes': []}"), 2, "--virtual-cluster"),
    "two documents": (spec("{} {}"), 2, "--virtual-cluster"),
    "an empty document": (spec(""), 2, "--virtual-cluster"),
    "nothing on standard input": (spec("-"), 2, "--virtual-cluster (standard input)"),
    "a missing file": (spec("@no-such.json"), 2, "no-such.json"),
    "a directory": (spec("@/tmp"), 2, "/tmp"),
    "a file name is missing": (spec("@"), 2, "--virtual-cluster"),
    "not UTF-8": (spec("@latin1.json"), 2, "latin1.json"),
    "a list": (spec("[]"), 2, "a cluster spec"),
    "a word": (spec('"CPU"'), 2, "a cluster spec"),
    "a number": (spec("5"), 2, "a cluster spec"),
    "too deep": (spec("[" * 50_000 + "]" * 50_000), 2, "--virtual-cluster"),
    "a number with too many digits": (gang(f'{{"CPU": {HUGE}}}'), 2, ""),
    "a key twice": (spec('{"flexible_resource_min": {"CPU": 1, "CPU": 2}}'), 2, "CPU"),
    # fields
    "an unknown field": (spec('{"fixed_size_node": []}'), 2, "fixed_size_node"),
    "an unknown field below": (gang('{"CPU": 1}, "label": {}'), 2, f"{ENTRY}.label"),
    "groups as a map": (spec('{"fixed_size_nodes": {}}'), 2, "fixed_size_nodes"),
    "a group that is a number": (spec('{"fixed_size_nodes": [1]}'), 2, "fixed_size_nodes[0]"),
    "a group without nodes": (spec('{"fixed_size_nodes": [{"nodes": []}]}'), 2, "fixed_size_nodes[0].nodes"),
    "a node without resources": (spec('{"fixed_size_nodes": [{"nodes": [{}]}]}'), 2, ENTRY),
    "a node with no resource": (gang("{}"), 2, f"{ENTRY}.resources"),
    "a node of zeros": (gang('{"CPU": 0}'), 2, f"{ENTRY}.resources"),
    "resources as a list": (gang('["CPU"]'), 2, f"{ENTRY}.resources"),
    "an unknown policy": (
        spec('{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "scheduling_policy": "STRICT"}]}'), 2,
        "fixed_size_nodes[0].scheduling_policy"),
    "a policy that is a number": (
        spec('{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "scheduling_policy": 1}]}'), 2,
        "fixed_size_nodes[0].scheduling_policy"),
    "a selector with an open bracket": (
        gang('{"CPU": 1}, "label_selector": {"zone": "in("}'), 2, f"{ENTRY}.label_selector.zone"),
    "a label that is none": (gang('{"CPU": 1}, "labels": {"-bad": "x"}'), 2, f"{ENTRY}.labels.-bad"),
    "a label value that is too long": (
        gang('{"CPU": 1}, "labels": {"a": "' + "x" * 64 + '"}'), 2, f"{ENTRY}.labels.a"),
    "a minimum above the maximum": (
        spec('{"flexible_resource_min": {"CPU": 3}, "flexible_resource_max": {"CPU": 2}}'), 2,
        "flexible_resource_max.CPU"),
    "a minimum that is a list": (spec('{"flexible_resource_min": []}'), 2, "flexible_resource_min"),
    "a negative count": (spec('{"replica_sets": {"4c8g": -1}}'), 2, "replica_sets.4c8g"),
    "half a node": (spec('{"replica_sets": {"4c8g": 1.5}}'), 2, "replica_sets.4c8g"),
    "a count in words": (spec('{"replica_sets": {"4c8g": "two"}}'), 2, "replica_sets.4c8g"),
    "an empty template": (spec('{"replica_sets": {"": 1}}'), 2, "replica_sets"),
    # amounts
    "not a number": (gang('{"CPU": NaN}'), 2, "NaN"),
    "infinite": (gang('{"CPU": Infinity}'), 2, "Infinity"),
    "negative": (gang('{"CPU": -1}'), 2, f"{ENTRY}.resources.CPU"),
    "huge": (gang('{"CPU": 1e300}'), 2, f"{ENTRY}.resources.CPU"),
    "above 2^53": (gang('{"memory": 9007199254740993}'), 2, f"{ENTRY}.resources.memory"),
    "five decimals": (gang('{"CPU": 0.00001}'), 2, f"{ENTRY}.resources.CPU"),
    "one and a half GPUs": (gang('{"GPU": 1.5}'), 2, f"{ENTRY}.resources.GPU"),
    "true": (gang('{"CPU": true}'), 2, f"{ENTRY}.resources.CPU"),
    "null": (gang('{"CPU": null}'), 2, f"{ENTRY}.resources.CPU"),
    "a word as amount": (gang('{"CPU": "many"}'), 2, f"{ENTRY}.resources.CPU"),
    "an unknown unit": (gang('{"memory": "8GX"}'), 2, f"{ENTRY}.resources.memory"),
    "a resource without a name": (gang('{"": 1}'), 2, f"{ENTRY}.resources"),
    # options of submit
    "CPUs that are no number": (submit("--num-cpus", "1.5.2"), 2, "--num-cpus"),
    "CPUs that are nan": (submit("--num-cpus", "nan"), 2, "--num-cpus"),
    "negative CPUs": (submit("--num-cpus", "-1"), 2, "--num-cpus"),
    "empty CPUs": (submit("--num-cpus", ""), 2, "--num-cpus"),
    "no CPUs at all": (submit("--num-cpus", "0"), 2, "--num-cpus"),
    "half a device too much": (submit("--num-gpus", "1.5"), 2, "--num-gpus"),
    "memory of an unknown unit": (submit("--memory", "8XB"), 2, "--memory"),
    "no nodes": (submit("--nodes", "0"), 2, "--nodes"),
    "nodes in words": (submit("--nodes", "two"), 2, "--nodes"),
    "a spec and a shortcut": (submit("--virtual-cluster", "{}", "--num-cpus", "1"), 2, "--num-cpus"),
    "a time limit in words": (submit("--time-limit", "soon"), 2, "--time-limit"),
    "no time at all": (submit("--time-limit", "0"), 2, "--time-limit"),
    "negative time": (submit("--time-limit", "-5"), 2, "--time-limit"),
    "a half-finished duration": (submit("--time-limit", "1h30"), 2, "--time-limit"),
    "a grace in words": (submit("--grace", "x"), 2, "--grace"),
    "a priority in words": (submit("--priority", "high"), 2, "--priority"),
    "a priority out of range": (submit("--priority", "99999999999"), 2, "priority"),
    "an id with a slash": (submit("--submission-id", "a/b"), 2, "--submission-id"),
    "an empty id": (submit("--submission-id", ""), 2, "--submission-id"),
    "a reserved id": (submit("--submission-id", "last"), 2, "last"),
    "an id with ##": (submit("--submission-id", "a##b"), 2, "--submission-id"),
    "an id that is taken": (submit("--submission-id", "taken"), 5, "taken"),
    "a variable without a value": (submit("--env", "NO_SUCH"), 2, "--env"),
    "a variable without a name": (submit("--env", "=x"), 2, "--env"),
    "a missing file of variables": (submit("--env-file", "no-such"), 2, "no-such"),
    "metadata without a value": (submit("--metadata", "x"), 2, "--metadata"),
    "metadata as a list": (submit("--metadata-json", "[1]"), 2, "--metadata-json"),
    "a runtime environment as a list": (submit("--runtime-env-json", "[]"), 2, "--runtime-env-json"),
    "a name of two lines": (submit("--name", "a\nb"), 2, "name"),
    "an entrypoint in words": (submit("--entrypoint-num-cpus", "x"), 2, "--entrypoint-num-cpus"),
    "a resource given twice": (
        submit("--entrypoint-resources", '{"CPU": 1}', "--entrypoint-num-cpus", "2"), 2, "--entrypoint-resources.CPU"),
    "an unknown option": (submit("--nowait"), 2, "--nowait"),
    "no command": (["job", "submit", "--no-wait"], 2, "CMD"),
    "an empty command": (["job", "submit", "--no-wait", "--", ""], 2, "CMD: "),
    # what could never run, or where
    "more CPUs than any node has": (submit("--num-cpus", "5"), 3, "CPU"),
    "more nodes than there are": (submit("--num-cpus", "1", "--nodes", "4"), 3, "4"),
    "a resource that nobody has": (gang('{"TPU": 1}'), 3, "TPU"),
    "a label that nobody has": (gang('{"CPU": 1}, "label_selector": {"zone": "mars"}'), 3, "mars"),
    "a template that nobody has": (spec('{"replica_sets": {"64c": 1}}'), 3, "64c"),
    "an entrypoint above the maximum": (spec('{"flexible_resource_max": {"CPU": 0}}'), 3, "CPU"),
    "an unknown cluster": (submit("-c", "no-such"), 4, "no-such"),
    "a cluster that is no id": (submit("-c", "bad id"), 2, "bad id"),
    "the cluster of a job": (submit("-c", "kPrimaryClusterID##no"), 4, "kPrimaryClusterID##no"),
    "a spec in a shared cluster": (submit("-c", "shared", "--virtual-cluster", "{}"), 2, "--virtual-cluster"),
    # jobs
    "an unknown job": (["job", "status", "no-such"], 4, "no-such"),
    "an empty job": (["job", "status", ""], 4, "''"),
    "an unknown number": (["job", "stop", "99"], 4, "99"),
    "a number that is too large": (["job", "logs", str(2**64)], 4, str(2**64)),
    "two jobs, one unknown": (["job", "stop", "taken", "no-such"], 4, "no-such"),
    "delete a job that waits": (["job", "delete", "taken"], 5, "taken"),
    "a prefix of two": (["job", "status", "ta"], 2, "taken, target"),
    "a timeout in words": (["job", "wait", "taken", "--timeout", "x"], 2, "--timeout"),
    # clusters
    "a cluster with a bad id": (["vc", "create", "bad id"], 2, "bad id"),
    "a cluster without an id": (["vc", "create", ""], 2, "the virtual cluster id is empty"),
    "the primary": (["vc", "create", "kPrimaryClusterID"], 2, "kPrimaryClusterID can not be created or updated."),
    "a cluster that exists": (["vc", "create", "shared"], 5, "shared"),
    "negative replicas": (["vc", "create", "x", "--replica-sets", '{"4c8g": -1}'], 2, "replicas(-1) must >= 0"),
    "a shortage": (["vc", "create", "x", "--replica-sets", '{"4c8g": 9}'], 5, "No enough nodes to add"),
    "a spec above all": (["vc", "create", "x", "--spec", '{"flexible_resource_min": {"CPU": 99}}'], 3, "CPU"),
    "a spec that is a list": (["vc", "create", "x", "--spec", "[]"], 2, "a cluster spec"),
    "limits that are a number": (["vc", "create", "x", "--lending-limit", "5"], 2, "--lending-limit"),
    "replicas as a list": (["vc", "create", "x", "--replica-sets", "[]"], 2, "replica"),
    "a parent that is shared": (["vc", "create", "x", "--parent", "shared"], 2, "--parent"),
    "an unknown parent": (["vc", "create", "x", "--parent", "no-such"], 4, "no-such"),
    "an old revision": (
        ["vc", "update", "shared", "--replica-sets", "{}", "--revision", "1"], 5, "The revision (1) is expired"),
    "an unknown cluster to update": (["vc", "update", "no-such", "--replica-sets", "{}"], 4, "no-such"),
    "delete the primary": (["vc", "delete", "kPrimaryClusterID"], 2, "can not be removed."),
    "delete an unknown cluster": (["vc", "delete", "no-such"], 4, "no-such"),
    # nodes
    "a node of nothing": (["node", "add", "--simulated", "--resources", "{}"], 2, "--resources"),
    "a node of null": (["node", "add", "--simulated", "--resources", "null"], 2, "--resources"),
    "a template that gives no id": (
        ["node", "add", "--simulated", "--template", "a b", "--resources", '{"CPU": 1}'], 2, "--template"),
    "a real node by hand": (["node", "add", "--resources", '{"CPU": 1}'], 2, "--simulated"),
    "a node with half a device": (["node", "add", "--simulated", "--resources", '{"GPU": 1.5}'], 2, "--resources.GPU"),
    "no nodes to add": (["node", "add", "--simulated", "--count", "0", "--resources", '{"CPU": 1}'], 2, "--count"),
    "a node with a bad id": (["node", "add", "bad id", "--simulated", "--resources", '{"CPU": 1}'], 2, "bad id"),
    "a node that exists": (["node", "add", "box", "--simulated", "--resources", '{"CPU": 1}'], 5, "box"),
    "an unknown node": (["node", "drain", "no-such"], 4, "no-such"),
    "a node that is in use": (["node", "remove", "4c8g-00"], 5, "4c8g-00"),
    # text that is none, numbers that cannot be stored (spec 13)
    "metadata that is no text": (submit("--metadata", "a=\udcff"), 2, "--metadata"),
    "half a character in JSON": (submit("--metadata-json", '{"a": "\\ud800"}'), 2, "--metadata-json.a"),
    "an id that is no text": (submit("--submission-id", "a\udcff"), 2, "--submission-id"),
    "a name that is no text": (submit("--name", "a\udcff"), 2, "--name"),
    "a label that is no text": (
        ["node", "add", "--simulated", "--resources", '{"CPU": 1}', "--label", "a=\udcff"], 2, "--label"),
    "a template that is no text": (
        ["node", "add", "--simulated", "--resources", '{"CPU": 1}', "--template", "\udcff"], 2, "--template"),
    "a template with an escape": (
        ["node", "add", "x", "--simulated", "--resources", '{"CPU": 1}', "--template", "\x1b[31m"], 2, "--template"),
    "a cluster that is no text": (["vc", "create", "a\udcff"], 2, "ID"),
    "a reason that is no text": (["node", "drain", "box", "--reason", "\udcff"], 2, "--reason"),
    "a reference that is no text": (["job", "status", "\udcff"], 2, "JOB"),
    "a filter that is no text": (["list", "jobs", "--filter", "name=\udcff"], 2, "--filter"),
    "a limit without end": (["list", "jobs", "--limit", "9" * 20], 2, "--limit"),
    "a limit far below 0": (["list", "jobs", "--limit", "-" + "9" * 20], 2, "--limit"),
    "a start without end": (["events", "--since", "9" * 20], 2, "--since"),
    "a start too far away": (["ps", "--since", "9999-12-31"], 2, "--since"),
    "a priority without end": (submit("--priority", "9" * 20), 2, "priority"),
    "a count without end": (
        ["node", "add", "--simulated", "--resources", '{"CPU": 1}', "--count", "9" * 20], 2, "--count"),
    "a tail without end": (["job", "logs", "target", "--tail", "9" * 20], 2, "--tail"),
    # the rest
    "an unknown command": (["submit", "--", "true"], 2, "vctl run"),
    "an unknown command of a group": (["job", "sumbit"], 2, "vctl job submit"),
    "an unknown filter": (["list", "jobs", "--filter", "stat=x"], 2, "--filter"),
    "an unknown form": (["status", "--output", "xml"], 2, "--output"),
    "JSON that the shell split": (["vc", "create", "x", "--replica-sets", "{8c16g:", "2}"], 2, "single quotes"),
    "prune without an age": (["prune"], 2, "--older-than"),
    "restore what is not there": (["restore", "no-such"], 4, "no-such"),
    "restore what is no backup": (["restore", "/etc/passwd"], 1, "/etc/passwd"),
    "backup over a file": (["backup", "latin1.json"], 5, "latin1.json"),
    "backup nowhere": (["backup", "/no/such/dir/file"], 1, "/no/such/dir/file"),
}  # fmt: skip


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Nodes, a shared cluster, and jobs that wait: enough that anything could be changed by mistake."""
    folder = tmp_path_factory.mktemp("bad-input")
    here = Place(folder / "state", folder / "work")
    here.ok(
        "node",
        "add",
        "--count",
        "2",
        "--simulated",
        "--template",
        "4c8g",
        "--resources",
        '{"CPU": 4, "memory": "8GiB"}',
    )
    here.ok("node", "add", "box", "--simulated", "--resources", '{"CPU": 2, "GPU": 2}')
    here.ok("vc", "create", "shared", "--replica-sets", '{"4c8g": 1}')
    for name in ("taken", "target"):
        here.submit("--submission-id", name, "--", "true")
    (here.folder / "latin1.json").write_bytes('{"ä": 1}'.encode("latin-1"))
    yield here
    here.end()


def content(place: Place) -> dict[str, list[tuple[Any, ...]]]:
    found = place.tables()
    assert found["jobs"]
    assert found["nodes"]
    return found


@pytest.mark.parametrize(("words", "code", "named"), CASES.values(), ids=list(CASES))
def test_bad_input(full: Place, words: list[str], code: int, named: str) -> None:
    before = content(full)
    ran = full.fork(*words)
    assert ran.code == code, ran
    assert ran.out == ""
    problem, fix = ran.err.removesuffix("\n").split("\nFix: ")
    assert problem.startswith("Error: ")
    assert "internal error" not in problem
    assert fix
    assert named in ran.err
    assert len(ran.err) < 1000
    if "--output" not in words:
        again = full.fork(*words, VCTL_OUTPUT="json")
        error = json.loads(again.out)["error"]
        assert (again.code, error["exit_code"]) == (code, code)
        assert error["code"]
        assert error["message"] == problem.removeprefix("Error: ")
        assert error["hint"] == fix
        assert isinstance(error["details"], dict)
    assert content(full) == before


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60


def test_the_fork_is_the_real_command(full: Place) -> None:
    """A sample, once more in a process of its own."""
    for name in ("an unknown field", "more CPUs than any node has", "an unknown job", "an id that is taken"):
        words, code, _ = CASES[name]
        ran = full.run(*words)
        assert (ran.code, ran.err) == (code, full.fork(*words).err)
