"""What could ever run is judged once per shape, and anew whenever there is something else to run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.errors import Infeasible
from vctl.ops import clusters, nodes, submitting
from vctl.spec.job_request import JobRequest, shortcut_spec
from vctl.store.store import Store

pytestmark = spec("6.never")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        nodes.add(opened, node_id="big", resources={"CPU": 80_000})
        nodes.add(opened, node_id="small", resources={"CPU": 20_000})
        yield opened


def submit(store: Store, cpus: int) -> None:
    submitting.submit(store, JobRequest(argv=("true",), spec=shortcut_spec(cpus)), environment={})


def test_a_known_shape_is_not_judged_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(store, 8)
    monkeypatch.setattr(submitting, "check_feasible", lambda *_: pytest.fail("judged again"))
    submit(store, 8)


CHANGES = {
    "the node that had room dies": lambda store: nodes.kill(store, "big"),
    "the node that had room shrinks": lambda store: nodes.update(store, "big", resources={"CPU": 40_000}),
    "the node that had room is removed": lambda store: nodes.remove(store, "big"),
    "a cluster made by name takes it": lambda store: clusters.create(store, "team", replica_sets={"8c": 1}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_known_shape_is_judged_anew_when(store: Store, change: object) -> None:
    submit(store, 8) if change is not CHANGES["the node that had room is removed"] else None
    assert callable(change)
    change(store)
    with pytest.raises(Infeasible):
        submit(store, 8)


def test_what_was_impossible_becomes_possible_with_a_larger_node(store: Store) -> None:
    with pytest.raises(Infeasible):
        submit(store, 16)
    nodes.add(store, node_id="huge", resources={"CPU": 160_000})
    submit(store, 16)
