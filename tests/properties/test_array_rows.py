"""Members of an array that wait alike share a row. Nothing that is seen, and nothing that is done, depends on that.

The same random deeds are done in two state directories: in one each member has a row of its own, in the other nearly
none has. All forms, lists, positions and errors are compared after each deed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from vctl.core.resources import CPU, SCALE
from vctl.daemon.following import FollowedState
from vctl.engine import array_limits
from vctl.engine.rules import gates
from vctl.errors import VctlError
from vctl.ops import cluster_views, clusters, job_edits, leases, nodes, overview, submitting, views
from vctl.ops import jobs as job_ops
from vctl.ops.prove import prove
from vctl.ops.why import why
from vctl.scheduler.cycle import MOST_STARTS
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array, parse_dependency
from vctl.store import folded
from vctl.store.store import Store

pytestmark = spec("8.arrays", "8.after", "13.batch")

ALL_ROWS, FEW_ROWS = 10_000, 2
SEEDS, DEEDS = 8, 40
ARRAYS = ["0-6", "1-19:3", "5-11%2", "0-3", "2", "0-5%1"]
FILTERS = [
    [], ["status=PENDING"], ["status=STOPPED"], ["submission_id=a0_4"], ["submission_id!=A1_4"], ["job_id>=9"],
    ["job_id=12"], ["job_id!=12"], ["cluster_id=primary##a0_5"], ["array_id=a1"], ["array_id!=a1"], ["priority>=1"],
    ["state_reason=Held"], ["name=x", "job_id>=4"], ["state_reason=Dependency", "submission_id!=a1_4"],
]  # fmt: skip


class Pair:
    """Two state directories in which the same is done."""

    def __init__(self, home: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 1_700_000_000_000_000_000
        self.stores: list[Store] = []
        self.names: list[str] = []
        self.deeds: list[str] = []
        for name, window in (("all", ALL_ROWS), ("few", FEW_ROWS)):
            store = Store.open(home / name)
            store.clock = lambda: self.now
            self.stores.append(store)
            with rows_for(window):
                nodes.add(store, resources={CPU: 2 * SCALE}, node_id="n", template="t")

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def both(self, deed: Callable[[Store], object]) -> list[object]:
        found = []
        for store, window in zip(self.stores, (ALL_ROWS, FEW_ROWS), strict=True):
            with rows_for(window):
                found.append(said(store, deed))
        return found

    def do(self, what: str, deed: Callable[[Store], object]) -> None:
        self.deeds.append(what)
        one, other = self.both(deed)
        assert other == one, self.deeds

    def step(self) -> None:
        draw, self.now = self.dice, self.now + 10**9
        members = [
            name for row in self.stores[0].rows("SELECT * FROM jobs") for _, name in folded.members(row)
        ]
        arrays = self.stores[0].column("SELECT array_id FROM arrays")
        what = draw.choice(
            [
                "submit",
                "hold",
                "release",
                "edit",
                "stop",
                "delete",
                "member",
                "array",
                "unfold",
                "queue",
                "prune",
            ]
        )
        name = draw.choice(members or ["none"]) if draw.random() < 0.6 else draw.choice(arrays or ["none"])
        if what in ("submit", "array", "member"):
            number = len(self.names)
            self.names.append(f"a{number}")
            after = (
                f"{draw.choice(['ok', 'any', 'notok'])}:{name}" if draw.random() < 0.3 and members else None
            )
            request = JobRequest(
                argv=("x",), submission_id=f"a{number}", cwd="/", priority=draw.choice([0, 0, 1]), grace_s=0,
                hold=draw.random() < 0.2, time_limit_s=draw.choice([None, 5.0]),
                begin_at=self.now / 1e9 + 50 if draw.random() < 0.1 else None,
                after=() if after is None else (parse_dependency(after),),
                array=None if what == "submit" else parse_array(draw.choice(ARRAYS)),
            )  # fmt: skip
            self.do(
                f"submit {number} {request.array} {after}",
                lambda store: submitting.submit(store, request, environment={}),
            )
        elif what == "hold":
            self.do(f"hold {name}", lambda store: job_edits.hold(store, name))
        elif what == "release":
            self.do(f"release {name}", lambda store: job_edits.release(store, name))
        elif what == "edit":
            change = draw.choice([{"priority": 2}, {"name": "x"}, {"time_limit_s": 9.0}])
            self.do(f"edit {name} {change}", lambda store: job_edits.edit(store, name, change))
        elif what == "stop":
            self.do(f"stop {name}", lambda store: job_ops.stop(store, name))
        elif what == "delete":
            self.do(f"delete {name}", lambda store: job_ops.delete(store, name))
        elif what == "prune":
            self.do(
                "prune",
                lambda store: [job_ops.prune(store, 5, dry_run=tried)["jobs"] for tried in (True, False)],
            )
        elif what == "queue":
            order = draw.choice(["priority", "fifo", "fair", "longest"])
            self.do(f"order {order}", lambda store: ordered(store, order))
        else:  # as a scheduler does it
            self.deeds.append("unfold")
            state = FollowedState.load(self.stores[1])
            with rows_for(FEW_ROWS), self.stores[1].transaction():
                state.emit_each(self.stores[1], gates.unfold_members(state))

    def compare(self) -> None:
        for question in self.questions():
            one, other = self.both(question)
            assert other == one, self.deeds
        assert prove(self.stores[1]) == [], self.deeds

    def questions(self) -> Iterator[Callable[[Store], object]]:
        draw = self.dice
        for filters in draw.sample(FILTERS, 6):  # over a run each of them with each limit, several times
            limit, every = draw.choice((None, 1, 4)), draw.random() < 0.5
            yield lambda store, f=filters, n=limit, a=every: seen(
                job_ops.list_jobs(store, all=a, filters=f, limit=n)
            )
        yield lambda store: seen(job_ops.list_jobs(store, all=True, members=False, limit=3))
        yield lambda store: views.summary(store, "jobs")
        yield leases.demand
        yield lambda store: cluster_views.get_cluster(store, "primary")
        # of members that failed together in one row, only the first is shown
        yield lambda store: {k: v for k, v in overview.status(store).items() if k != "recent_failures"}
        names = [name for row in self.stores[0].rows("SELECT * FROM jobs") for _, name in folded.members(row)]
        for name in draw.sample(names, min(4, len(names))):
            yield lambda store, name=name: job_ops.get_job(store, name)
            yield lambda store, name=name: job_ops.get_job(store, name[:-1])  # a prefix
            yield lambda store, name=name: why(store, name)["ahead"]
        yield lambda store: job_ops.get_job(store, "last")


def seen(found: tuple[Any, int]) -> object:
    return [dict(form) for form in found[0]], found[1]


def ordered(store: Store, order: str) -> object:
    return clusters.update(store, "primary", ClusterChange(queue={"order": order}))["cluster_id"]


class rows_for:  # noqa: N801
    """While this lasts, arrays have so many rows for members that are next."""

    def __init__(self, window: int) -> None:
        self.window = window

    def __enter__(self) -> None:
        self.before, array_limits.WINDOW = array_limits.WINDOW, self.window

    def __exit__(self, *_: object) -> None:
        array_limits.WINDOW = self.before


def said(store: Store, deed: Callable[[Store], object]) -> object:
    """What is answered, or the error, without the name of the directory."""
    try:
        answer = deed(store)
    except VctlError as error:
        answer = [
            type(error).__name__,
            error.problem.partition(" is ambiguous: ")[0],
            error.fix,
        ]  # some are named
    return json.loads(json.dumps(answer, default=str).replace(str(store.home), "HOME"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_depends_on_the_rows_of_an_array(tmp_path: Path, seed: int) -> None:
    pair = Pair(tmp_path, seed)
    try:
        for _ in range(DEEDS):
            pair.step()
            pair.compare()
        assert pair.stores[1].value("SELECT count(*) FROM jobs") < pair.stores[0].value(
            "SELECT count(*) FROM jobs"
        )
    finally:
        pair.close()


def test_a_round_does_not_run_out_of_members() -> None:
    """Else jobs behind the array would start before members of it."""
    assert array_limits.WINDOW // 2 >= MOST_STARTS


def test_a_row_that_stands_for_too_many_is_found(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store, rows_for(FEW_ROWS):
        nodes.add(store, resources={CPU: SCALE}, node_id="n", template="t")
        for name in ("a", "b"):
            request = JobRequest(argv=("x",), submission_id=name, cwd="/", array=parse_array("0-9"))
            submitting.submit(store, request, environment={})
        assert prove(store) == []
        store.db.execute("UPDATE jobs SET members = members + 1 WHERE submission_id = 'a_2'")
        assert prove(store) == ["job a_2 stands for 9 members of array a, which cannot be"]
        store.db.execute("UPDATE jobs SET members = members - 1, attempt = 1 WHERE submission_id = 'a_2'")
        assert prove(store) == ["job a_2 stands for 8 members of array a, which cannot be"]
