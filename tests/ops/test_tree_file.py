"""Plan, apply and export of a whole tree: what changes, in which order, what stands in the way, round trips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.specification import spec
from vctl.errors import Conflict, Infeasible, NotFound
from vctl.ops import cluster_views, clusters, nodes, submitting, tree_files
from vctl.ops.prove import prove
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.tree_file import parse_tree
from vctl.store.store import Store

pytestmark = spec("7.tree-file")

Document = dict[str, Any]
SPREAD = {
    "nodes": [{"resources": {"CPU": 1}}, {"resources": {"CPU": 1}}],
    "scheduling_policy": "STRICT_SPREAD",
}
PAIR = {"nodes": [{"resources": {"CPU": 0.5, "memory": "1GiB"}}], "scheduling_policy": "PACK"}
DEEP: Document = {
    "clusters": [
        {
            "id": "research",
            "divisible": True,
            "replica_sets": {"a": 3, "b": 1},
            "queue": {"order": "fair", "half_life_s": 3600},
            "children": [
                {
                    "id": "vision",
                    "replica_sets": {"a": 1},
                    "queue": {"weight": 3, "max_running_per_user": 2},
                    "children": [{"id": "vision-1", "spec": {"flexible_resource_min": {"CPU": 2}}}],
                },
                {
                    "id": "text",
                    "spec": {"flexible_resource_min": {"CPU": 2}, "fixed_size_nodes": [SPREAD, PAIR]},
                },
            ],
        },
        {
            "id": "service",
            "spec": {"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 3}},
            "borrow_limit": {"CPU": 0.5},
            "lending_limit": {"CPU": 1},
        },
        {"id": "empty"},
    ]
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Four nodes ``a`` and two ``b`` of 4 CPUs and 8 GiB each."""
    with Store.open(tmp_path / "home") as found:
        for template, count in (("a", 4), ("b", 2)):
            amounts = {"CPU": 40_000, "memory": 8 * 2**30 * 10_000}
            nodes.add(found, resources=amounts, template=template, count=count)
        yield found
        assert prove(found) == []


def apply(store: Store, document: Document, **options: Any) -> Document:
    return tree_files.apply(store, parse_tree(document), **options)


def plan(store: Store, document: Document, **options: Any) -> Document:
    return tree_files.plan(store, parse_tree(document), **options)


def actions(diff: Mapping[str, Any]) -> list[str]:
    return [f"{change['action']} {change['cluster_id']}" for change in diff["changes"]]


def rows_of(store: Store) -> list[tuple[Any, ...]]:
    return [
        tuple(row)
        for table in ("clusters", "vnodes", "events", "meta", "leases")
        for row in store.rows(f"SELECT * FROM {table} ORDER BY 1")
    ]


def flat(*clusters_: Document) -> Document:
    return {"clusters": list(clusters_)}


def counts(cluster_id: str, **replica_sets: int) -> Document:
    return {"id": cluster_id, "replica_sets": replica_sets}


def test_a_tree_is_made_parents_first_and_what_is_exported_is_what_was_wanted(store: Store) -> None:
    first = plan(store, DEEP)
    assert actions(first) == [
        "create research", "create vision", "create vision-1", "create text", "create service", "create empty",
    ]  # fmt: skip
    assert first["summary"] == {"create": 6, "update": 0, "delete": 0, "unchanged": 0, "blocked": 0}
    assert actions(apply(store, DEEP, expect_revision=first["revision"])) == actions(first)
    assert cluster_views.get_cluster(store, "vision-1")["parent_id"] == "vision"
    assert cluster_views.get_cluster(store, "service")["borrow_limit"] == {"CPU": 0.5}

    exported = tree_files.export(store)
    for document in (DEEP, exported):
        again = plan(store, document, prune=True)
        assert (again["changes"], len(again["unchanged"])) == ([], 6)
    assert tree_files.export(store) == exported


