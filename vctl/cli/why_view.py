"""The picture of ``vctl why`` and of ``job submit --dry-run``: the reason in one line, then what stands behind it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vctl.cli import words
from vctl.cli.page import Cell, Column, Page
from vctl.spec.quantities import format_duration

Data = Mapping[str, Any]
MOST_AHEAD = 5
MOST_LISTED = 100
"""The answer lists no more; then the place in the queue says how many there are."""
MOST_HOLDERS = 3
VERDICT_COLOURS = {"infeasible": "red", "feasible but not available": "yellow", "available": "green"}


def draw(page: Page, data: Data) -> Iterator[str]:
    """Why a job waits; for one that does not, one line."""
    name, reason = data["submission_id"], data["state_reason"]
    if data["status"] != "PENDING":
        told = f" ({reason})" if reason else ""
        yield f"{page.paint(name, 'bold')} is {data['status']}{told}, it does not wait; {data['message']}"
        return
    yield f"{page.paint(name, 'bold')} waits ({page.paint(reason, 'yellow')}): {data['message']}"
    yield from _ahead(page, data)
    yield from _nodes(page, data["nodes"])
    yield from _victims(page, data)
    yield from _changes(page, data)


def draw_dry_run(page: Page, data: Data) -> Iterator[str]:
    """What a submit would lead to."""
    where = words.cluster_name(data["parent_cluster_id"])
    if data["verdict"] == "starts now":
        yield f"it {page.paint('would start now', 'green')} in {where}"
        yield from _section(page, "Pieces", page.table(_PIECES, data["pieces"]))
        if data["borrowed"]:
            yield from _section(page, "Borrowed", page.table(_BORROWED, data["borrowed"]))
        return
    reason = page.paint(data["state_reason"], "yellow")
    yield f"it {page.paint('would wait', 'yellow')} in {where} ({reason}): {data['message']}"
    yield from _ahead(page, data)
    yield from _nodes(page, data["nodes"])
    yield from _victims(page, data)


_PIECES = [
    Column("RANK", "rank", right=True),
    Column("NODE", "node_id"),
    Column("KIND", "kind"),
    Column("RESOURCES", lambda piece: words.amounts(piece["resources"])),
    Column("COMMAND", lambda piece: "here" if piece["runs_entrypoint"] else "", optional=True),
]
_BORROWED = [
    Column("BORROWER", lambda loan: words.cluster_name(loan["borrower_id"])),
    Column("LENDER", lambda loan: words.cluster_name(loan["lender_id"])),
    Column("NODE", "node_id"),
    Column("RESOURCES", lambda loan: words.amounts(loan["resources"])),
]
_AHEAD = [
    Column("JOB", "submission_id"),
    Column("USER", "user"),
    Column("PRIO", "priority", right=True),
    Column("RESOURCES", lambda job: words.amounts(job["resources"])),
]
_VICTIMS = [
    Column("JOB", "submission_id"),
    Column("PRIO", "priority", right=True),
    Column("RAN FOR", lambda one: format_duration(int(one["lost_s"])), right=True),
]
_NODES = [
    Column("NODES", "nodes"),
    Column("VERDICT", lambda one: Cell(one["verdict"], VERDICT_COLOURS.get(one["verdict"], ""))),
    Column("NEEDS", lambda one: words.amounts(one["need"])),
    Column("FREE", lambda one: words.amounts(one["have"]) or "nothing"),
    Column("HELD BY", lambda one: _holders(one["holders"]), optional=True, give=True),
    Column("NOTE", "note", optional=True, give=True),
]


def _section(page: Page, title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield page.paint(title, "bold")
    yield from ("  " + line for line in lines)


def _ahead(page: Page, data: Data) -> Iterator[str]:
    ahead, shown = data["ahead"], data["ahead"][:MOST_AHEAD]
    if not ahead:
        return
    number = max(len(ahead), data["queue_position"] - 1) if len(ahead) >= MOST_LISTED else len(ahead)
    lines = [*page.table(_AHEAD, shown)]
    if number > len(shown):
        lines.append(f"and {number - len(shown)} more")
    yield from _section(page, f"Ahead of it in the queue: {number}", lines)


def _nodes(page: Page, nodes: list[Data]) -> Iterator[str]:
    if nodes:
        yield from _section(page, "Nodes", page.table(_NODES, _alike(nodes)))


def _alike(nodes: list[Data]) -> list[dict[str, Any]]:
    """Nodes of which the same is to be said, as one line; those that are nearest to enough first."""
    groups: dict[str, list[Data]] = {}
    for node in nodes:
        what = {key: value for key, value in node.items() if key != "node_id"}
        if len(nodes) > MOST_AHEAD:
            what["holders"] = len(node["holders"])
        groups.setdefault(repr(what), []).append(node)
    order = list(reversed(VERDICT_COLOURS))
    lines = [{**group[0], "nodes": _names(group)} for group in groups.values()]
    for line, group in zip(lines, groups.values(), strict=True):
        if len(group) > 1 and any(node["holders"] != line["holders"] for node in group):
            line["holders"] = []
    return sorted(lines, key=lambda line: order.index(line["verdict"]))


def _names(group: list[Data]) -> str:
    names = [str(node["node_id"]) for node in group]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)})"


def _holders(holders: list[Data]) -> str:
    parts = [
        f"{words.cluster_name(one.get('submission_id') or one.get('cluster_id'))} ({words.amounts(one['resources'])})"
        for one in holders[:MOST_HOLDERS]
    ]
    more = len(holders) - len(parts)
    return ", ".join(parts) + (f" and {more} more" if more else "")


def _victims(page: Page, data: Data) -> Iterator[str]:
    if data["preempts"]:
        yield from _section(page, "Ends for it", page.table(_VICTIMS, data["preempts"]))


def _changes(page: Page, data: Data) -> Iterator[str]:
    lines: list[str] = []
    for one in data["changes"]:
        lines.append(f"- {one['change']}")
        if one["command"]:
            lines.append("    " + page.paint(one["command"], "cyan"))
    if lines:
        yield from _section(page, "Any one of these would start it now", lines)
    if data["cut"]:
        yield from ("", data["cut"])
