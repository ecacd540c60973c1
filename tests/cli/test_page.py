"""Tables, bars, the tree and the picture of ``vctl status``, at 80 columns and without an edge."""

from typing import Any

import pytest

from vctl.cli import status_view, tree
from vctl.cli.page import Cell, Column, Page, cut, wide

GIB = 2**30
COLUMNS = [Column("A", "a"), Column("B", "b", right=True), Column("C", "c", optional=True, give=True)]


def branch(
    cluster_id: str, depth: int, kind: str, used: float, total: float, running: int = 0
) -> dict[str, Any]:
    return {
        "cluster_id": cluster_id, "parent_id": None, "kind": kind, "depth": depth,
        "jobs": {"running": running, "pending": 0},
        "used": {"CPU": used}, "total": {"CPU": total, "memory": 16 * GIB},
    }  # fmt: skip


BRANCHES = [
    branch("kPrimaryClusterID", 0, "primary", 9, 32, 2),
    branch("team-a", 1, "logical", 8, 8, 1),
    branch("team-a##train", 2, "job", 8, 8),
    branch("team-b", 1, "logical", 0, 4),
]
STATUS: dict[str, Any] = {
    "nodes": {"ALIVE": 3, "DRAINING": 1, "DEAD": 0},
    "resources": {"CPU": {"used": 9, "total": 32.0}, "memory": {"used": 3.5 * GIB, "total": 64 * GIB}},
    "clusters": BRANCHES,
    "queue": {
        "pending": 3,
        "running": 2,
        "head": [
            {"submission_id": "big", "priority": 5, "state_reason": "InsufficientResources",
             "message": "needs 40 CPU, 23 of 32 free, held by train and many others", "queue_position": 1},
        ],
    },
    "recent_failures": [
        {"submission_id": "bad", "state_reason": "NonZeroExit", "exit_code": 2, "message": "exit code 2",
         "ended_at": "2025-11-20T12:00:00.000000Z"},
    ],
    "scheduler": {"running": True, "last_beat": None, "last_round_ms": 3.2, "rounds": 8},
}  # fmt: skip


def test_a_table_aligns_and_leaves_out_what_is_empty() -> None:
    lines = list(Page().table(COLUMNS, [{"a": "x", "b": 10}, {"a": "long", "b": None}]))
    assert lines == ["A      B", "x     10", "long"]


def test_wide_letters_count_twice() -> None:
    assert wide("日本") == 4
    lines = list(Page().table(COLUMNS[:2], [{"a": "日本", "b": 1}, {"a": "abcd", "b": 2}]))
    assert lines == ["A     B", "日本  1", "abcd  2"]


def test_a_table_fits_the_page_and_cuts_what_gives_way() -> None:
    lines = list(Page(width=30).table(COLUMNS, [{"a": "name", "b": 1, "c": "x" * 100}]))
    assert all(wide(line) <= 30 for line in lines)
    assert lines[1].startswith("name  1  xxx")
    assert lines[1].endswith("…")


def test_a_table_leaves_out_what_can_be_spared_and_keeps_the_key() -> None:
    columns = [
        Column("KEY", "key"),
        Column("ONE", "one", spare=True),
        Column("TWO", "two", spare=True),
        Column("X", "x"),
    ]
    item = {"key": "k" * 20, "one": "1" * 10, "two": "2" * 10, "x": "x" * 10}
    assert list(Page(width=80).table(columns, [item]))[1].split() == [
        item["key"],
        item["one"],
        item["two"],
        item["x"],
    ]
    assert list(Page(width=50).table(columns, [item]))[1].split() == [item["key"], item["one"], item["x"]]
    assert list(Page(width=32).table(columns, [item]))[1].split() == [item["key"], item["x"]]
    assert list(Page(width=31).table(columns, [item]))[1].split() == [item["key"], "x" * 8 + "…"]
    assert list(Page(width=10).table(columns, [item]))[1].split() == [item["key"], "x" * 7 + "…"]


def test_colour_only_where_wanted() -> None:
    columns = [Column("A", lambda item: Cell(item["a"], "red"))]
    assert list(Page(colour=True, header=False).table(columns, [{"a": "x"}])) == ["\x1b[31mx\x1b[0m"]
    assert list(Page(header=False).table(columns, [{"a": "x"}])) == ["x"]


@pytest.mark.parametrize(
    ("used", "total", "bar"),
    [(0, 4, "...."), (1, 4, "#..."), (0.01, 4, "#..."), (4, 4, "####"), (1, 0, "....")],
)
def test_bars(used: float, total: float, bar: str) -> None:
    assert Page(fine=False).bar(used, total, 4) == bar


def test_cut() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("abc", 3) == "abc"


def test_the_tree_shows_who_is_in_whom() -> None:
    lines = list(tree.draw(Page(), BRANCHES))
    assert [line.split("█")[0].split("░")[0].rstrip() for line in lines] == [
        "primary", "├─ team-a", "│  └─ team-a##train", "└─ team-b",
    ]  # fmt: skip
    assert lines[0].endswith("CPU 9/32  mem 0B/16GiB  2 running")
    assert lines[1].endswith("logical, 1 running")


def nested(cluster_id: str, kind: str, total: float, free: float) -> dict[str, Any]:
    resources = {"total_resources": {"CPU": total}, "available_resources": {"CPU": free}}
    return {"cluster_id": cluster_id, "kind": kind, **resources}


def test_a_nested_cluster_becomes_branches() -> None:
    root = {
        **nested("a", "primary", 4.0, 1.0),
        "tree": [nested("b", "job", 3.0, 3.0)],
    }  # fmt: skip
    found = tree.flatten(root)
    assert [(b["cluster_id"], b["depth"], b["used"]["CPU"]) for b in found] == [("a", 0, 3.0), ("b", 1, 0.0)]


@pytest.mark.parametrize("fine", [True, False])
def test_status_fits_80_columns(fine: bool) -> None:
    long = [*BRANCHES, branch("kPrimaryClusterID##" + "n" * 60, 1, "job", 1, 1)]
    lines = list(status_view.draw(Page(width=80, fine=fine), {**STATUS, "clusters": long}))
    assert max(wide(line) for line in lines) <= 80
    assert fine or all(line.isascii() for line in lines)


def test_status_says_everything_when_piped() -> None:
    text = "\n".join(status_view.draw(Page(), STATUS))
    for words in (
        "4: 3 ALIVE, 1 DRAINING", "running, last round 3.2 ms", "9 of 32 used", "3.5GiB of 64GiB used",
        "Queue: 3 waiting, 2 running", "InsufficientResources", "held by train and many", "NonZeroExit",
    ):  # fmt: skip
        assert words in text
    assert "\x1b" not in text


def test_status_of_nothing() -> None:
    empty: dict[str, Any] = {
        "nodes": {}, "resources": {}, "clusters": [], "queue": {"pending": 0, "running": 0, "head": []},
        "recent_failures": [], "scheduler": {"running": False},
    }  # fmt: skip
    assert list(status_view.draw(Page(), empty)) == [
        "Nodes      0", "Scheduler  not running", "", "Queue: 0 waiting, 0 running",
    ]  # fmt: skip
