"""The drawings of ``vctl why`` and of ``job submit --dry-run``: the reason in one line, then the details."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl.cli import words
from vctl.cli.columns import WIDE, state
from vctl.cli.table import GIVES, Cell, Column, key, matters
from vctl.spec.quantities import format_duration

if TYPE_CHECKING:
    from vctl.cli.screen import Screen

Data = Mapping[str, Any]
MAX_AHEAD = 5
MAX_HOLDERS = 3
VERDICT_COLOURS = {"infeasible": "red", "feasible but not available": "yellow", "available": "green"}


def draw(screen: "Screen", data: Data) -> Iterator[str]:
    """Why a job waits; for a job that does not wait, one line."""
    name, reason = data.get("submission_id") or data["task_id"], data["state_reason"]
    if not data["status"].startswith("PENDING"):
        because, said = f" ({reason})" if reason else "", data["message"]
        more = f"; {said}" if said else ""
        yield from screen.text((name, "bold"), f" is not waiting: it is {data['status']}{because}{more}")
        return
    yield from screen.text((name, "bold"), " waits (", (reason, "yellow"), f"): {data['message']}")
    if basis := data.get("expected_start_basis"):
        when = words.moment(data["expected_start"])
        yield from screen.text(
            "expected start: ",
            (when or "unknown", "bold" if when else ""),
            f", {basis}" if when else basis.removeprefix("unknown"),
        )
    if data["waits_for_itself"]:
        yield from screen.text((data["waits_for_itself"], "red"))
    yield from _ahead(screen, data)
    yield from _nodes(screen, data)
    yield from _victims(screen, data)
    yield from _changes(screen, data)


def draw_dry_run(screen: "Screen", data: Data) -> Iterator[str]:
    """The outcome of a submit."""
    where = data["parent_cluster_id"]
    if data["verdict"] == "fails to start":
        yield from _failure(screen, data, f"it would start now in {where}, and ")
        return
    if data["verdict"] == "starts now":
        yield from screen.text("it ", ("would start now", "green"), f" in {where}")
        yield from screen.section("Pieces", screen.inner.table(_PIECES, data["pieces"]))
        if data["borrowed"]:
            yield from screen.section("Borrowed", screen.inner.table(_BORROWED, data["borrowed"]))
        return
    reason = (data["state_reason"], "yellow")
    if data["verdict"] == "never starts":
        yield from screen.text("it ", ("would never start", "red"), " (", reason, f"): {data['message']}")
        return
    does = "may wait" if data["verdict"] == "not tried" else "would wait"
    yield from screen.text("it ", (does, "yellow"), f" in {where} (", reason, f"): {data['message']}")
    yield from _failure(screen, data, "as files are now, it would then ")
    yield from _ahead(screen, data)
    yield from _nodes(screen, data)
    yield from _victims(screen, data)


def _failure(screen: "Screen", data: Data, before: str) -> Iterator[str]:
    if (failure := data["launch_failure"]) is not None:
        fails = f"fail with exit code {failure['exit_code']}"
        yield from screen.text(before, (fails, "red"), f": {failure['message']}")


def _needs(node: Data) -> str:
    total = str(node.get("note") or "").startswith("in total")
    return words.amounts(node["need"]) + (" in total" if total else "")


def _held_by(node: Data) -> str:
    holders, note = _holders(node["holders"]), str(node.get("note") or "")
    if note and node["verdict"] == "infeasible":
        return note  # also when all holders have ended
    return f"{holders}; {note}" if holders and note.startswith("the node is ") else holders or note


_PIECES = [
    Column("RANK", "rank", right=True),
    Column("NODE", "node_id"),
    Column("KIND", "kind"),
    Column("RESOURCES", lambda piece: words.amounts(piece["resources"])),
    Column("COMMAND", lambda piece: "here" if piece["runs_entrypoint"] else ""),
]
_BORROWED = [
    Column("BORROWER", "borrower_id", middle=True),
    Column("LENDER", "lender_id", middle=True),
    Column("NODE", "node_id"),
    Column("RESOURCES", lambda loan: words.amounts(loan["resources"])),
]
_AHEAD = [
    key("JOB", "submission_id"),
    Column("USER", "user"),
    Column("PRIO", "priority", right=True),
    Column("RESOURCES", lambda job: words.amounts(job["resources"])),
    Column("REASON", "state_reason", rank=GIVES),
]
_TASKS_AHEAD = [key("TASK", "task_id"), Column("RESOURCES", lambda task: words.amounts(task["resources"]))]
_VICTIMS = [
    key("JOB", "submission_id"),
    Column("PRIO", "priority", right=True),
    Column("RAN FOR", lambda job: format_duration(int(job["lost_s"])), right=True),
]
_NODES = [
    key("NODES", "nodes"),
    state("VERDICT", lambda group: Cell(group["verdict"], VERDICT_COLOURS.get(group["verdict"], ""))),
    Column("NEEDS", _needs, rank=GIVES, at=WIDE),
    Column("FREE", lambda group: words.amounts(group["have"]) or "nothing", rank=GIVES),
    matters("HELD BY", _held_by),
]


def _ahead(screen: "Screen", data: Data) -> Iterator[str]:
    ahead, shown = data["ahead"], data["ahead"][:MAX_AHEAD]
    if not ahead:
        return
    number = data["queue_position"] - 1
    lines: list[str] = [*screen.inner.table(_TASKS_AHEAD if "task_id" in data else _AHEAD, shown)]
    if number > len(shown):
        lines.append(f"and {number - len(shown)} more")
    yield from screen.section(f"Ahead of it in the queue: {number}", lines)


def _nodes(screen: "Screen", data: Data) -> Iterator[str]:
    if not data["nodes"]:
        return
    lines: list[str] = [*screen.inner.table(_NODES, _alike(data["nodes"]))]
    if omitted := data["nodes_left_out"]:
        lines.append(
            "and more nodes: " + ", ".join(f"{count} {verdict}" for verdict, count in omitted.items())
        )
    yield from screen.section("Nodes", lines)


def _alike(nodes: Sequence[Data]) -> list[dict[str, Any]]:
    """Nodes with equal verdicts as one line; available ones first, infeasible ones last."""
    groups: dict[str, list[Data]] = {}
    for node in nodes:
        what = {key: value for key, value in node.items() if key not in ("node_id", "vnode_id")}
        if len(nodes) > MAX_AHEAD:
            what["holders"] = len(node["holders"])
        groups.setdefault(repr(what), []).append(node)
    order = list(reversed(VERDICT_COLOURS))
    lines = [{**group[0], "nodes": _names(group)} for group in groups.values()]
    for line, group in zip(lines, groups.values(), strict=True):
        if len(group) > 1 and any(node["holders"] != line["holders"] for node in group):
            line["holders"], line["note"] = [], "several"
    return sorted(lines, key=lambda line: order.index(line["verdict"]))


def _names(group: Sequence[Data]) -> str:
    names = [str(node.get("vnode_id") or node["node_id"]) for node in group]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)})"


def _holders(holders: Sequence[Data]) -> str:
    parts = [
        f"{who.get('task_id') or who.get('submission_id') or who.get('cluster_id')} ({words.amounts(who['resources'])})"
        for who in holders[:MAX_HOLDERS]
    ]
    more = len(holders) - len(parts)
    return ", ".join(parts) + (f" and {more} more" if more else "")


def _victims(screen: "Screen", data: Data) -> Iterator[str]:
    if data["preempts"]:
        yield from screen.section("Would be preempted", screen.inner.table(_VICTIMS, data["preempts"]))


def _changes(screen: "Screen", data: Data) -> Iterator[str]:
    if data["changes"]:
        yield from screen.section(
            "Any one of these changes would start it now", _listed(screen, data["changes"])
        )
    elif data["nearest"]:
        title = "No single change helps. These two changes together would start it now"
        yield from screen.section(title, _listed(screen, data["nearest"]))
    elif data["searched"] and not data["cut"]:
        yield from ("", *screen.text("No single change helps, and no tested pair of changes does."))
    if data["cut"]:
        yield from ("", *screen.text(data["cut"]))


def _listed(screen: "Screen", changes: Sequence[Data]) -> list[str]:
    lines: list[str] = []
    for change in changes:
        lines += screen.inner.text(f"- {change['change']}")
        if change["command"]:
            lines += screen.command(change["command"], indent=4)
    return lines
