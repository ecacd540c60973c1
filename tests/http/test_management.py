"""The management API: exact messages, the order of the checks, and that a refusal changes nothing."""

from __future__ import annotations

import time

import pytest

from tests.http.conftest import Running, message
from tests.specification import spec

pytestmark = spec("14.management", "7.checks")

ADD = (
    "No enough nodes to add to the virtual cluster. The replica sets that gcs can add at most are shown below. "
    "Use it as a suggestion to adjust your request or cluster."
)
REMOVE = (
    "No enough nodes to remove from the virtual cluster. The replica sets that gcs can remove at most are shown below. "
    "Use it as a suggestion to adjust your request or cluster."
)


@pytest.fixture
def api(server: Running) -> Running:
    """Four nodes of ``t``; cluster ``a``, divisible, has two of them."""
    server.nodes(4)
    assert post(server, "a", {"t": 2}, divisible=True)["result"]
    return server


def post(server: Running, cluster_id: str, counts: dict[str, int], **more: object):
    body = {"virtualClusterId": cluster_id, "replicaSets": counts, **more}
    answer = server.http.post("/virtual_clusters", json=body)
    assert set(answer.json()) == {"result", "msg", "data"}
    assert answer.json()["result"] == (answer.status_code == 200)
    return answer.json() | {"status": answer.status_code}


def started(server: Running, job_id: str) -> None:
    """Wait until a job runs."""
    give_up = time.monotonic() + 60
    while server.http.get(f"/api/v1/jobs/{job_id}").json()["status"] != "RUNNING":
        assert time.monotonic() < give_up, f"{job_id} does not start"
        time.sleep(0.05)


def revision(server: Running, cluster_id: str) -> int:
    found = server.http.get("/virtual_clusters").json()["data"]["virtualClusters"]
    return int(next(one["revision"] for one in found if one["virtualClusterId"] == cluster_id))


def counts_of(server: Running, cluster_id: str) -> dict[str, int]:
    found = server.http.get("/virtual_clusters").json()["data"]["virtualClusters"]
    instances = next(one["nodeInstances"] for one in found if one["virtualClusterId"] == cluster_id)
    counts: dict[str, int] = {}
    for node in instances.values():
        counts[node["templateId"]] = counts.get(node["templateId"], 0) + 1
    return counts


REFUSALS = {
    "an empty id": ({"virtualClusterId": ""}, 400, "Invalid request, the virtual cluster id is empty.", {}),
    "no id": ({}, 400, "Invalid request, the virtual cluster id is empty.", {}),
    "the primary": (
        {"virtualClusterId": "kPrimaryClusterID"},
        400,
        "Invalid request, kPrimaryClusterID can not be created or updated.",
        {},
    ),
    "a negative count": (
        {"virtualClusterId": "b", "replicaSets": {"t": -1}},
        400,
        "Invalid request, replicas(-1) must >= 0, virtual_cluster_id: b",
        {},
    ),
    "an empty template": (
        {"virtualClusterId": "b", "replicaSets": {"": 1}},
        400,
        "Invalid request, template_id is empty, virtual_cluster_id: b",
        {},
    ),
    "a stale revision": (
        {"virtualClusterId": "a", "revision": 7, "divisible": True},
        409,
        "The revision (7) is expired, the latest revision of the virtual cluster a is {a}",
        {},
    ),
    "no revision": (
        {"virtualClusterId": "a", "divisible": True},
        409,
        "The revision (0) is expired, the latest revision of the virtual cluster a is {a}",
        {},
    ),
    "another kind": (
        {"virtualClusterId": "a", "revision": "{a}", "divisible": False},
        409,
        "The requested attributes are incompatible with virtual cluster a. expect: (true), actual: (false).",
        {},
    ),
    "too many": ({"virtualClusterId": "b", "replicaSets": {"t": 3, "x": 1}}, 409, ADD, {"t": 2, "x": 0}),
    "the count before the revision": (
        {"virtualClusterId": "a", "revision": 7, "replicaSets": {"t": -1}},
        400,
        "Invalid request, replicas(-1) must >= 0, virtual_cluster_id: a",
        {},
    ),
    "the revision before the kind": (
        {"virtualClusterId": "a", "revision": 7, "divisible": False},
        409,
        "The revision (7) is expired, the latest revision of the virtual cluster a is {a}",
        {},
    ),
    "the kind before the shortage": (
        {"virtualClusterId": "a", "revision": "{a}", "divisible": "false", "replicaSets": {"t": 99}},
        409,
        "The requested attributes are incompatible with virtual cluster a. expect: (true), actual: (false).",
        {},
    ),
}


