"""Ids that users choose."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.errors import BadSpec
from vctl.spec import ids

pytestmark = spec("7.create")


@pytest.mark.parametrize("cluster_id", ["a", "team-1", "A.b_c", "0", "x" * 63])
def test_new_cluster_ids(cluster_id):
    assert ids.check_new_cluster_id(cluster_id) == cluster_id


BAD = {
    "": "Invalid request, the virtual cluster id is empty.",
    "kPrimaryClusterID": "Invalid request, kPrimaryClusterID can not be created or updated.",
    "primary": "Invalid request, kPrimaryClusterID can not be created or updated.",
    "a##b": "belongs to job clusters",
    "##": "belongs to job clusters",
    "a b": "is not a virtual cluster id",
    "-a": "is not a virtual cluster id",
    "a/b": "is not a virtual cluster id",
    "a\n": "is not a virtual cluster id",
    "é": "is not a virtual cluster id",
    "x" * 64: "is not a virtual cluster id",
}


@pytest.mark.parametrize(("cluster_id", "words"), BAD.items(), ids=map(repr, BAD))
def test_bad_cluster_ids(cluster_id, words):
    with pytest.raises(BadSpec) as caught:
        ids.check_new_cluster_id(cluster_id)
    assert words in caught.value.problem
    assert caught.value.fix


def test_the_primary_cannot_be_removed():
    with pytest.raises(BadSpec) as caught:
        ids.check_new_cluster_id("primary", action="removed")
    assert caught.value.problem == "Invalid request, kPrimaryClusterID can not be removed."


def test_existing_clusters():
    assert ids.resolve_cluster_id("primary") == ids.resolve_cluster_id(PRIMARY) == PRIMARY
    job = ids.job_cluster_id("team", "s_1")
    assert job == "team##s_1"
    assert ids.resolve_cluster_id(job) == job
    assert ids.resolve_cluster_id(f"{job}##sub") == f"{job}##sub"
    for bad in ("", "a b", "##", "a##", "x" * 2000):
        with pytest.raises(BadSpec, match=r"^-c: "):
            ids.resolve_cluster_id(bad, "-c")


@pytest.mark.parametrize("submission_id", ["raysubmit_x", "42", "a" * 128, "my.job-1"])
def test_submission_ids(submission_id):
    assert ids.check_submission_id(submission_id) == submission_id


@pytest.mark.parametrize("submission_id", ["", "last", "a##b", "a b", "_x", "a" * 129, "a/../b", "a\n"])
def test_bad_submission_ids(submission_id):
    with pytest.raises(BadSpec, match=r"^--submission-id: ") as caught:
        ids.check_submission_id(submission_id)
    assert caught.value.fix
