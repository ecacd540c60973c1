"""Workloads from files: what SWF and JSON lines mean, and that a bad line names itself, its field and the fix."""

from __future__ import annotations

import json

import pytest

from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.queue_policy import SECOND
from vctl.core.resources import CPU, GPU, SCALE
from vctl.errors import BadSpec
from vctl.spec.trace_jsonl import read_jsonl
from vctl.spec.trace_swf import read_swf

pytestmark = spec("13.simulate")

HEADER = ["; Version: 2.2", "; MaxNodes: 8", ";MaxProcs:   32 ", "; Note: anything: at all"]


def swf(number=1, at=0, run=60, got=4, asked=4, limit=-1, status=1, user=-1) -> str:
    return f"{number} {at} -1 {run} {got} -1 -1 {asked} {limit} -1 {status} {user} -1 -1 -1 -1 -1 -1"


def test_a_log_with_its_header() -> None:
    found = read_swf([*HEADER, swf(1, 5, 60, 4, 6, 100, user=3), "", swf(2, 0, 30)], "log")
    assert (found.nodes, dict(found.node)) == (8, {CPU: 4 * SCALE})
    first, second = found.arrivals
    assert [one.job.submission_id for one in found.arrivals] == ["job-2", "job-1"]  # by arrival
    assert (first.runs_ns, first.job.time_limit_ns, first.job.user) == (30 * SECOND, None, "")
    assert (second.job.submitted_at_ns, second.job.time_limit_ns) == (5 * SECOND, 100 * SECOND)
    assert second.job.user == "user-3"
    sizes = [node.resources for node in second.job.spec.groups[0].nodes]
    assert sizes == [
        {CPU: 4 * SCALE},
        {CPU: 2 * SCALE},
    ]  # what was requested, on whole nodes and a part of one


@pytest.mark.parametrize(
    ("header", "nodes", "per_node"),
    [
        ([], None, 1),
        (["; MaxProcs: 16"], 16, 1),
        (["; MaxNodes: 16"], 16, 1),
        (["; MaxNodes: 10", "; MaxProcs: 45"], 10, 4),
        (["; MaxNodes: unknown"], None, 1),
    ],
)
def test_the_machine_of_a_log(header: list[str], nodes: int | None, per_node: int) -> None:
    found = read_swf([*header, swf()], "log")
    assert (found.nodes, found.node[CPU]) == (nodes, per_node * SCALE)


def test_what_never_ran_is_left_out_and_told() -> None:
    lines = [swf(1, run=0), swf(2, run=-1, status=5), swf(3, status=2), swf(4, got=-1, asked=-1), swf(5)]
    found = read_swf(lines, "log")
    assert [one.job.submission_id for one in found.arrivals] == ["job-5"]
    assert found.notes == (
        "2 jobs of log never ran",
        "1 jobs of log are parts of another line",
        "1 jobs of log have no size",
    )


BAD_SWF = {
    "too few fields": ("1 2 3", "log:2: 3 fields", "run time"),
    "too many fields": (swf() + " 7", "log:2: 19 fields", "comments"),
    "a word": (swf().replace(" 60 ", " soon "), 'log:2: run time: "soon" is not a number', "-1"),
    "not a number": (swf().replace(" 60 ", " nan "), "log:2: run time", "smaller"),
    "before the log": (swf(at=-3), "log:2: submit time", "0 or more"),
}


@pytest.mark.parametrize(("line", "problem", "fix"), BAD_SWF.values(), ids=BAD_SWF)
def test_bad_lines_of_a_log(line: str, problem: str, fix: str) -> None:
    with pytest.raises(BadSpec) as reported:
        read_swf([swf(), line], "log")
    assert problem in reported.value.problem
    assert fix in reported.value.fix


def test_json_lines() -> None:
    lines = [
        json.dumps({"at": 10, "run": "1h", "nodes": 2, "resources": {"GPU": 1}, "limit": 7200, "priority": 5,
                    "user": "ann", "cluster": "team-a", "name": "big", "policy": "STRICT_SPREAD"}),
        "",
        '{"at": "1970-01-01T00:00:02.5Z", "run": 0.5}',
    ]  # fmt: skip
    small, big = read_jsonl(lines, "trace").arrivals
    assert (small.job.submitted_at_ns, small.runs_ns) == (2_500_000_000, 500_000_000)
    assert (small.job.submission_id, small.job.parent_id, small.job.time_limit_ns) == ("job-3", PRIMARY, None)
    assert small.job.spec.groups[0].nodes[0].resources == {CPU: SCALE}
    assert (big.job.job_id, big.job.submission_id, big.job.parent_id) == (2, "big", "team-a")
    assert (big.job.user, big.job.priority, big.job.time_limit_ns) == ("ann", 5, 7200 * SECOND)
    assert big.job.spec.groups[0].policy == "STRICT_SPREAD"
    assert [node.resources for node in big.job.spec.groups[0].nodes] == [{GPU: SCALE}] * 2


BAD_JSON = {
    "not JSON": ("{", "t:1: this is not JSON", "one job a line"),
    "a list": ("[1]", "t:1: a job must be an object", "at"),
    "a key twice": ('{"at": 0, "run": 1, "run": 2}', 't:1: the key "run" appears twice', "keep one"),
    "unknown": ('{"at": 0, "run": 1, "node": 2}', "t:1: node: there is no such field", "did you mean nodes"),
    "no run": ('{"at": 0}', "t:1: run: it is missing", "run"),
    "no time": ('{"at": "soon", "run": 1}', 't:1: at: "soon" is not a time', "seconds"),
    "negative": ('{"at": -1, "run": 1}', "t:1: at: -1 is not a time", "0 on"),
    "run 0": ('{"at": 0, "run": 0}', "t:1: run", ""),
    "0 nodes": ('{"at": 0, "run": 1, "nodes": 0}', "t:1: nodes: 0 nodes", "1 or more"),
    "a share of GPUs": ('{"at": 0, "run": 1, "resources": {"GPU": 1.5}}', "t:1: resources.GPU", ""),
    "a policy": ('{"at": 0, "run": 1, "policy": "PAKC"}', "t:1: policy", "PACK"),
    "a priority": ('{"at": 0, "run": 1, "priority": "high"}', "t:1: priority", "10"),
    "a limit": ('{"at": 0, "run": 1, "limit": "never"}', "t:1: limit", ""),
    "a cluster": ('{"at": 0, "run": 1, "cluster": "a b"}', "t:1: cluster", ""),
}


@pytest.mark.parametrize(("line", "problem", "fix"), BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_lines(line: str, problem: str, fix: str) -> None:
    with pytest.raises(BadSpec) as reported:
        read_jsonl([line], "t")
    assert reported.value.problem.startswith(problem)
    assert fix in reported.value.fix
