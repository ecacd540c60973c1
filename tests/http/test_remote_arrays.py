"""Arrays through a server: the same commands, progress and exit codes."""

from __future__ import annotations

from tests.http.conftest import Running
from tests.specification import spec

pytestmark = spec("14.remote", "8.arrays")

RESOURCES = '{"CPU": 4}'


def test_an_array_on_a_server(server: Running):
    server.vctl("node", "add", "--simulated", "--resources", RESOURCES)
    shell = "exit $((VCTL_ARRAY_INDEX == 2 ? 9 : 0))"
    done = server.vctl("job", "submit", "--submission-id", "a", "--array", "0-5%2", "--", "sh", "-c", shell)
    assert (done.returncode, done.stdout) == (9, ""), done.stderr
    assert done.stderr.splitlines()[-4:-2] == ["a: 6 of 6 done, 1 failed", "a: 1 of 6 did not succeed"]
    assert server.vctl("job", "wait", "a").returncode == 9
    assert len(server.vctl("job", "list", "-a").stdout.splitlines()) == 2
    assert len(server.vctl("job", "list", "-a", "--members").stdout.splitlines()) == 7
    assert server.vctl("job", "delete", "a").returncode == 0
    named = server.vctl("job", "submit", "--no-wait", "--array", "0-99", "--", "sleep", "1000")
    assert named.returncode == 0
    stopped = server.vctl("job", "stop", named.stdout.strip(), "--grace", "0")
    assert stopped.stdout == f"job {named.stdout.strip()} is STOPPED\n", stopped.stderr
