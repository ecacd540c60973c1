"""What a submit carries, its shortcuts, and the entrypoint's own request."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import SCALE
from vctl.errors import BadSpec
from vctl.spec.job_request import JobRequest, entry_amounts, entry_request, shortcut_spec
from vctl.spec.options import WarningSignal

pytestmark = spec("8.submit", "8.entrypoint")

CPU1 = {"CPU": SCALE}


def gang(count, policy, resources):
    return ClusterSpec(groups=(Group((FixedNode(resources),) * count, policy),), flexible=False)


SHORTCUTS = {
    "none": ({}, None),
    "one node": (
        {"num_cpus": "2", "memory": "1GiB"},
        gang(1, "PACK", {"CPU": 20_000, "memory": 2**30 * SCALE}),
    ),
    "a share of a device": ({"num_gpus": "0.5"}, gang(1, "PACK", {"GPU": 5_000})),
    "several nodes": ({"num_gpus": 8, "nodes": 4}, gang(4, "STRICT_SPREAD", {"GPU": 80_000})),
    "nodes alone": ({"nodes": 2}, gang(2, "STRICT_SPREAD", CPU1)),
}


@pytest.mark.parametrize(("options", "want"), SHORTCUTS.values(), ids=SHORTCUTS)
def test_shortcuts(options, want):
    assert shortcut_spec(**options) == want


BAD_SHORTCUTS = {
    "beside a spec": ({"num_cpus": "1", "beside_spec": True}, "num_cpus", "into the spec"),
    "memory beside a spec": ({"memory": "1", "beside_spec": True}, "memory", "into the spec"),
    "no node": ({"nodes": 0, "num_cpus": "1"}, "nodes", "from 1"),
    "negative nodes": ({"nodes": -1}, "nodes", "from 1"),
    "too many nodes": ({"nodes": 10_001}, "nodes", "10000"),
    "zero": ({"num_cpus": "0"}, "num_cpus", "entrypoint_num_cpus 0"),
    "negative": ({"num_cpus": "-1"}, "num_cpus", "0 or more"),
    "word": ({"num_gpus": "all"}, "num_gpus", "number"),
    "one and a half": ({"num_gpus": "1.5"}, "num_gpus", "1 or 2"),
    "size": ({"memory": "8Q"}, "memory", "8GiB"),
}


@pytest.mark.parametrize(("options", "path", "fix"), BAD_SHORTCUTS.values(), ids=BAD_SHORTCUTS)
def test_bad_shortcuts(options, path, fix):
    with pytest.raises(BadSpec) as caught:
        shortcut_spec(**options)
    assert caught.value.details == {"path": path}
    assert fix in caught.value.fix


def test_no_shortcut_beside_a_spec_is_fine():
    assert shortcut_spec(beside_spec=True) is None


def test_entry_requests():
    assert entry_request() is None
    assert entry_request(num_cpus="0") == {}
    assert entry_request("0.5", "1", "1KiB", '{"FPGA": 2}') == {
        "CPU": 5_000,
        "GPU": SCALE,
        "memory": 1024 * SCALE,
        "FPGA": 2 * SCALE,
    }
    assert entry_request(resources_json={"FPGA": 2}, prefix="entrypoint_") == {"FPGA": 2 * SCALE}


BAD_ENTRIES = {
    "twice": ({"num_cpus": "1", "resources_json": '{"CPU": 1}'}, "entrypoint_resources.CPU"),
    "one and a half": ({"num_gpus": "1.5"}, "entrypoint_num_gpus"),
    "in the map": ({"resources_json": '{"GPU": 1.5}'}, "entrypoint_resources.GPU"),
    "not JSON": ({"resources_json": "FPGA=1"}, "entrypoint_resources"),
    "on HTTP": ({"num_gpus": True, "prefix": "entrypoint_"}, "entrypoint_num_gpus"),
}


@pytest.mark.parametrize(("options", "path"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_bad_entry_requests(options, path):
    with pytest.raises(BadSpec) as caught:
        entry_request(**options)
    assert caught.value.details == {"path": path}


ENTRIES = {
    "no spec: one CPU": ({}, CPU1),
    "an empty spec: one CPU": ({"spec": ClusterSpec()}, CPU1),
    "only a maximum: one CPU": ({"spec": ClusterSpec(flexible_max=CPU1)}, CPU1),
    "a gang: nothing": ({"spec": gang(1, "PACK", {"GPU": SCALE})}, {}),
    "a minimum: nothing": ({"spec": ClusterSpec(CPU1)}, {}),
    "as asked": ({"spec": ClusterSpec(CPU1), "entry": {"GPU": 1}}, {"GPU": 1}),
    "zero as asked": ({"entry": {}}, {}),
}


@pytest.mark.parametrize(("fields", "want"), ENTRIES.values(), ids=ENTRIES)
def test_what_the_entrypoint_takes(fields, want):
    assert entry_amounts(JobRequest(argv=("true",), **fields)) == want


def test_a_full_request():
    request = JobRequest(
        argv=("python", "train.py"),
        cluster="team",
        priority=-(2**31),
        time_limit_s=3600,
        signal=WarningSignal("USR1", 10, 60),
        env={"A": "1", "BASH_FUNC_f%%": "() { :; }", "odd name": ""},
        cwd="/tmp",
        submission_id="s1",
        max_retries=3,
        retry_on=("NodeFailed", "ExitCode"),
    )
    assert request.grace_s is None


BAD = {
    "no command": ({"argv": ()}, "entrypoint"),
    "empty command": ({"argv": ("",)}, "entrypoint"),
    "NUL": ({"argv": ("a\0",)}, "entrypoint"),
    "relative directory": ({"cwd": "a"}, "cwd"),
    "priority too low": ({"priority": -(2**31) - 1}, "priority"),
    "priority too high": ({"priority": 2**31 + 1}, "priority"),
    "no time": ({"time_limit_s": 0}, "time_limit"),
    "negative time": ({"time_limit_s": -1}, "time_limit"),
    "nan": ({"time_limit_s": float("nan")}, "time_limit"),
    "negative grace": ({"grace_s": -1}, "grace"),
    "negative retries": ({"max_retries": -1}, "max_retries"),
    "unknown cause": ({"retry_on": ("Rain",)}, "retry_on"),
    "name": ({"name": "a\nb"}, "name"),
    "submission id": ({"submission_id": "a b"}, "submission_id"),
    "cluster": ({"cluster": "a b"}, "cluster"),
    "environment": ({"env": {"A=B": "1"}}, "env"),
    "environment value": ({"env": {"A": "\0"}}, "env.A"),
}


@pytest.mark.parametrize(("fields", "path"), BAD.values(), ids=BAD)
def test_bad_requests(fields, path):
    with pytest.raises(BadSpec) as caught:
        JobRequest(**{"argv": ("true",), **fields})
    assert caught.value.details == {"path": path}
    assert caught.value.fix
