"""spec 13, 11: a dry run is the submit up to its commit: whatever one refuses, the other refuses in the same words.

Each refusal is asked for twice over HTTP, which is also what the Python client sends, and some on the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.http.conftest import Running
from tests.specification import spec
from vctl.core.clusters import REMOVING
from vctl.engine.changes import ClusterMoved
from vctl.ops import clusters, jobs, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store.store import Store

pytestmark = spec("13.submit")

SPEC = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]}
LONG = "x" * 127

REFUSALS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "an awaited job that does not exist": (4, "--after ok:nosuch", {"after": ["ok:nosuch"]}),
    "one of several awaited jobs": (4, "--after any:taken --after ok:no", {"after": ["any:taken", "ok:no"]}),
    "a taken submission id": (5, "--submission-id taken", {"submission_id": "taken"}),
    "a taken array id": (5, "--submission-id many", {"submission_id": "many"}),
    "a taken array id for an array": (
        5, "--submission-id many --array 7-9", {"submission_id": "many", "array": "7-9"},
    ),
    "an array of which a member's id is taken": (
        5, "--submission-id half --array 0-3", {"submission_id": "half", "array": "0-3"},
    ),
    "an array whose members would have too long an id": (
        2, f"--submission-id {LONG} --array 0-3", {"submission_id": LONG, "array": "0-3"},
    ),
    "a cluster that does not exist": (4, "-c nosuch", {"cluster": "nosuch"}),
    "a cluster that is being removed": (5, "-c leaving", {"cluster": "leaving"}),
    "the cluster of a job that does not run": (
        4, "-c kPrimaryClusterID##taken", {"cluster": "kPrimaryClusterID##taken"},
    ),
    "a spec in an indivisible cluster": (2, "-c shared --num-cpus 1", {"cluster": "shared", "virtual_cluster": SPEC}),
    "a gang in an indivisible cluster": (2, "-c shared --per-node", {"cluster": "shared", "per_node": True}),
    "what can never run": (
        3, "--num-cpus 64", {"virtual_cluster": {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 64}}]}]}},
    ),
    "more than a cluster's maximum": (
        3, "-c small --num-cpus 3",
        {"cluster": "small", "virtual_cluster": {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 3}}]}]}},
    ),
}  # fmt: skip


ALSO_BY_COMMAND = ("an awaited job that does not exist", "a taken array id", "what can never run")


@pytest.fixture
def place(server: Running) -> Running:
    server.nodes(3)
    with Store.open(server.home) as store:
        clusters.create(store, "shared", ClusterChange(replica_sets={"t": 1}))
        small = parse_cluster_spec({"flexible_resource_max": {"CPU": 2}}, logical=True)
        clusters.create(store, "small", ClusterChange(divisible=True, spec=small))
        clusters.create(
            store, "leaving", ClusterChange(divisible=True, spec=parse_cluster_spec({}, logical=True))
        )
        for name, more in (
            ("taken", {"spec": parse_cluster_spec(SPEC)}), ("many", {"array": parse_array("0-3")}), ("half_2", {}),
            ("stays", {"cluster": "leaving"}),
        ):  # fmt: skip
            held = JobRequest(argv=("x",), submission_id=name, hold=True, cwd="/", **more)
            submitting.submit(store, held, environment={"PATH": "/bin"})
        with store.transaction():
            store.emit(ClusterMoved(store.clock(), "leaving", "remove", REMOVING))
    return server


def test_each_refusal_is_the_same(place: Running) -> None:
    before = place.rows("SELECT count(*) FROM jobs"), place.rows("SELECT max(seq) FROM events")
    for name, (code, words, body) in REFUSALS.items():
        asked = {"entrypoint": ["x"], **body}
        one, other = (place.http.post(f"/api/v1/jobs{path}", json=asked) for path in ("", "/dry-run"))
        assert one.status_code == other.status_code >= 400, (name, one.text, other.text)
        assert one.json() == other.json(), name
        error = one.json()["error"]
        assert error["exit_code"] == code, (name, one.text)
        if name in ALSO_BY_COMMAND:
            line = ["job", "submit", "--no-wait", *words.split(), "--", "x"]
            submitted, foretold = place.vctl(*line), place.vctl(*line[:2], "--dry-run", *line[3:])
            assert (submitted.returncode, submitted.stdout) == (code, ""), (name, submitted.stderr)
            assert (foretold.returncode, foretold.stdout, foretold.stderr) == (code, "", submitted.stderr), (
                name
            )
            assert error["message"] in submitted.stderr
    assert before == (place.rows("SELECT count(*) FROM jobs"), place.rows("SELECT max(seq) FROM events"))


def test_what_is_accepted_is_foretold_as_it_then_is(place: Running) -> None:
    """Gates are those of the submit: a condition that is met is none, one that can no longer come true ends it."""
    with Store.open(place.home) as store:
        clusters.stop(store, "small")
        jobs.stop(store, "half_2")
    one_cpu = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}
    cases: list[tuple[dict[str, Any], str | None, str]] = [
        ({"hold": True}, "Held", "waits"),
        ({"after": ["any:taken"]}, "Dependency", "waits"),
        ({"after": ["ok:half_2"]}, "DependencyFailed", "never starts"),
        ({"begin_at": 4e9}, "BeginTime", "waits"),
        ({"cluster": "small", "virtual_cluster": one_cpu}, "ClusterStopped", "waits"),
        ({"after": ["notok:half_2"], "virtual_cluster": one_cpu}, None, "starts now"),
    ]
    for more, token, verdict in cases:
        body = {"entrypoint": ["true"], **more}
        said = place.http.post("/api/v1/jobs/dry-run", json=body).json()
        assert (said["verdict"], said["state_reason"]) == (verdict, token), said
        job = place.http.post("/api/v1/jobs", json=body).json()
        if token == "ClusterStopped":  # said at once: nobody else will say that somebody must resume it
            assert job["state_reason"] == token
        if token is not None:
            job = place.http.get(f"/api/v1/jobs/{job['submission_id']}").json()
            assert (job["state_reason"], job["message"]) == (said["state_reason"], said["message"])


FAILURES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "no such directory": (126, "cannot enter directory /nosuch", {"cwd": "/nosuch"}),
    "no such program": (127, "cannot run nosuch", {"entrypoint": ["nosuch"]}),
    "not on the PATH that it gets": (127, "cannot run true", {"env": {"PATH": "/nosuch"}}),
    "not executable": (126, "; write python train.py", {"entrypoint": ["train.py"]}),
}


@pytest.mark.parametrize(("code", "words", "more"), FAILURES.values(), ids=FAILURES)
def test_a_start_that_would_fail_is_foretold(
    place: Running, tmp_path: Path, code: int, words: str, more: dict[str, Any]
) -> None:
    """What the start would say, also of a job that waits first."""
    (tmp_path / "train.py").write_text("print()\n")
    body = {"entrypoint": ["true"], "cwd": str(tmp_path), "environment": {"PATH": "/bin"}, **more}
    said = place.http.post("/api/v1/jobs/dry-run", json=body).json()
    assert (said["verdict"], said["state_reason"]) == ("fails to start", "LaunchFailed")
    assert said["launch_failure"]["exit_code"] == code
    assert words in said["launch_failure"]["message"] == said["message"]
    waits = place.http.post("/api/v1/jobs/dry-run", json={**body, "hold": True}).json()
    assert (waits["verdict"], waits["launch_failure"]) == ("waits", said["launch_failure"])
    works = {**body, "entrypoint": ["true"], "cwd": "/", "env": {}}
    assert place.http.post("/api/v1/jobs/dry-run", json=works).json()["launch_failure"] is None


def test_the_dry_run_exits_with_the_code_of_the_start(place: Running) -> None:
    ran = place.vctl("job", "submit", "--dry-run", "--cwd", "/nosuch", "--", "true")
    assert ran.returncode == 126
    assert (
        "it would start now in primary, and fail with exit code 126: cannot enter directory /nosuch"
        in ran.stdout
    )
    waits = place.vctl("job", "submit", "--dry-run", "--hold", "--", "cd /tmp")
    assert waits.returncode == 127
    assert "as files are now, it would then fail with exit code 127: cannot run cd /tmp" in waits.stdout
    assert "Fix: run the line in a shell: vctl job submit -- sh -c 'cd /tmp'" in waits.stderr
