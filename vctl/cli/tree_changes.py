"""The drawing of the differences between the clusters and a tree file."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vctl.cli import words
from vctl.cli.screen import Drawn

if TYPE_CHECKING:
    from vctl.cli.screen import Screen

MARKS = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}
IDENTITY = ("id", "parent")


def draw(screen: "Screen", diff: Mapping[str, Any], next_command: str | None = None) -> Iterator[str]:
    """Each change with its fields and blockers, a summary, and the next command."""
    for change in diff["changes"]:
        mark, colour = MARKS[change["action"]]
        what = f"{mark} {change['action']} {change['cluster_id']}"
        yield from screen.text((what, colour), f" in {change['parent_id']}")
        parts: list[str | tuple[str, str]] = [*_fields(screen, change)]
        parts += [(f"blocked: {blocker}", "red") for blocker in change["blockers"]]
        for part in parts:
            for line in screen.inner.inner.text(part):  # also where a long one is broken
                yield Drawn(f"    {line}")
    yield _summary(diff["summary"], planned=next_command is not None)
    if next_command and diff["changes"] and not diff["summary"]["blocked"]:
        yield from screen.text(("Apply exactly this:", "dim"))
        yield from screen.command(next_command)


def _fields(screen: "Screen", change: Mapping[str, Any]) -> Iterator[str]:
    before, after = change["before"] or {}, change["after"] or {}
    arrow = "→" if screen.fine else "->"
    for name in dict.fromkeys([*before, *after]):
        if name in IDENTITY or before.get(name) == after.get(name):
            continue
        old, new = (words.value(name, fields.get(name)) for fields in (before, after))
        if change["action"] == "update":
            yield f"{name}: {old} {arrow} {new}"
        elif (value := new if after else old) not in ("-", "no"):
            yield f"{name}: {value}"


def _summary(counts: Mapping[str, int], *, planned: bool) -> str:
    done = {"create": "created", "update": "updated", "delete": "deleted"}
    parts = [f"{counts[a]} {'to ' + a if planned else done[a]}" for a in done if counts[a]]
    if not parts:
        return f"nothing to change, {counts['unchanged']} as wanted"
    parts.append(f"{counts['unchanged']} unchanged")
    if counts["blocked"]:
        parts.append(f"{counts['blocked']} blocked: it could not be applied now")
    return ", ".join(parts)


def command(file: str, revision: str, *, prune: bool) -> str:
    """The command that applies exactly this plan."""
    from shlex import quote

    if file == "-":
        file = "FILE"
    pruned = " --prune" if prune else ""
    return f"vctl vc apply -f {quote(file)}{pruned} --expect-revision {revision}"