def test_every_refusal_says_why_and_changes_nothing(api: Running):
    latest, before = str(revision(api, "a")), api.tree()
    for name, (body, status, problem, recommended) in REFUSALS.items():
        sent = {key: latest if value == "{a}" else value for key, value in body.items()}
        answer = api.http.post("/virtual_clusters", json=sent)
        cluster_id = sent.get("virtualClusterId", "")
        assert answer.status_code == status, name
        assert answer.json() == {
            "result": False,
            "msg": f"Failed to create or update virtual cluster {cluster_id}: "
            + problem.replace("{a}", latest),
            "data": {"virtualClusterId": cluster_id, "replicaSetsToRecommend": recommended},
        }, name
        assert api.tree() == before, name


def test_removal_is_judged_before_addition(api: Running):
    assert post(api, "b", {"t": 1}, divisible=False)["result"]
    job = {"entrypoint": ["sleep", "60"], "cluster": "a", "virtual_cluster": {"replica_sets": {"t": 2}}}
    job_id = api.http.post("/api/v1/jobs", json=job).json()["submission_id"]
    started(api, job_id)
    before = api.tree()
    refused = post(api, "a", {"x": 5}, divisible=True, revision=str(revision(api, "a")))
    assert (refused["status"], refused["msg"]) == (
        409,
        f"Failed to create or update virtual cluster a: {REMOVE}",
    )
    assert refused["data"]["replicaSetsToRecommend"] == {"t": 0}
    assert api.tree()[:2] == before[:2]

    in_use = api.http.delete("/virtual_clusters/a")
    assert in_use.status_code == 409
    assert in_use.json()["msg"] == (
        "Failed to remove virtual cluster a: The virtual cluster a can not be removed as it is still in use."
        f" Its users: job {job_id}."
    )
    assert in_use.json()["data"]["blockers"] == [f"job {job_id}"]
    api.http.post(f"/api/v1/jobs/{job_id}/stop", json={"grace_s": 0})
    assert api.http.get(f"/api/v1/jobs/{job_id}/wait").json()["over"]


def test_an_answer_has_the_documented_fields(api: Running):
    made = post(api, "b", {"t": 1}, divisible="false", revision="123")
    assert made["msg"] == "Virtual cluster created or updated."
    assert made["data"] == {
        "virtualClusterId": "b",
        "revision": revision(api, "b"),
        "nodeInstances": {"t-02": {"hostname": "t-02", "templateId": "t"}},
    }
    listed = api.http.get("/virtual_clusters").json()
    assert listed["msg"] == "All virtual clusters fetched."
    first, second = listed["data"]["virtualClusters"]
    assert (first["virtualClusterId"], first["divisible"], first["isRemoved"]) == ("a", True, False)
    assert (second["virtualClusterId"], second["divisible"]) == ("b", False)
    assert set(first) == {"virtualClusterId", "divisible", "isRemoved", "nodeInstances", "revision"}


@spec("7.revision")
def test_an_update_that_changes_nothing_has_a_new_revision(api: Running):
    old = revision(api, "a")
    assert post(api, "a", {"t": 2}, divisible=True, revision=old)["result"]
    new = revision(api, "a")
    assert new > old
    assert post(api, "a", {"t": 1}, divisible="true", revision=str(new))["result"]
    assert counts_of(api, "a") == {"t": 1}


