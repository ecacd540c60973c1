"""Rows whose ids differ anywhere can be told apart on narrow screens, and say the number of the job (spec 13)."""

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from rich.cells import cell_len

from tests.specification import spec
from vctl.cli import columns, status_view, tree
from vctl.cli.cut import apart
from vctl.cli.screen import Screen

pytestmark = spec("13.screen")

WIDTHS = [60, 79, 80, 100, 130]
COUNT = 300
NAMES = {
    "in the middle": [f"experiment-lr-{n:03d}-long-running-sweep" for n in range(COUNT)],
    "in two places": [f"experiment-lr-{n // 20:02d}-with-seed-{n % 20:02d}-long-running-sweep" for n in range(COUNT)],
    "in families": [f"{('ablation', 'experiment', 'evaluation')[n % 3]}-of-model-{n // 3}-sweep" for n in range(COUNT)],
    "at the end": [f"a-very-long-name-of-an-experiment-of-somebody-{n}" for n in range(COUNT)],
    "at the start": [f"{n}-a-very-long-name-of-an-experiment-of-somebody" for n in range(COUNT)],
}  # fmt: skip
THEN = "2026-01-31T08:09:10.000000Z"


def job(number: int, name: str) -> dict[str, Any]:
    return {
        "job_id": number, "submission_id": name, "id": name, "kind": "job", "name": None, "user": "bob",
        "status": "PENDING", "state": "RUNNING", "state_reason": "InsufficientResources", "resources": {"CPU": 1.0},
        "message": "needs 1 CPU on one node", "parent_cluster_id": "kPrimaryClusterID", "priority": 0,
        "queue_position": number, "entrypoint": f"python train.py --config configs/{name}.yaml", "members": 1,
        "exit_code": 1, "node_ids": ["gpu-box-00"], "run_s": 61.0, "time_left_s": 3600.0, "array": None,
        "started_at": THEN, "ended_at": THEN, "submitted_at": THEN,
        "seq": number, "at": THEN, "object": "job", "object_id": name, "data": {"reason": "StoppedByUser"},
    }  # fmt: skip


LISTS: Mapping[str, list[Any]] = {
    "ps": columns.JOBS,
    "timeline": columns.TIMELINE,
    "events": columns.EVENTS,
    "running": status_view._RUNNING,
    "queue": status_view._QUEUE,
    "failures": status_view._FAILURES,
}  # fmt: skip


def drawn(screen: Screen, shown: list[Any], items: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The cells of each row by their headings."""
    lines = list(screen.table(shown, items))
    width = screen.width
    assert width is None or max(map(cell_len, lines)) <= width
    headings = [column.heading for column in shown if width is None or column.at <= width]
    if width in (60, 80):
        assert lines[0].split() == headings
    return [
        dict(zip(headings, re.split(r"(?<!\d) +|(?<=\d) +(?!\d\d:)", line.strip()), strict=False))
        for line in lines[1:]
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("shown", LISTS.values(), ids=LISTS)
def test_each_row_has_its_number_and_an_id_of_its_own(shown: list[Any], names: list[str], width: int) -> None:
    items = [job(number, name) for number, name in enumerate(names, 1001)]
    if shown is columns.EVENTS:
        items = [{**item, "kind": "job.submitted"} for item in items]
    rows = drawn(Screen(width=width), shown, items)
    key = next(column.heading for column in shown if column.rank == 2)
    number = next(column.heading for column in shown if column.show == "job_id")
    assert [row[number] for row in rows] == [str(item["job_id"]) for item in items]
    assert len({row[key] for row in rows}) == COUNT


@pytest.mark.parametrize("width", [60, 80])
def test_a_state_is_never_cut_beside_a_whole_reason(width: int) -> None:
    rows = drawn(
        Screen(width=width), columns.JOBS, [job(n, name) for n, name in enumerate(NAMES["in the middle"])]
    )
    assert {row["STATUS"] for row in rows} == {"PENDING"}
    assert {row["REASON"] for row in rows} == {"InsufficientResources"}


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_branches_of_a_tree_can_be_told_apart(names: list[str], width: int) -> None:
    """The last branch is drawn with another line and is cut as its sisters are."""
    branches = [
        {"cluster_id": f"kPrimaryClusterID##{name}" if depth else "kPrimaryClusterID", "depth": depth,
         "kind": "job" if depth else "primary", "jobs": {"running": 0, "pending": 0}, "used": {"CPU": 1},
         "total": {"CPU": 1, "memory": 2**34}}
        for name, depth in [("", 0), *((name, 1) for name in names)]
    ]  # fmt: skip
    lines = list(tree.draw(Screen(width=width), branches))[2:]
    assert max(map(cell_len, lines)) <= width
    cuts = [line.lstrip("├└─ ").split()[0] for line in lines]
    assert len(set(cuts)) == COUNT
    if names is NAMES["in the middle"]:
        assert cuts[-1].replace("299", "298") == cuts[-2]


def test_a_cut_is_no_longer_than_its_width_and_keeps_what_differs() -> None:
    chance = random.Random(28)
    for _ in range(2000):
        head, tail = (chance.choice(["", "ab", "experiment-with-lr", "a.b_c-" * 5]) for _ in range(2))
        cores = [
            "".join(chance.choices("01-x", k=chance.randint(0, 6))) for _ in range(chance.randint(1, 40))
        ]
        names = sorted({head + core + tail for core in cores} - {""})
        width = chance.randint(1, 40)
        cuts = apart(names, width, "…")
        assert set(cuts) == {name for name in names if len(name) > width}
        assert all(len(cut) <= width for cut in cuts.values())
        assert all(cut.count("…") <= 3 and "……" not in cut for cut in cuts.values())
        if width >= 10:
            assert len(set(cuts.values())) == len(cuts), (names, width, cuts)


def test_what_is_common_is_cut_and_what_differs_is_kept() -> None:
    names = ["experiment-lr-0.001-long-running-sweep", "experiment-lr-0.002-long-running-sweep"]
    assert list(apart(names, 14, "…").values()) == ["expe…0.001-l…p", "expe…0.002-l…p"]
    assert list(apart(["a" * 30], 9, "~").values()) == ["aaaa~aaaa"]
    assert apart(["日本" * 30, "short"], 9, "…") == {}
