"""``vctl task``, ``lease list``, ``demand`` and their lists."""

import subprocess
import sys

import pytest

from tests.cli.conftest import Cli, python
from tests.specification import spec

pytestmark = spec("10.commands")

JOB = (
    f'vctl() {{ {sys.executable} -m vctl "$@"; }}\n'
    """
set -e
good=$(vctl task run --no-wait --name good -- sh -c 'echo from the task')
bad=$(vctl task run --no-wait --num-cpus 0.5 -- sh -c 'exit 4')
vctl task wait $good
vctl task logs $good
code=0; vctl task wait $good $bad || code=$?
code2=0; vctl task run -- sh -c 'echo out; echo err >&2; exit 3' || code2=$?
echo $code $code2
vctl task list -a -o csv | cut -d, -f1,3
vctl get tasks $bad -o json | grep -A1 resources
big=$(vctl task run --no-wait --num-cpus 64 -- true)
sleep 0.2
vctl demand --no-header
vctl task cancel $big
"""
)


OBJECTS = (
    f'vctl() {{ {sys.executable} -m vctl "$@"; }}\n'
    """
set -e
echo words > "$VCTL_OBJECT_DIR/text"
vctl task put text
made=$(vctl task run --no-wait --input text --output count -- sh -c 'cd $VCTL_OBJECT_DIR; wc -c < text > count')
vctl -o name task run --input count -- sh -c 'cat "$VCTL_OBJECT_DIR/count"'
vctl task status $made -o json | tr -d ' \\n' | grep -o '"inputs".*"outputs":[^]]*]'
vctl list objects -o csv | cut -d, -f1-2
vctl get objects count -o json | grep '"size"'
cat "$(vctl get objects count -o json | sed -n 's/.*"path": "\\(.*\\)".*/\\1/p')"
vctl summary objects -o json | grep total
vctl current-cluster -o json | grep -o 'memory": [0-9.]*'
code=0; vctl --output json task run --output count -- true || code=$?
echo code $code
code=0; vctl task run --output x -- true || code=$?
echo code $code
"""
)