@spec("7.remove-nodes")
def test_remove_nodes_takes_all_or_none(api: Running):
    def remove(cluster_id: str, *nodes: str):
        body = {"virtualClusterId": cluster_id, "nodesToRemove": nodes}
        return api.http.post("/virtual_clusters/remove_nodes", json=body)

    before = api.tree()
    refused = remove("a", "t-00", "t-03", "nope")
    assert refused.status_code == 409
    assert refused.json() == {
        "result": False,
        "msg": "Failed to remove nodes from virtual cluster a: Failed to remove some of the nodes because they are not"
        " idle nor found in the virtual cluster. These nodes with failure are shown below.",
        "data": {"virtualClusterId": "a", "nodesWithFailure": ["t-03", "nope"]},
    }
    unknown = remove("zz", "t-00")
    assert (unknown.status_code, unknown.json()["data"]) == (
        404,
        {"virtualClusterId": "zz", "nodesWithFailure": []},
    )
    assert unknown.json()["msg"].endswith(": The logical cluster zz does not exist.")
    primary = remove("kPrimaryClusterID", "t-00")
    refused = "Failed to remove nodes from virtual cluster kPrimaryClusterID: Invalid request, kPrimaryClusterID should"
    assert primary.json()["msg"] == f"{refused} not be updated via this API."
    assert primary.status_code == 400
    made = {"result": True, "msg": "Virtual cluster successfully updated.", "data": {"virtualClusterId": "a"}}
    nothing = remove("a")
    assert (nothing.status_code, nothing.json()) == (200, made)
    assert api.tree() == before

    latest = revision(api, "a")
    assert remove("a", "t-00").json() == made
    assert counts_of(api, "a") == {"t": 1}
    assert revision(api, "a") == latest  # what the client holds stays good
    assert post(api, "a", {"t": 0}, divisible=True, revision=latest)["result"]
    kept = api.http.get("/api/v1/clusters/a").json()
    assert (kept["replica_sets"], kept["spec"]["replica_sets"]) == ({}, {})


def test_recommendations_never_exceed_what_was_asked(api: Running):
    assert post(api, "b", {"t": 1, "x": 1})["data"]["replicaSetsToRecommend"] == {"t": 1, "x": 0}
    job = {
        "entrypoint": ["sleep", "60"],
        "cluster": "a",
        "virtual_cluster": {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]},
    }
    job_id = api.http.post("/api/v1/jobs", json=job).json()["submission_id"]
    started(api, job_id)
    short = post(api, "a", {"t": 0}, divisible=True, revision=revision(api, "a"))
    assert short["data"]["replicaSetsToRecommend"] == {"t": 1}
    api.http.post(f"/api/v1/jobs/{job_id}/stop", json={"grace_s": 0})
    api.http.get(f"/api/v1/jobs/{job_id}/wait")


@spec("7.remove-nodes")
def test_a_cluster_of_slices_has_no_whole_nodes_to_remove(api: Running):
    spec = {"flexible_resource_min": {"CPU": 2}}
    assert api.http.post("/api/v1/clusters", json={"cluster_id": "s", "spec": spec}).status_code == 200
    body = {"virtualClusterId": "s", "nodesToRemove": ["t-02"]}
    refused = api.http.post("/virtual_clusters/remove_nodes", json=body)
    assert refused.status_code == 409
    assert refused.json()["msg"].endswith("was made from a resource spec and has no whole nodes to remove.")
    assert refused.json()["data"] == {"virtualClusterId": "s", "nodesWithFailure": ["t-02"]}


