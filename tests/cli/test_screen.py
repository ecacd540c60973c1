"""Tables, bars, the tree and the picture of ``vctl status`` as rich draws them, with and without an edge (spec 13)."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from rich.cells import cell_len

from tests.specification import spec
from vctl.cli import columns, status_view, tree
from vctl.cli.screen import Drawn, Screen
from vctl.cli.table import GIVES, Bar, Cell, Column, key, matters

pytestmark = spec("13.screen")

GIB = 2**30
COLUMNS = [Column("A", "a"), Column("B", "b", right=True), matters("C", "c")]


def table(screen: Screen, columns: list[Column], *items: dict[str, Any]) -> list[str]:
    return list(screen.table(columns, items))


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
    "resources": {
        "CPU": {"used": 9, "reserved": 12, "lent": 0, "idle": 3, "total": 32.0},
        "memory": {"used": 3.5 * GIB, "reserved": 4 * GIB, "lent": 0, "idle": 0.5 * GIB, "total": 64 * GIB},
    },
    "clusters": BRANCHES,
    "running_jobs": [
        {"submission_id": "train", "user": "ana", "parent_cluster_id": "kPrimaryClusterID", "node_ids": ["n1", "n2"],
         "resources": {"CPU": 8.0}, "run_s": 3661.0, "time_left_s": 59.0, "entrypoint": "python train.py"},
    ],
    "queue": {
        "pending": 3,
        "running": 2,
        "head": [
            {"submission_id": "big", "user": "bob", "parent_cluster_id": "kPrimaryClusterID", "priority": 5,
             "state_reason": "InsufficientResources", "queue_position": 1, "members": 2,
             "message": "needs 40 CPU, 23 of 32 free, held by kPrimaryClusterID##train and many others"},
        ],
    },
    "recent_failures": [
        {"submission_id": "bad", "user": "ana", "state_reason": "NonZeroExit", "exit_code": 2,
         "message": "exit code 2", "ended_at": "2025-11-20T12:00:00.000000Z"},
    ],
    "scheduler": {"running": True, "last_beat": None, "last_round_ms": 3.2, "rounds": 8},
}  # fmt: skip


def test_a_table_aligns_and_keeps_its_columns_whatever_is_in_them() -> None:
    assert table(Screen(), COLUMNS, {"a": "x", "b": 10}, {"a": "long", "b": None, "c": ""}) == [
        "A      B  C", "x     10  -", "long   -  -",
    ]  # fmt: skip


def test_the_blanks_of_a_cell_have_no_colour_and_the_heading_is_one_stroke() -> None:
    columns = [
        Column("A", lambda item: Cell(item["a"], "strong red")),
        Column("B", lambda item: Cell(item["b"], "green"), right=True),
        Column("C", lambda item: Bar(1, 2)),
    ]
    rows = [{"a": "x", "b": "1"}, {"a": "long", "b": ""}, {"a": "-", "b": "10"}]
    bar = "\x1b[32m━━━━━━\x1b[0m\x1b[2m╺\x1b[0m\x1b[2m━━━━━\x1b[0m"
    assert table(Screen(colour=True), columns, *rows) == [
        "\x1b[1mA      B  C\x1b[0m",
        f"\x1b[1;31mx\x1b[0m      \x1b[32m1\x1b[0m  {bar}",
        f"\x1b[1;31mlong\x1b[0m      {bar}",
        f"\x1b[2m-\x1b[0m     \x1b[32m10\x1b[0m  {bar}",
    ]


def test_lines_of_a_long_table_do_not_go_through_the_console_of_rich() -> None:
    screen = Screen(colour=True, width=80)
    assert len(list(screen.table(COLUMNS, [{"a": "x", "b": 1, "c": "y" * 90}] * 1000))) == 1001
    assert "console" not in vars(screen)


def test_wide_letters_count_twice() -> None:
    lines = table(Screen(), COLUMNS[:2], {"a": "日本", "b": 1}, {"a": "abcd", "b": 2})
    assert lines == ["A     B", "日本  1", "abcd  2"]


def test_a_table_fits_and_cuts_the_column_that_matters_last() -> None:
    item = {"k": "k" * 40, "n": 1234567, "free": "f" * 60, "c": "c" * 30}
    columns = [
        key("KEY", "k"),
        Column("N", "n", right=True),
        Column("FREE", "free", rank=GIVES),
        matters("REASON", "c"),
    ]
    for width in range(1, 160):
        lines = table(Screen(width=width), columns, item)
        assert all(cell_len(line) <= width for line in lines), width
    row = table(Screen(width=80), columns, item)[1]
    assert "c" * 30 in row
    assert "1234567" in row
    assert "fffffff…" in row
    assert f"{'k' * 14}…{'k' * 14}" in row  # an id is shortened in the middle
    narrow = table(Screen(width=57), columns, item)[1]
    assert narrow.split() == ["kkkkkkk…kkkkkk", "1234567", "fffffff…", "c" * 21 + "…"]


def test_a_timeline_says_when_however_long_ids_and_nodes_are() -> None:
    one = {"kind": "job", "id": "a" * 40, "state": "SUCCEEDED", "node_ids": [f"8c16g-0{n}" for n in range(4)],
           "started_at": "2026-01-31T08:09:10.000000Z", "ended_at": None}  # fmt: skip
    row = table(Screen(width=80), columns.TIMELINE, one)[1]
    assert re.search(r"2026-01-3\d \d\d:\d\d:10 ", row)


def test_columns_depend_on_the_width_and_not_on_what_is_in_them() -> None:
    columns = [key("KEY", "k"), Column("MORE", "more", at=100), Column("LAST", "last")]
    for items in ({"k": "a"}, {"k": "a", "more": "x", "last": "y"}):
        assert table(Screen(width=80), columns, items)[0].split() == ["KEY", "LAST"]
        assert table(Screen(width=100), columns, items)[0].split() == ["KEY", "MORE", "LAST"]
        assert table(Screen(), columns, items)[0].split() == ["KEY", "MORE", "LAST"]


def test_text_of_others_is_shown_and_does_nothing() -> None:
    evil = "a\x1b[31m\x9b2J\x7f\u202eb\u200b\n\udcff\ud800"
    shown = r"a\x1b[31m\x9b2J\x7f\u202eb\u200b\n\xff\ud800"
    colour = Screen(colour=True)
    for screen in (Screen(), Screen(width=80), colour):
        assert shown in "".join(screen.finish([evil]))
        assert shown in "".join(table(screen, [Column("A", "a")], {"a": evil}))
        assert shown in "".join(screen.pairs([("a", evil)]))
        assert shown in "".join(screen.text((evil, "red")))
        assert shown in "".join(screen.command(evil))
    assert "[bold]x[/bold] :smile:" in "".join(colour.text("[bold]x[/bold] :smile:"))  # no markup either


def test_the_primary_has_one_name_and_commands_are_left_alone() -> None:
    columns = [Column("CLUSTER", "c"), Column("COMMAND", "command", raw=True)]
    row = {"c": "kPrimaryClusterID##x", "command": "echo kPrimaryClusterID"}
    assert table(Screen(), columns, row)[1] == "primary##x  echo kPrimaryClusterID"


def test_colour_only_where_wanted() -> None:
    columns = [Column("A", lambda item: Cell(item["a"], "red"))]
    assert table(Screen(colour=True, header=False), columns, {"a": "x"}) == ["\x1b[31mx\x1b[0m"]
    assert table(Screen(header=False), columns, {"a": "x"}) == ["x"]


def test_sentences_break_between_words_and_commands_do_not_break() -> None:
    screen = Screen(width=20)
    assert list(screen.text("one two three four five six")) == ["one two three four", "five six"]
    long = "vctl job stop " + "x" * 60
    assert list(screen.command(long, indent=4)) == ["    " + long]
    assert list(screen.section("Title", screen.command(long))) == ["", "Title", "  " + long]


@pytest.mark.parametrize(("used", "ink"), [(0, 0), (0.01, 1), (16, 6), (32, 12)])
def test_bars(used: float, ink: int) -> None:
    (line,) = table(Screen(header=False), [Column("USE", lambda item: Bar(used, 32))], {})
    assert len(line) == ink


def test_letters_beyond_ascii_only_where_they_can_be_shown() -> None:
    long = [*BRANCHES, branch("kPrimaryClusterID##" + "n" * 60, 1, "job", 1, 1)]
    lines = list(status_view.draw(Screen(width=80, fine=False), {**STATUS, "clusters": long}))
    assert all(line.isascii() for line in lines)
    assert any("~" in line for line in lines)


def test_the_tree_shows_who_is_in_whom() -> None:
    lines = list(tree.draw(Screen(), BRANCHES))
    assert [line.rpartition(kind)[0].rstrip("- ") for line, kind in zip(
        lines[1:], ("primary", "logical", "job", "logical"), strict=True
    )] == ["primary", "├── team-a", "│   └── team-a##train", "└── team-b"]  # fmt: skip
    assert lines[0].split() == ["CLUSTER", "JOB", "KIND", "USE", "CPU", "GPU", "MEM", "OTHERS", "RUN", "WAIT"]
    assert "9/32" in lines[1]


def test_a_nested_cluster_becomes_branches() -> None:
    found = tree.flatten({"cluster_id": "a", "tree": [{"cluster_id": "b", "tree": []}]})
    assert [(one["cluster_id"], one["depth"]) for one in found] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_status_fits_every_width(width: int) -> None:
    long = [*BRANCHES, branch("kPrimaryClusterID##" + "n" * 60, 1, "job", 1, 1)]
    lines = list(status_view.draw(Screen(width=width), {**STATUS, "clusters": long}))
    assert max(cell_len(line) for line in lines) <= width
    assert all(isinstance(line, Drawn) for line in lines)


def test_status_on_a_low_screen_says_what_it_leaves_out() -> None:
    """spec 13: --watch stays inside the height of the terminal."""
    many = [BRANCHES[0], *(branch(f"team-{n}", 1, "logical", 0, 4) for n in range(40))]
    kinds = ("CPU", "FPGA", "GPU", "TPU", "memory", "object_store_memory")
    some = {name: {"total": 8, "reserved": 4, "lent": 1, "idle": 2, "used": 2} for name in kinds}
    full = {**STATUS, "clusters": many, "resources": some, "recent_failures": STATUS["recent_failures"] * 5}
    lines = list(status_view.draw(Screen(width=80, height=24), full))
    assert len(lines) <= 23
    assert [line.split()[0] for line in lines[4:7]] == ["CPU", "GPU", "memory"]
    assert "more; `vctl vc tree` shows all" in "\n".join(lines)
    for words in ("Running", "Queue: 3 waiting", "Failed within a day"):
        assert any(words in line for line in lines)


def test_status_says_everything_when_piped() -> None:
    text = "\n".join(status_view.draw(Screen(), STATUS))
    for words in (
        "4: 3 ALIVE, 1 DRAINING", "running, last round 3.2 ms", "RESOURCE  TOTAL  RESERVED", "3.5GiB",
        "1h1m", "59s", "n1, n2", "Queue: 3 waiting, 2 running  … 1 more", "big +1", "InsufficientResources",
        "held by primary##train and many", "NonZeroExit",
    ):  # fmt: skip
        assert words in text, words
    assert "\x1b" not in text


def test_status_of_nothing() -> None:
    empty: dict[str, Any] = {
        "nodes": {}, "resources": {}, "clusters": [], "running_jobs": [],
        "queue": {"pending": 0, "running": 0, "head": []}, "recent_failures": [], "scheduler": {"running": False},
    }  # fmt: skip
    assert list(status_view.draw(Screen(), empty)) == [
        "Nodes      0", "Scheduler  not running", "", "Queue: 0 waiting, 0 running",
    ]  # fmt: skip


def test_cells_that_are_alike_are_made_once_and_each_shows_its_own_value() -> None:
    """Spec 13: equal numbers of other types are other texts; what a column reads decides what its cells show."""
    values = [1, True, 1.0, "1", None, "", {"k": 1}, {"k": 1}, [1], 1]
    items = [{"a": value, "b": number} for number, value in enumerate(values)]
    made: list[object] = []

    def show(item: Mapping[str, Any]) -> str:
        made.append(item["a"])
        return f"<{item['a']}>"

    columns = [Column("A", "a"), Column("B", "b", right=True), Column("C", show, reads=("a",))]
    lines = table(Screen(header=False), columns, *items)
    assert [line.split()[0] for line in lines[:6]] == ["1", "True", "1.0", "1", "-", "-"]
    assert [line.rpartition("<")[2] for line in lines] == [f"{value}>" for value in values]
    assert len(made) == len({id(value) for value in values})
    made.clear()
    words = [{"a": f"w{number % 3}", "b": number} for number in range(30)]
    assert len(table(Screen(header=False), columns, *words)) == 30
    assert len(made) == 3