def test_how_queues_are_served_is_part_of_the_wanted_state(store: Store) -> None:
    apply(store, DEEP)
    before = cluster_views.get_cluster(store, "research")
    assert (before["queue"]["order"], before["queue"]["half_life_s"]) == ("fair", 3600)
    document = tree_files.export(store)
    research = next(one for one in document["clusters"] if one["id"] == "research")
    research["queue"] = {"order": "fifo"}
    change = plan(store, document)["changes"]
    assert [one["cluster_id"] for one in change] == ["research"]
    assert (change[0]["before"]["queue"], change[0]["after"]["queue"]) == (
        {"order": "fair", "half_life_s": 3600},
        {"order": "fifo"},
    )
    apply(store, document)
    after = cluster_views.get_cluster(store, "research")["queue"]
    assert (after["order"], after["half_life_s"]) == ("fifo", None)
    assert cluster_views.get_cluster(store, "vision")["queue"]["weight"] == 3
    del research["queue"]
    apply(store, document)
    assert cluster_views.get_cluster(store, "research")["queue"]["order"] == "priority"


def test_an_exported_tree_rebuilds_another_state(store: Store, tmp_path: Path) -> None:
    apply(store, DEEP)
    exported = tree_files.export(store)
    assert apply(store, flat(), prune=True)["summary"]["delete"] == 6
    assert cluster_views.list_clusters(store, all_kinds=False) == []
    apply(store, exported)
    assert tree_files.export(store) == exported


def test_a_part_is_exported_with_its_parent(store: Store) -> None:
    apply(store, DEEP)
    part = tree_files.export(store, "vision")
    assert [(top["id"], top["parent"]) for top in part["clusters"]] == [("vision", "research")]
    assert plan(store, part)["unchanged"] == ["vision", "vision-1"]
    clusters.delete(store, "vision-1")
    assert actions(apply(store, part)) == ["create vision-1"]
    with pytest.raises(NotFound):
        tree_files.export(store, "nope")


def test_a_plan_changes_nothing(store: Store) -> None:
    apply(store, DEEP)
    before = rows_of(store)
    found = plan(store, flat(counts("research", a=1), counts("new", b=1)), prune=True)
    assert found["summary"]["blocked"] > 0
    assert rows_of(store) == before


def test_applying_what_is_there_writes_nothing(store: Store) -> None:
    apply(store, DEEP)
    before = rows_of(store)
    assert apply(store, DEEP)["changes"] == []
    assert rows_of(store) == before


def test_before_and_after(store: Store) -> None:
    apply(store, flat(counts("x", a=1)))
    change = plan(store, flat({**counts("x", a=2), "lending_limit": {"CPU": 1}}))["changes"][0]
    assert change["path"] == "clusters[0]"
    assert change["before"] == {"id": "x", "divisible": False, "replica_sets": {"a": 1}}
    assert change["after"] == {
        "id": "x", "divisible": False, "replica_sets": {"a": 2}, "lending_limit": {"CPU": 1},
    }  # fmt: skip


# ---- order ----

MOVES: dict[str, tuple[Document, Document, bool]] = {
    "nodes go from one to the next, whichever comes first": (
        flat(counts("x", a=1, b=2), counts("y", a=3)),
        flat(counts("x", a=3), counts("y", a=1, b=2)),
        False,
    ),
    "children shrink before their parent": (
        flat({**counts("x", a=4), "divisible": True, "children": [counts("y", a=3)]}),
        flat({**counts("x", a=1), "divisible": True, "children": [counts("y", a=1)]}),
        False,
    ),
    "parents grow before their children": (
        flat({**counts("x", a=1), "divisible": True, "children": [counts("y", a=1)]}),
        flat({**counts("x", a=4), "divisible": True, "children": [counts("y", a=4)]}),
        False,
    ),
    "what is deleted makes room": (
        flat({**counts("x", a=4), "divisible": True, "children": [counts("y", a=4)]}),
        flat(counts("z", a=4)),
        True,
    ),
    "slices go from one to the next": (
        flat({"id": "x", "spec": {"flexible_resource_min": {"CPU": 20}}}, {"id": "y", "spec": {}}),
        flat({"id": "x", "spec": {}}, {"id": "y", "spec": {"flexible_resource_min": {"CPU": 20}}}),
        False,
    ),
    "groups go from one to the next": (
        flat({"id": "x", "spec": {"fixed_size_nodes": [SPREAD, PAIR]}}, {"id": "y", "spec": {}}),
        flat(
            {"id": "x", "spec": {"fixed_size_nodes": [PAIR]}},
            {"id": "y", "spec": {"fixed_size_nodes": [SPREAD]}},
        ),
        False,
    ),
    "slices give way to whole nodes": (
        flat({"id": "x", "spec": {"flexible_resource_min": {"CPU": 24}}}),
        flat({"id": "x", "spec": {}}, counts("y", a=4, b=2)),
        True,
    ),
}


