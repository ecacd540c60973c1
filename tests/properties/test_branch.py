"""A part of the tree answers as the whole tree, in random trees: the same plan, or the same refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World
from vctl.core.clusters import PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.jobs import INSUFFICIENT
from vctl.core.resources import CPU, GPU, MEMORY, SCALE
from vctl.core.values import replace
from vctl.errors import VctlError
from vctl.ops import cluster_changes, clusters, feasible, nodes, situations, submitting, why
from vctl.ops.prove import prove
from vctl.scheduler.explain.whatif import NOTHING, Trials
from vctl.scheduler.explain.whatif_search import helpful
from vctl.scheduler.plan import Wait
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.store import clusters as table
from vctl.store import partial, queues

pytestmark = spec("7.create")

GIB = 2**30 * SCALE
STEPS = 14


class Trees:
    """A state with clusters of all kinds that changes at random."""

    def __init__(self, world: World, dice: Random) -> None:
        self.world, self.store, self.dice, self.numbers = world, world.store, dice, count()
        many, gpus = dice.randint(3, 9), dice.choice((0, 0, 2))
        amounts = {CPU: 4 * SCALE, MEMORY: 8 * GIB} | ({GPU: gpus * SCALE} if gpus else {})
        nodes.add(self.store, resources=amounts, count=many, template="t")
        if dice.random() < 0.4:
            nodes.add(self.store, resources={CPU: 4 * SCALE}, count=4, template="u", labels={"zone": "a"})
        clusters.create(
            self.store, "big", ClusterChange(divisible=True, replica_sets={"t": dice.randint(1, many - 2)})
        )
        self.parents, self.children = [PRIMARY, "big"], list[str]()
        if dice.random() < 0.5:
            slices = ClusterSpec(
                groups=dice.choice(((self.group(),) * 3, tuple(self.group() for _ in range(4)))),
                flexible=dice.random() < 0.3,
            )
            self.tried(
                lambda: clusters.create(self.store, "sliced", ClusterChange(divisible=True, spec=slices))
            )
            self.parents += ["sliced"] if table.get(self.store, "sliced") is not None else []

    def tried(self, act: Callable[[], object]) -> None:
        with suppress(VctlError):
            act()

    def amounts(self) -> dict[str, int]:
        if self.dice.random() < 0.03:
            return {}
        found = {CPU: self.dice.choice((1, 2, 3, 5, 8, 10, 15, 20, 30, 40)) * SCALE // 10}
        if self.dice.random() < 0.35:
            found[MEMORY] = self.dice.randint(1, 4) * GIB
        if self.dice.random() < 0.15:
            found[GPU] = self.dice.choice((5, 10)) * SCALE // 10
        return found

    def group(self) -> Group:
        policy = self.dice.choice(("PACK", "SPREAD", "STRICT_SPREAD", "STRICT_PACK"))
        return Group((FixedNode(self.amounts()),) * self.dice.randint(1, 4), policy)

    def spec(self) -> ClusterSpec:
        least = self.amounts() if self.dice.random() < 0.7 else {}
        least = {name: amount * self.dice.choice((1, 1, 2, 4)) for name, amount in least.items()}
        groups = tuple(self.group() for _ in range(self.dice.choice((0, 0, 1, 2))))
        return ClusterSpec(
            least, None, groups, flexible=bool(least) or self.dice.random() < 0.5 or not groups
        )

    def submit(self) -> None:
        there = [*self.parents, *self.children]
        fixed = ClusterSpec(groups=(self.group(),), flexible=False)
        request = JobRequest(argv=("x",), cluster=self.dice.choice(there), spec=fixed, cwd="/")
        self.tried(lambda: submitting.submit(self.store, request, environment={"PATH": "/bin"}))
        self.world.turn()

    def end_one(self) -> None:
        if running := self.world.processes.running():
            self.world.processes.end(self.dice.choice(running), 0)
            self.world.turn()

    def drain(self) -> None:
        there = self.store.column("SELECT node_id FROM nodes WHERE state = 'ALIVE'")
        if len(there) > 2:
            self.tried(lambda: nodes.drain(self.store, self.dice.choice(there)))


def answer(trees: Trees, change: Callable[[], Any], name: str) -> object:
    """The virtual nodes of a cluster after a change that is taken back, or its refusal."""
    try:
        with suppress(RuntimeError), trees.store.transaction():
            change()
            found = [tuple(row) for row in table.vnode_rows(trees.store, name)]
            raise RuntimeError  # taken back
        return found
    except VctlError as refused:
        return type(refused), str(refused), refused.fix, refused.details


def change_one(trees: Trees, done: Counter[str]) -> None:
    """Create or change a cluster, with the part of the tree and with the whole one."""
    wanted = ClusterChange(spec=trees.spec(), divisible=True)
    if trees.children and trees.dice.random() < 0.4:
        name = trees.dice.choice(trees.children)

        def change(**given: Any) -> object:
            return cluster_changes.update(trees.store, name, wanted, **given)
    else:
        name, parent_id = f"c{next(trees.numbers)}", trees.dice.choice(trees.parents)

        def change(**given: Any) -> object:
            return cluster_changes.create(trees.store, name, wanted, parent_id=parent_id, owner=None, **given)

    whole = answer(trees, lambda: change(ledger=feasible.whole_tree(trees.store)), name)
    loads = done["whole trees"]
    part = answer(trees, change, name)
    assert part == whole
    done["with a part"] += isinstance(part, list) and loads == done["whole trees"]
    done["refused"] += isinstance(part, tuple)
    if isinstance(part, list):
        with trees.store.transaction():
            change()
        trees.children += [] if name in trees.children else [name]


def judge_one(trees: Trees, done: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge whether a job could ever run, with a few of the equal nodes and with all nodes."""
    parent_id = trees.dice.choice([*trees.parents, *trees.children])
    asked = ClusterSpec(groups=tuple(trees.group() for _ in range(trees.dice.randint(1, 3))), flexible=False)

    def judge() -> object:
        try:
            return feasible.check_feasible(trees.store, parent_id, asked, {})
        except VctlError as refused:
            return str(refused), refused.fix, refused.details

    few = judge()
    with monkeypatch.context() as patch:
        some = partial.load_some
        patch.setattr(partial, "load_some", lambda store, name, _: some(store, name, 1 << 40))
        samples = nodes.table.samples
        patch.setattr(nodes.table, "samples", lambda store, _: samples(store, 1 << 40))
        assert judge() == few
    done["never" if few else "may run"] += 1


