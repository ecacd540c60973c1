"""The drawing of ``vctl gpus``: the rows of its table, and the sentences below it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vctl.cli import words
from vctl.cli.table import Cell

if TYPE_CHECKING:
    from vctl.cli.screen import Screen
    from vctl.spec.documents import GpuForm, GpuHolder, GpuProcess

MOST = 8
"""The most processes of a device that a table shows; data has all of them."""
COLOURS = {"FOREIGN": "red", "AVOIDED": "red", "FENCED": "red", "BOOKED": "green", "FREE": "dim"}
_KINDS = {
    "foreign": "not booked",
    "left": "left behind",
    "ignored": "ignored",
    "unseen": "not of this machine's /proc",
}


def lines(items: "Sequence[GpuForm]") -> Iterator[dict[str, Any]]:
    """A row for each device, one for each further holder, and one for each process."""
    several = len({item["node_id"] for item in items}) > 1
    for item in items:
        first, others = next(iter(item["holders"]), None), item["holders"][1:]
        idle = f", idle {words.lasted(item['idle_since'])}" if item["idle_since"] else ""
        yield {
            "gpu": item["gpu_id"] if several else str(item["index"]),
            "state": Cell(item["state"], COLOURS[item["state"]]),
            "booked": words.amount("GPU", item["booked"]) if item["booked"] else "",
            "use": "" if item["utilization"] is None else f"{item['utilization']}%",
            "memory": _memory(item),
            "user": "" if first is None else first["user"] or "",
            "what": "" if first is None else _holder(first, idle),
        }
        for holder in others:
            yield {**_EMPTY, "user": holder["user"] or "", "what": _holder(holder, idle)}
        for process in item["processes"][:MOST]:
            yield {
                **_EMPTY,
                "memory": "?" if process["memory"] is None else words.rounded(process["memory"]),
                "user": process["user"] or "?",
                "what": _process(process),
            }
        if len(item["processes"]) > MOST:
            yield {**_EMPTY, "what": f"and {len(item['processes']) - MOST} more processes (all: -o json)"}


_EMPTY = dict.fromkeys(("gpu", "state", "booked", "use", "memory", "user", "what"), Cell(""))


def _memory(item: "GpuForm") -> str:
    used, total = item["memory_used"], item["memory_total"]
    if used is None or total is None:
        return ""
    return f"{words.rounded(used)}/{words.rounded(total)}"


def _holder(holder: "GpuHolder", idle: str) -> "str | Cell":
    share = "" if holder["share"] == 1 else f" ({words.amount('GPU', holder['share'])})"
    if holder["submission_id"] is None:
        return f"in {words.named(holder['cluster_id'])}{share}, not used by a job"
    since = f" {words.lasted(holder['since'])}" if holder["since"] else ""
    text = f"{holder['submission_id']} in {words.named(holder['cluster_id'])}{share}{since}{idle}"
    return Cell(text, "yellow") if idle else text


def _process(process: "GpuProcess") -> Cell:
    age = f" {words.lasted(process['started_at'])}" if process["started_at"] else ""
    mark = f" {_KINDS[process['kind']]}" if process["kind"] in _KINDS else ""
    command = f": {process['command']}" if process["command"] else ""
    colour = "red" if process["kind"] in ("foreign", "left") else "dim"
    return Cell(f"pid {process['pid']}{age}{mark}{command}", colour)


def notes(screen: "Screen", items: "Sequence[GpuForm]") -> Iterator[str]:
    """What the rows do not say: recorded figures, troubles, and the commands that act."""
    if any(item["measured"] == "recorded" for item in items):
        yield from screen.text(("The figures are recorded ones (VCTL_DEVICES_FILE), not measured.", "yellow"))
    for item in items:
        if item["divided"]:
            yield from screen.text(f"GPU {item['gpu_id']} is divided (MIG): vctl books it as one device.")
    for text in dict.fromkeys(item["message"] for item in items if item["message"]):
        yield from screen.text((text, "yellow"))
    if any(item["commands"] for item in items):
        yield from screen.text("To let such a process count no more:")
    for text in dict.fromkeys(command for item in items for command in item["commands"]):
        yield from screen.command(text, 2)