@pytest.mark.parametrize(("old", "new", "prune"), MOVES.values(), ids=MOVES)
def test_a_move_in_one_transaction(store: Store, old: Document, new: Document, prune: bool) -> None:
    for wanted, other in ((old, new), (new, old)):
        apply(store, wanted, prune=prune or wanted is new)
        found = plan(store, other, prune=prune)
        assert [change["blockers"] for change in found["changes"] if change["blockers"]] == []
        apply(store, other, prune=prune)
        assert plan(store, other, prune=prune)["changes"] == []
        assert prove(store) == []


def test_a_group_in_front_of_one_that_stays(store: Store) -> None:
    both = {"id": "x", "spec": {"fixed_size_nodes": [SPREAD, PAIR]}}
    apply(store, flat({"id": "x", "spec": {"fixed_size_nodes": [PAIR]}}))
    apply(store, flat(both))
    assert plan(store, flat(both))["changes"] == []
    apply(store, flat({"id": "x", "spec": {"fixed_size_nodes": [SPREAD]}}))
    assert cluster_views.get_cluster(store, "x")["total_resources"] == {"CPU": 2.0}


# ---- what is not named ----


def test_what_is_not_named_is_left_alone_unless_pruned(store: Store) -> None:
    apply(store, DEEP)
    only = flat(counts("new", b=1))
    assert actions(plan(store, only)) == ["create new"]
    assert actions(plan(store, only, prune=True)) == [
        "create new", "delete empty", "delete research", "delete service", "delete text", "delete vision",
        "delete vision-1",
    ]  # fmt: skip
    apply(store, only, prune=True)
    assert [vc["cluster_id"] for vc in cluster_views.list_clusters(store, all_kinds=False)] == ["new"]


def test_a_part_of_the_tree_prunes_only_there(store: Store) -> None:
    apply(store, DEEP)
    part = flat({"id": "new", "parent": "vision", "spec": {}})
    assert actions(plan(store, part, prune=True)) == ["create new", "delete vision-1"]
    beside = flat({"id": "new", "parent": "vision", "spec": {}}, {"id": "empty"})
    assert actions(plan(store, beside, prune=True)) == [
        "create new", "delete service", "delete text", "delete vision-1",
    ]  # fmt: skip


# ---- refusals ----


def test_all_or_nothing(store: Store) -> None:
    apply(store, flat(counts("x", a=1)))
    before = rows_of(store)
    with pytest.raises(Conflict, match="No enough nodes to add") as error:
        apply(store, flat(counts("x", a=2), counts("y", b=3)))
    assert error.value.problem.startswith("clusters[1] (y): ")
    assert error.value.details == {"replicaSetsToRecommend": {"b": 2}, "path": "clusters[1]"}
    assert rows_of(store) == before


def test_what_can_never_be_is_infeasible(store: Store) -> None:
    with pytest.raises(Infeasible) as error:
        apply(
            store, flat({"id": "x", "spec": {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 5}}]}]}})
        )
    assert error.value.details["path"] == "clusters[0]"


def test_a_guard_refuses_when_clusters_have_changed(store: Store) -> None:
    wanted = flat(counts("x", a=1))
    revision = plan(store, wanted)["revision"]
    clusters.create(store, "other", ClusterChange(replica_sets={"b": 1}))
    with pytest.raises(Conflict, match="have changed since the plan") as error:
        apply(store, wanted, expect_revision=revision)
    assert error.value.details == {"revision": plan(store, wanted)["revision"]}
    done = apply(store, wanted, expect_revision=plan(store, wanted)["revision"])
    assert done["revision"] == plan(store, wanted)["revision"]


def test_jobs_and_states_are_no_change(store: Store) -> None:
    apply(store, DEEP)
    revision = plan(store, DEEP)["revision"]
    submitting.submit(store, JobRequest(argv=("true",), cluster="research", cwd="/"), environment={})
    assert plan(store, DEEP)["revision"] == revision


BLOCKED: dict[str, tuple[Document, list[str]]] = {
    "another kind": (
        flat({**counts("x", a=1), "divisible": True}),
        ["requested attributes are incompatible"],
    ),
    "another form": (flat({"id": "x", "spec": {}}), ["made from replica sets"]),
    "a shrink below what is used": (
        flat({**counts("y"), "divisible": True}),
        ["No enough nodes to remove"],
    ),
    "what lies in something blocked": (
        flat({**counts("z", a=9), "divisible": True, "children": [counts("zz", a=1)]}),
        ["No enough nodes to add", "cluster z is blocked"],
    ),
}