def test_delete(api: Running):
    assert api.http.delete("/virtual_clusters/zz").json()["msg"] == (
        "Failed to remove virtual cluster zz: The logical cluster zz does not exist."
    )
    refused = api.http.delete("/virtual_clusters/kPrimaryClusterID")
    assert refused.status_code == 400
    assert refused.json()["msg"].endswith("Invalid request, kPrimaryClusterID can not be removed.")
    assert api.http.delete("/virtual_clusters/").json()["msg"].endswith("the virtual cluster id is empty.")
    done = api.http.delete("/virtual_clusters/a")
    assert done.json() == {
        "result": True,
        "msg": "Virtual cluster a removed.",
        "data": {"virtualClusterId": "a"},
    }
    assert api.http.get("/virtual_clusters").json()["data"] == {"virtualClusters": []}


def test_delete_of_clusters_of_jobs(api: Running):
    job = {"entrypoint": ["sleep", "60"], "cluster": "a", "virtual_cluster": {"replica_sets": {"t": 1}}}
    job_id = api.http.post("/api/v1/jobs", json=job).json()["submission_id"]
    started(api, job_id)
    assert post(api, "b", {"t": 1})["result"]

    def delete(cluster_id: str):
        answer = api.http.delete("/virtual_clusters/" + cluster_id.replace("#", "%23"))
        prefix = f"Failed to remove virtual cluster {cluster_id}: "
        assert answer.json()["msg"].startswith(prefix)
        return answer.status_code, answer.json()["msg"].removeprefix(prefix), answer.json()["data"]

    live = f"a##{job_id}"
    assert delete(live) == (
        409,
        f"The virtual cluster {live} can not be removed as it is still in use. Its users: job {job_id}.",
        {"virtualClusterId": live, "blockers": [f"job {job_id}"]},
    )
    failed = "Failed to remove virtual cluster, parent cluster"
    assert delete("zz##j")[:2] == (404, f"{failed} not exists, virtual cluster id: zz##j")
    assert delete("b##j")[:2] == (400, f"{failed} is not divisible, virtual cluster id: b##j")
    assert delete("a##j")[:2] == (404, "The job cluster a##j does not exist.")
    assert delete("kPrimaryClusterID##j")[:2] == (404, "The job cluster kPrimaryClusterID##j does not exist.")
    api.http.post(f"/api/v1/jobs/{job_id}/stop", json={"grace_s": 0})
    api.http.get(f"/api/v1/jobs/{job_id}/wait")


def test_jobs_show_only_when_asked_for(api: Running):
    job = {"entrypoint": ["sleep", "60"], "cluster": "a", "virtual_cluster": {"replica_sets": {"t": 1}}}
    job_id = api.http.post("/api/v1/jobs", json=job).json()["submission_id"]
    started(api, job_id)
    names = [
        one["virtualClusterId"] for one in api.http.get("/virtual_clusters").json()["data"]["virtualClusters"]
    ]
    assert names == ["a"]
    more = api.http.get("/virtual_clusters", params={"include_job_clusters": "true"}).json()["data"][
        "virtualClusters"
    ]
    assert [one["virtualClusterId"] for one in more] == ["a", f"a##{job_id}"]
    assert [one["divisible"] for one in more] == [True, False]
    api.http.post(f"/api/v1/jobs/{job_id}/stop", json={"grace_s": 0})
    api.http.get(f"/api/v1/jobs/{job_id}/wait")