@pytest.mark.parametrize(
    "seeds", [range(16), pytest.param(range(16, 60), marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_a_part_of_the_tree_answers_as_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    done: Counter[str] = Counter()
    whole = feasible.whole_tree

    def counted(store: Any) -> Any:
        done["whole trees"] += 1
        return whole(store)

    monkeypatch.setattr(feasible, "whole_tree", counted)
    for seed in seeds:
        dice = Random(seed)
        with World(tmp_path / str(seed)) as world:
            trees = Trees(world, dice)
            for _ in range(STEPS):
                dice.choice((trees.submit, trees.submit, trees.end_one, trees.drain))()
                change_one(trees, done)
                judge_one(trees, done, monkeypatch)
            assert prove(trees.store) == []
    assert min(done["with a part"], done["refused"], done["never"], done["may run"]) > len(seeds)


def shown(wait: Wait) -> str:
    """The message of a wait as users see it: that of a lack of resources is counted anew."""
    return "" if wait.reason == INSUFFICIENT else wait.message


@spec("11.why")
def test_what_waits_elsewhere_changes_no_answer_about_a_job(tmp_path: Path) -> None:
    """Neither whether and where it starts in the next round, nor which changes start it."""
    done: Counter[str] = Counter()
    for seed in range(25):
        with World(tmp_path / str(seed)) as world:
            trees, store = Trees(world, Random(seed)), world.store
            for _ in range(4):
                change_one(trees, Counter())
            for _ in range(2 * STEPS):
                trees.dice.choice((trees.submit, trees.submit, trees.submit, trees.end_one))()
            for job in list(queues.queued(store))[-8:]:
                with store.snapshot():
                    branch = situations.ledger(store, job.parent_id)
                    near, everything = situations.load(store, job.parent_id, branch), situations.load(store)
                done["a branch"] += len(branch.vnodes) < len(everything.ledger.vnodes)
                done["smaller"] += len(near.pending) < len(everything.pending)
                found = []
                for situation in (near, everything):
                    trials = Trials(situation, job, budget=10**6)
                    one = trials.outcome(replace(NOTHING, job=job), preempts=True)
                    reported = None if one.wait is None else (one.wait.reason, shown(one.wait))
                    changes, _ = helpful(trials, situations.kinds_of_nodes(trees.store))
                    found.append((one.start, reported, one.preempts, changes))
                assert found[0] == found[1], (seed, job.submission_id)
                done["with a change"] += bool(found[0][-1])
            for job in list(queues.queued(store))[-2:]:
                near_said = why.why(store, job.job_id)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(situations, "branch_of", lambda *_: PRIMARY)
                    assert near_said == why.why(store, job.job_id), (seed, job.submission_id)
    assert done["a branch"] > 20 and done["smaller"] > 20 and done["with a change"] > 20, done