@pytest.mark.parametrize(("wanted", "blockers"), BLOCKED.values(), ids=BLOCKED)
def test_blockers_are_part_of_the_plan(store: Store, wanted: Document, blockers: list[str]) -> None:
    apply(
        store,
        flat(counts("x", a=1), {**counts("y", a=1), "divisible": True, "children": [counts("y1", a=1)]}),
    )
    found = plan(store, wanted)
    assert found["summary"]["blocked"] == len(blockers)
    for change, blocker in zip(found["changes"], blockers, strict=True):
        assert blocker in change["blockers"][0]
    with pytest.raises(Conflict):
        apply(store, wanted)


def test_what_is_used_is_not_pruned(store: Store) -> None:
    apply(store, flat(counts("x", a=1), counts("y", a=1)))
    submitted = submitting.submit(store, JobRequest(argv=("true",), cluster="y", cwd="/"), environment={})
    found = plan(store, flat(), prune=True)
    assert [change["blockers"] for change in found["changes"]] == [[], [f"job {submitted['submission_id']}"]]
    with pytest.raises(Conflict, match="still in use") as refused:
        apply(store, flat(), prune=True)
    assert (
        refused.value.fix
        == "`vctl vc delete y --drain` waits for them, `vctl vc delete y --force` stops them"
    )


def test_places_that_cannot_be(store: Store) -> None:
    apply(store, DEEP)
    with pytest.raises(Conflict, match="a cluster cannot move to another parent") as moved:
        plan(store, flat({"id": "text", "spec": {}}))
    assert moved.value.details["path"] == "clusters[0]"
    (top, *_) = DEEP["clusters"]
    with pytest.raises(Conflict, match=f"{top['id']} is in primary, and"):
        plan(store, flat({"id": "other", "divisible": True, "children": [top]}))
    with pytest.raises(NotFound):
        plan(store, flat({"id": "new", "parent": "nope"}))
    with pytest.raises(NotFound):
        tree_files.export(store, "service##job")
    submitting.submit(store, JobRequest(argv=("true",), cluster="service", cwd="/"), environment={})
    clusters.delete(store, "service", drain=True)
    with pytest.raises(Conflict, match="is being removed"):
        plan(store, DEEP)
    assert "service" not in [top["id"] for top in tree_files.export(store)["clusters"]]


# ---- any tree after any other ----


def random_level(random: Random, names: list[str], depth: int) -> list[Document]:
    level = []
    for _ in range(random.randint(0, 3)):
        if not names:
            break
        one: Document = {"id": names.pop(random.randrange(len(names)))}
        form = one["id"][0]  # a cluster keeps its form and its kind
        one["divisible"] = one["id"][1] == "d"
        if form == "w":
            one["replica_sets"] = {"a": random.randint(0, 2), "b": random.randint(0, 1)}
        else:
            one["spec"] = {
                "flexible_resource_min": {"CPU": random.randint(0, 4) / 2},
                "fixed_size_nodes": random.sample([SPREAD, PAIR], random.randint(0, 2)),
            }
        if random.random() < 0.3:
            one["lending_limit"] = {"CPU": 1}
        if one["divisible"] and depth < 3:
            one["children"] = random_level(random, names, depth + 1)
        level.append(one)
    return level


def random_tree(random: Random) -> Document:
    return flat(
        *random_level(random, [f"{form}{kind}{n}" for form in "ws" for kind in "di" for n in range(2)], 0)
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_plan_knows_what_apply_does(store: Store, seed: int) -> None:
    random = Random(seed)
    done = 0
    for _ in range(25):
        wanted = random_tree(random)
        before = rows_of(store)
        try:
            found = plan(store, wanted, prune=True)
        except Conflict:  # it lies somewhere else
            continue
        assert rows_of(store) == before
        if found["summary"]["blocked"]:
            with pytest.raises((Conflict, Infeasible)):
                apply(store, wanted, prune=True)
            assert rows_of(store) == before
        else:
            applied = apply(store, wanted, prune=True, expect_revision=found["revision"])
            assert applied["changes"] == found["changes"]
            assert plan(store, wanted, prune=True)["changes"] == []
            assert plan(store, tree_files.export(store), prune=True)["changes"] == []
            assert prove(store) == []
            done += bool(found["changes"])
    assert done > 3