def test_the_scenario_of_ant_ray(server: Running):
    server.nodes(20, "0")
    server.nodes(20, "1")
    assert post(server, "v0", {"0": 5, "1": 10}, divisible=True)["result"]
    assert post(server, "v1", {"0": 15, "1": 10})["result"]
    assert post(server, "v2", {"0": 0, "1": 0})["result"]
    refused = post(server, "v3", {"0": 5, "1": 10})
    assert refused["status"] == 409
    assert refused["data"] == {"virtualClusterId": "v3", "replicaSetsToRecommend": {"0": 0, "1": 0}}
    found = server.http.get("/virtual_clusters").json()["data"]["virtualClusters"]
    assert [one["virtualClusterId"] for one in found] == ["v0", "v1", "v2"]

    before = server.tree()
    refused = post(server, "v0", {"0": 6}, divisible=True, revision=str(revision(server, "v0")))
    assert refused["data"]["replicaSetsToRecommend"] == {"0": 0}
    assert server.tree() == before  # its shrink of "1" is not done either

    assert post(server, "v0", {"0": 5}, divisible=True, revision=revision(server, "v0"))["result"]
    assert counts_of(server, "v0") == {"0": 5}
    assert post(server, "v3", {"1": 10})["result"]


def test_a_body_that_cannot_be_read_is_refused_in_the_envelope(api: Running):
    before = api.tree()
    for content in (b"", b"{", b"[]", b"null", b'{"replicaSets": {"t": 1.5}}', b'{"divisible": "maybe"}', b"\xff",
                    b'{"virtualClusterId": "\\ud800"}', b'{"virtualClusterId": 7}', b'{"unknown": 1}',
                    b'{"virtualClusterId": "b", "revision": "x"}', b'{"replicaSets": {"t": NaN}}',
                    b"[" * 100_000, b'{"replicaSets": {"t": ' + b"9" * 5000 + b"}}"):  # fmt: skip
        answer = api.http.post("/virtual_clusters", content=content)
        assert answer.status_code == 400, content[:50]
        assert answer.json()["result"] is False
    assert api.tree() == before


PLACES = {
    "divisible": {"divisible": 7},
    "replicaSets.t": {"replicaSets": {"t": "2"}},
    "replicaSets": {"replicaSets": [1]},
    "revision": {"revision": 1.5},
    "nosuch": {"nosuch": 1},
}


def test_a_value_of_a_wrong_type_is_named_by_its_field(api: Running):
    for path, fields in PLACES.items():
        answer = api.http.post("/virtual_clusters", json={"virtualClusterId": "b", **fields})
        start = f"Failed to create or update virtual cluster b: Invalid request, {path}: "
        assert (answer.status_code, answer.json()["msg"][: len(start)]) == (400, start)
    answer = api.http.post("/virtual_clusters", json={"virtualClusterId": "b", "replicaSets": {"t": 2**40}})
    assert answer.json()["msg"].startswith(
        "Failed to create or update virtual cluster b: replicaSets.t: a replica count is "
    )
    body = {"virtualClusterId": "a", "nodesToRemove": [1]}
    answer = api.http.post("/virtual_clusters/remove_nodes", json=body)
    assert answer.json()["data"] == {"virtualClusterId": "a", "nodesWithFailure": []}
    start = "Failed to remove nodes from virtual cluster a: Invalid request, nodesToRemove[0]: "
    assert answer.json()["msg"].startswith(start)


def test_an_unknown_field_is_told_the_nearest_one(api: Running):
    answer = api.http.post("/virtual_clusters", json={"virtualClusterId": "b", "replica_set": {"t": 1}})
    assert answer.status_code == 400
    assert answer.json()["msg"] == (
        "Failed to create or update virtual cluster b: Invalid request, replica_set: unknown field,"
        " did you mean replicaSets?"
    )


@spec("4.fields", "7.tree-file")
def test_camel_case_is_accepted_in_every_spec(api: Running):
    camel = {"flexibleResourceMin": {"CPU": 1}, "flexibleResourceMax": {"CPU": 2}}
    plan = api.http.post("/api/v1/tree-file/plan", json={"clusters": [{"id": "b", "spec": camel}]})
    assert plan.json()["changes"][0]["after"]["spec"] == {
        "flexible_resource_min": {"CPU": 1},
        "flexible_resource_max": {"CPU": 2},
    }
    made = api.http.post("/api/v1/clusters", json={"cluster_id": "b", "spec": camel})
    assert made.json()["spec"]["flexible_resource_max"] == {"CPU": 2}
    changed = api.http.patch("/api/v1/clusters/b", json={"spec": {"flexibleResourceMin": {"CPU": 2}}})
    assert changed.json()["spec"] == {"flexible_resource_min": {"CPU": 2}}


