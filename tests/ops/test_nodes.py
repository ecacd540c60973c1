"""Nodes: their states and who may move them, ids, this machine over its restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.core.nodes import ALIVE, DEAD, DRAINED, DRAINING
from vctl.core.resources import CPU, SCALE
from vctl.engine.lifecycle import NODE
from vctl.errors import BadSpec, Conflict, NotFound, VctlError
from vctl.ops import clusters, jobs, nodes, views
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.store.store import Store

pytestmark = spec("3.states", "3.sources", "3.totals", "3.heartbeat")

MOVES: dict[str, Callable[..., Any]] = {"drain": nodes.drain, "undrain": nodes.undrain, "die": nodes.kill}
AFTER_DRAIN = DRAINED  # an empty node is drained at once


@pytest.mark.parametrize("state", [ALIVE, DRAINING, DRAINED, DEAD])
@pytest.mark.parametrize("event", list(MOVES))
def test_moves(ground: Ground, state: str, event: str) -> None:
    with ground.store.transaction():
        ground.store.db.execute("UPDATE nodes SET state = ? WHERE node_id = 'n-00'", (state,))
    if state in nodes.THERE[event]:
        before = ground.store.row("SELECT * FROM nodes WHERE node_id = 'n-00'")
        assert MOVES[event](ground.store, "n-00")["state"] == state
        assert ground.store.row("SELECT * FROM nodes WHERE node_id = 'n-00'") == before, (
            "it was there already"
        )
    elif event in NODE.moves_from(state):
        (expected,) = NODE.targets(event)
        form = MOVES[event](ground.store, "n-00")
        assert form["state"] == (AFTER_DRAIN if expected == DRAINING else expected)
        kinds = [row[0] for row in ground.store.rows("SELECT kind FROM events WHERE object_id = 'n-00'")]
        assert f"node.{form['state'].lower()}" in kinds
    else:
        with pytest.raises(Conflict):
            MOVES[event](ground.store, "n-00")
        assert nodes.get_node(ground.store, "n-00")["state"] == state


def test_who_drained_it_and_why(ground: Ground) -> None:
    form = nodes.drain(ground.store, "n-00", reason="new fan")
    assert (form["reason"], form["author"]) == ("new fan", nodes.own_name())
    assert nodes.drain(ground.store, "n-00")["reason"] == "new fan"
    again = nodes.drain(ground.store, "n-00", reason="new disk")
    assert (again["reason"], again["state"]) == ("new disk", AFTER_DRAIN)
    assert nodes.undrain(ground.store, "n-00")["reason"] is None


@pytest.mark.parametrize("state", [ALIVE, DRAINING, DRAINED, DEAD])
def test_only_a_node_that_takes_work_has_free_resources(ground: Ground, state: str) -> None:
    """Spec 2 and 11: `node list`, `node get` and `nodes` say the same, what is used too."""
    clusters.create(
        ground.store,
        "c",
        ClusterChange(
            spec=parse_cluster_spec({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]})
        ),
    )
    (used,) = [node["node_id"] for node in nodes.list_nodes(ground.store) if node["used"]["CPU"]]
    with ground.store.transaction():
        ground.store.db.execute("UPDATE nodes SET state = ? WHERE node_id = ?", (state, used))
    node = nodes.get_node(ground.store, used)
    (of_cluster,) = [one for one in views.nodes(ground.store) if one["NodeID"] == used]
    assert node in nodes.list_nodes(ground.store)
    assert (node["used"]["CPU"], node["available"]["CPU"]) == (1, 3 if state == ALIVE else 0)
    assert (of_cluster["Used"], of_cluster["Available"]) == (node["used"], node["available"])
    assert views.current_node(ground.store, used)["available"] == node["available"]


def cpu(count: int) -> dict[str, int]:
    return {CPU: count * SCALE}


def test_ids(ground: Ground) -> None:
    def add(**fields: Any) -> list[str]:
        return [node["node_id"] for node in nodes.add(ground.store, resources=cpu(2), **fields)]

    assert add() == ["2c-00"]
    assert add() == ["2c-01"]
    assert add(count=3, template="big") == ["big-00", "big-01", "big-02"]
    assert add(node_id="box") == ["box"]
    assert add(count=2, node_id="box") == ["box-00", "box-01"]
    assert add(count=101, template="many")[-1] == "many-100"
    with pytest.raises(Conflict, match="exists already"):
        add(node_id="box")
    before = len(nodes.list_nodes(ground.store))
    with pytest.raises(BadSpec):
        add(node_id="a b")
    assert len(nodes.list_nodes(ground.store)) == before


@pytest.mark.parametrize(
    ("ref", "error"), [("n", BadSpec), ("", NotFound), ("x", NotFound), ("n-_0", NotFound), ("%", NotFound)]
)
def test_words_that_name_no_node(ground: Ground, ref: str, error: type[VctlError]) -> None:
    with pytest.raises(error):
        nodes.get_node(ground.store, ref)
    assert nodes.get_node(ground.store, "n-01")["node_id"] == "n-01"


def test_update_replaces_what_it_names(ground: Ground) -> None:
    form = nodes.update(
        ground.store, "n-00", resources={CPU: 2 * SCALE, "disk": 3 * SCALE}, labels={"a": "b"}
    )
    assert (form["resources"]["CPU"], form["resources"]["disk"]) == (2.0, 3.0)
    assert form["resources"]["memory"] == 8.0 * 2**30
    assert form["labels"] == {"a": "b"}
    assert "disk" not in nodes.update(ground.store, "n-00", resources={"disk": 0})["resources"]
    assert nodes.update(ground.store, "n-00", labels={"c": "d"})["labels"] == {"a": "b", "c": "d"}
    changed = nodes.update(ground.store, "n-00", labels={"c": "e", "a": None, "none": None})
    assert changed["labels"] == {"c": "e"}
    nodes.kill(ground.store, "n-00")
    with pytest.raises(Conflict, match="DEAD"):
        nodes.update(ground.store, "n-00", resources=cpu(1))


def test_this_machine_is_registered_once_a_boot(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(nodes, "BOOT_ID", str(boot))

    def local() -> list[tuple[str, str]]:
        return [
            (node["node_id"], node["state"])
            for node in nodes.list_nodes(ground.store)
            if node["source"] == "local"
        ]

    boot.write_text("11111111-0000-4000-8000-000000000000\n")
    nodes.ensure_local(ground.store)
    assert local() == [], "spec 3: by itself only while there is no other node"
    for node in nodes.list_nodes(ground.store):
        nodes.remove(ground.store, node["node_id"])
    nodes.ensure_local(ground.store, register=False)
    assert local() == []
    nodes.ensure_local(ground.store)
    ground.nodes(1)  # once it is there it stays, and comes back after a restart
    nodes.ensure_local(ground.store)
    ((first, state),) = local()
    assert (first.endswith("-11111111"), state) == (True, ALIVE)
    boot.write_text("22222222-0000-4000-8000-000000000000\n")
    nodes.ensure_local(
        ground.store, register=False
    )  # also who does not want a node sees that the old one is gone
    assert local() == [(first, DEAD)]
    nodes.ensure_local(ground.store)
    assert sorted(state for _, state in local()) == [ALIVE, DEAD]
    nodes.kill(ground.store, next(node_id for node_id, state in local() if state == ALIVE))
    nodes.ensure_local(ground.store)  # declared dead by hand: it stays so until it is removed
    assert [state for _, state in local()] == [DEAD, DEAD]
    nodes.remove(ground.store, next(node_id for node_id, _ in local() if node_id != first))
    nodes.ensure_local(ground.store)
    assert sorted(state for _, state in local()) == [ALIVE, DEAD]


def test_a_node_in_use_is_not_removed(ground: Ground) -> None:
    from vctl.ops import clusters

    clusters.create(ground.store, "c", ClusterChange(replica_sets={"4c8g": 1}))
    used = [node["node_id"] for node in nodes.list_nodes(ground.store) if node["available"]["CPU"] == 0]
    assert len(used) == 1
    for change, fix in (
        (None, "vctl node drain"),
        (nodes.kill, "it has a part of c: make it smaller, or delete it"),
    ):
        if change is not None:
            change(ground.store, used[0])
        with pytest.raises(Conflict, match="in use") as refused:
            nodes.remove(ground.store, used[0])
        assert refused.value.fix.startswith(fix)  # a dead node cannot drain
    clusters.delete(ground.store, "c")
    nodes.remove(ground.store, used[0])
    assert used[0] not in [node["node_id"] for node in nodes.list_nodes(ground.store)]


@pytest.mark.parametrize(
    ("change", "key", "gone"),
    [
        (lambda store: nodes.add(store, resources={CPU: SCALE}, node_id="x")[0], "node_id",
         lambda store: nodes.remove(store, "x")),
        (lambda store: clusters.create(store, "x",
            ClusterChange()), "cluster_id", lambda store: clusters.delete(store, "x")),
        (lambda store: jobs.stop(store, "x"), "submission_id", lambda store: jobs.delete(store, "x")),
    ],
    ids=["node", "cluster", "job"],
)  # fmt: skip
@spec("17.durable")
def test_the_answer_is_that_of_the_moment_of_the_change(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, change: Any, key: str, gone: Any
) -> None:
    """What somebody else removes right after the commit was changed all the same, and is answered."""
    ground.submit(submission_id="x")
    transaction = Store.transaction

    @contextmanager
    def and_then_removed(store: Store) -> Iterator[None]:
        with transaction(store):
            yield
        with monkeypatch.context() as patch, Store.open(store.home) as other:
            patch.setattr(Store, "transaction", transaction)
            gone(other)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "transaction", and_then_removed)
        assert change(ground.store)[key] == "x"
    with pytest.raises(NotFound):
        gone(ground.store)
