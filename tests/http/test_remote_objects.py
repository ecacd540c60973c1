"""Objects through a server: a job whose own commands go through it, and what everybody else sees."""

from __future__ import annotations

import shlex
import sys

from tests.http.conftest import TOKEN, Running
from tests.specification import spec

pytestmark = spec("14.remote", "10.objects")

JOB = f"""
set -e
vctl() {{ {shlex.quote(sys.executable)} -m vctl "$@"; }}
echo words > "$VCTL_OBJECT_DIR/text"
vctl task put text
vctl task run --input text --output count -- sh -c 'cd $VCTL_OBJECT_DIR; wc -c < text > count'
vctl list objects -o csv | cut -d, -f1
vctl get objects count -o json | grep '"size"'
code=0; vctl task run --output x -- true || code=$?
code=0; vctl task run --input x -- true || code=$?
echo code $code
"""


def test_objects_on_a_server(server: Running):
    server.vctl("node", "add", "--simulated", "--resources", '{"CPU": 4}')
    env = [
        "--env",
        f"VCTL_ADDRESS={server.address}",
        "--env",
        f"VCTL_TOKEN={TOKEN}",
    ]
    done = server.vctl("job", "submit", "--submission-id", "j", *env, "--", "bash", "-c", JOB)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:5] == ["object j/text is there (6 bytes)", "object_id", "j/count", "j/text", '  "size": 2,']
    assert lines[-3].startswith("Task task-2 FAILED: OutputMissing: ")
    assert lines[-2:] == [
        "Task task-3 FAILED: InputFailed: input x cannot be produced: task-2 FAILED (OutputMissing)",
        "code 3",
    ]
    assert server.vctl("list", "objects").stdout == "no objects\n"
    assert server.vctl("get", "objects", "j/text").returncode == 4
    assert server.vctl("task", "put", "text").returncode == 2
    bad = server.vctl("task", "run", "--job", "j", "--output", "a/b", "--", "true")
    assert (bad.returncode, "not a name of an object" in bad.stderr) == (2, True)