BODIES = {
    b"": "the body is missing, a JSON object is needed",
    b"[]": "the body is not a JSON object",
    b"null": "the body is not a JSON object",
    b'{"a": }': "the body is not JSON: Expecting value",
}


def test_what_is_wrong_with_a_whole_body_is_said(api: Running):
    for content, problem in BODIES.items():
        answer = api.http.post("/virtual_clusters", content=content)
        whole = f"Failed to create or update virtual cluster : Invalid request, {problem}"
        assert (answer.status_code, answer.json()["msg"]) == (400, whole)
        for path in ("/api/v1/jobs", "/api/jobs/", "/api/v1/tree-file/plan"):
            answer = api.http.post(path, content=content)
            assert (answer.status_code, message(answer)) == (400, f"Invalid request, {problem}"), path


NOT_READ = {
    "a key twice": b'{"virtualClusterId": "a", "virtualClusterId": "a"}',
    "no UTF-8": b'{"virtualClusterId": "\xff"}',
    "a NUL": b'{"virtualClusterId": "\0"}',
    "no text": b'{"virtualClusterId": "\\ud800"}',
    "no JSON": b"{",
}


def test_every_refusal_of_a_change_has_the_documented_fields(api: Running):
    """Also where the body is refused before the route: a client finds in ``data`` what it looks for."""
    for content in NOT_READ.values():
        answer = api.http.post("/virtual_clusters", content=content)
        assert answer.json()["msg"].startswith(
            "Failed to create or update virtual cluster : Invalid request, "
        )
        assert answer.json()["data"] == {"virtualClusterId": "", "replicaSetsToRecommend": {}}
        answer = api.http.post("/virtual_clusters/remove_nodes", content=content)
        assert answer.json()["msg"].startswith("Failed to remove nodes from virtual cluster : Invalid")
        assert answer.json()["data"] == {"virtualClusterId": "", "nodesWithFailure": []}
    answer = api.http.request("DELETE", "/virtual_clusters/a%23%23j?force=true")
    assert answer.status_code == 400
    assert answer.json()["msg"] == (
        "Failed to remove virtual cluster a##j: Invalid request, force: unknown parameter"
    )
    assert answer.json()["data"] == {"virtualClusterId": "a##j"}


def test_a_refused_list_speaks_of_no_change(api: Running):
    answer = api.http.get("/virtual_clusters", params={"include_job_clusters": "maybe"})
    assert (answer.status_code, answer.json()["result"]) == (400, False)
    assert answer.json()["msg"].startswith("Invalid request, include_job_clusters: ")


def test_bodies_are_json_whatever_curl_calls_them(api: Running):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = api.http.post("/virtual_clusters", content='{"virtualClusterId": "c"}', headers=form)
    assert answer.status_code == 200


@spec("7.create", "14.api")
def test_a_cluster_inside_a_job_is_refused_as_indivisible(api: Running):
    job = api.http.post("/api/v1/jobs", json={"entrypoint": ["sleep", "1000"]}).json()["submission_id"]
    started(api, job)

    def create(cluster_id: str, parent: str, **more: object):
        return api.http.post("/api/v1/clusters", json={"cluster_id": cluster_id, "parent_id": parent, **more})

    refused = create("s", f"primary##{job}", divisible=False)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["message"].startswith("divisible=false: s is inside the cluster of a job")
    assert (error["exit_code"], error["details"]["path"]) == (2, "divisible")
    assert create("s", f"primary##{job}").json()["divisible"] is True
    assert create("own", "primary", replica_sets={}).json()["divisible"] is False
    api.http.post(f"/api/v1/jobs/{job}/stop")
