"""Owners in a shared service: whose a job is, and as whom it runs."""

from __future__ import annotations

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.core.identity import Identity
from vctl.ops import jobs, reruns
from vctl.spec.options import parse_array
from vctl.store import contents

pytestmark = spec("19.rights")

ANA, BEN = Identity(20001, "ana"), Identity(20002, "ben")


def _owner(ground: Ground, name: str) -> tuple[object, object]:
    row = ground.store.row("SELECT user, uid FROM jobs WHERE submission_id = ?", name)
    assert row is not None
    return tuple(row)


def test_a_job_belongs_to_the_one_who_asks(ground: Ground) -> None:
    """Also the members of an array and what runs again in place; names in the environment count for nothing."""
    store = ground.store
    ground.submit("mine")
    assert _owner(ground, "mine")[1] is None
    store.identity = ANA
    ground.submit("hers", environment={"PATH": "/bin", "USER": "ben", "LOGNAME": "ben"})
    ground.submit("many", array=parse_array("1-3"))
    assert _owner(ground, "hers") == _owner(ground, "many_2") == ("ana", 20001)
    ground.end("many_2", "FAILED", 1)
    store.identity = Identity(0, "root", is_admin=True)
    reruns.rerun(store, "many", failed=True)
    assert _owner(ground, "many_2") == ("ana", 20001)
    launch = contents.of_job(store, jobs.get_job(store, "many_2")["job_id"])
    assert launch is not None
    assert launch["uid"] == 20001
