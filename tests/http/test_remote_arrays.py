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


def test_an_edit_by_its_fields(server: Running):
    """The fields of a submit: null stands for what a submit without the field gives."""
    server.vctl("node", "add", "--simulated", "--resources", RESOURCES)
    for more in (["a"], ["s", "--array", "0-9%2"]):
        assert server.vctl("run", "-d", "--hold", "--submission-id", *more, "--", "true").returncode == 0

    def patch(name: str, body: object) -> tuple[int, dict[str, object]]:
        answer = server.http.patch(f"/api/v1/jobs/{name}", json=body)
        return answer.status_code, answer.json()

    status, form = patch("a", {"num_cpus": 3, "time_limit_s": 60, "after": ["ok:s"], "metadata": {"k": "v"}})
    assert (status, form["resources"], form["time_limit_s"], form["metadata"]) == (
        200,
        {"CPU": 3},
        60,
        {"k": "v"},
    )
    status, form = patch("a", {"num_cpus": None, "time_limit_s": None, "after": []})
    assert (status, form["resources"], form["time_limit_s"]) == (200, {"CPU": 1}, None)
    status, form = patch("s", {"max_running": 5})
    assert (status, form["array"]["at_once"]) == (200, 5)
    for name, body, code in (
        ("a", {}, 400), ("a", {"num_cpu": 1}, 400), ("a", {"array": "0-3"}, 400), ("a", {"entrypoint": ["x"]}, 400),
        ("a", {"num_cpus": 400}, 409), ("a", {"max_running": 2}, 400), ("s", {"max_running": 0}, 400),
        ("none", {"priority": 1}, 404), ("a", {"env": {"A": 1}}, 400), ("s", {"after": ["ok:s_3"]}, 400),
    ):  # fmt: skip
        assert patch(name, body)[0] == code, (name, body, patch(name, body))