def test_objects_of_a_job(nodes: Cli) -> None:
    ran = python(
        "-m", "vctl", "job", "submit", "--submission-id", "j", "--", "bash", "-c", OBJECTS, home=nodes.home
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    lines = ran.stdout.splitlines()
    assert lines[:3] == [
        "object j/text is there (6 bytes)",
        "task-2",
        '"inputs":["text"],"outputs":["count"]',
    ]
    assert lines[3:6] == ["object_id,name", "j/count,count", "j/text,text"]
    assert lines[6:10] == ['  "size": 2,', "6", '  "total": 2', 'memory": 8.0']
    assert "the job has an object count already" in ran.stdout  # as JSON, as was asked for
    assert lines[-3:] == [
        "code 5",
        "Task task-3 FAILED: OutputMissing: exited with code 0 without its output in $VCTL_OBJECT_DIR: there is no x",
        "code 1",
    ]
    assert nodes("list objects").out == "no objects\n"
    assert nodes("get objects j/count").code == 4
    assert nodes("task put text").code == 2


@pytest.fixture
def ran(nodes: Cli) -> subprocess.CompletedProcess[str]:
    return python(
        "-m", "vctl", "job", "submit", "--submission-id", "j", "--", "bash", "-c", JOB, home=nodes.home
    )


def test_tasks_of_a_job(ran: subprocess.CompletedProcess[str], nodes: Cli) -> None:
    assert ran.returncode == 0, ran.stderr + ran.stdout
    lines = ran.stdout.splitlines()
    assert lines[:4] == ["from the task", "out", "err", "4 3"]
    assert lines[4:8] == ["task_id,state", "task-1,FINISHED", "task-2,FAILED", "task-3,FAILED"]
    assert '"CPU": 0.5' in ran.stdout
    assert "CPU 64" in ran.stdout
    assert lines[-1] == "task task-4 is FAILED"

    assert nodes("summary tasks -o json").json["counts"] == {"FINISHED": 1, "FAILED": 3}
    items = nodes("list tasks -o json").json
    assert (items["kind"], items["total"]) == ("TaskList", 4)
    assert nodes("task list --job j --filter state=FINISHED -o name").out == "task-1\n"

    drawn = nodes("timeline -o json").json  # spec 13: timeline is a command; its JSON is a trace
    assert {one["id"] for one in drawn["items"]} == {"j", "task-1", "task-2", "task-3"}
    task = next(event for event in drawn["traceEvents"] if event["tid"] == "task-2")
    assert (task["cat"], task["ph"], task["pid"]) == ("task", "X", items["items"][1]["node_id"])
    assert [row["started_at"] for row in drawn["items"]] == sorted(
        row["started_at"] for row in drawn["items"]
    )
    assert nodes("timeline --limit 1 -o json").json["total"] == 4
    assert nodes("timeline --since 2100-01-01T00:00 -o name").out == ""
    assert nodes("timeline -c nowhere").code == 4
    for line in ("timeline", "task list -a", "list tasks"):
        header, *rows = nodes(f"{line} -o csv").out.splitlines()
        assert rows
        assert nodes(f"{line} --since 2100-01-01T00:00 -o csv").out.splitlines() == [header]

    assert nodes("vc", "create", "team", "--spec", '{"flexible_resource_min": {"CPU": 1}}').code == 0
    own = items["items"][0]["cluster_id"]
    assert nodes(f"task list -a -c {own} -o json").json["items"] == items["items"]
    assert nodes("task list -a -c primary -o json").json["items"] == items["items"]
    assert nodes("task list -a -c team -o json").json == {**items, "items": [], "total": 0}
    assert nodes("task list -c nowhere").code == 4
    assert nodes("task list").out == "no tasks are waiting or running; -a shows finished ones\n"
    assert nodes("task status 2 -o json").json["exit_code"] == 4
    assert (
        python("-m", "vctl", "__complete", "task", "status", "", home=nodes.home).stdout.split()[0]
        == "task-1"
    )


def test_outside_a_job_it_must_be_named(nodes: Cli) -> None:
    ran = nodes("task run -- true")
    assert ran.code == 2
    assert "--job" in ran.err
    assert nodes("task run --job nope -- true").code == 4
    nodes("job", "submit", "--no-wait", "--submission-id", "j", "--", "true")
    assert nodes("task run --job j -- true").code == 5


@pytest.mark.parametrize(
    "line",
    [
        "task run --strategy PACK -- true",
        "task run --strategy NODE:n-1:spil -- true",
        "task run --num-gpus 1.5 -- true",
        "task run --resources {} --max-retries -1 -- true",
        "task run --label-selector [] -- true",
        "task run --job j --input ../x -- true",
        "task run --job j --output x --input x -- true",
        "task run -o nonsense --job j -- true",
        "task run",
        "task list --filter nope=1",
    ],
)
def test_bad_requests(nodes: Cli, line: str) -> None:
    assert nodes(line).code == 2


def test_nothing_borrowed_nothing_wanted(nodes: Cli) -> None:
    assert nodes("lease list").out == "nothing has been borrowed\n"
    assert nodes("lease list -o json").json == {
        "api_version": "vctl/v1",
        "kind": "LeaseList",
        "items": [],
        "total": 0,
    }
    assert nodes("list leases -o json").json["items"] == []
    assert nodes("get leases 7").code == 4
    assert nodes("demand").out == "nothing waits\n"
    for _ in range(2):
        nodes("job", "submit", "--no-wait", "--num-cpus", "3", "--", "true")
    line = nodes("demand -o json").json["items"][0]
    assert (line["count"], line["kind"], line["resources"]) == (2, "job", {"CPU": 3.0})
    assert nodes("demand").out.splitlines()[1].split()[:5] == ["primary", "2", "job", "CPU", "3"]
    assert nodes("demand --filter kind=task -o json").json["total"] == 0
