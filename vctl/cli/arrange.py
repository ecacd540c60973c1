"""``--sort`` and ``--columns`` of lists, by the field names of the JSON form; for every form of output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from vctl.cli import words
from vctl.cli.output import Answer, Data, fields
from vctl.cli.table import Column
from vctl.errors import BadSpec

DESCENDING = "desc"
HEADINGS = {
    "id": "job_id", "submission": "submission_id", "job": "submission_id", "state": "status", "reason": "state_reason",
    "cluster": "parent_cluster_id", "prio": "priority", "pos": "queue_position", "start": "expected_start",
    "cpu": "resources", "gpu": "resources", "mem": "resources", "time": "run_s", "age": "submitted_at",
    "exit": "exit_code", "command": "entrypoint", "node": "node_id", "type": "template_id", "task": "task_id",
}  # fmt: skip
"""Headings of tables, which are shorter than the fields that they show -> the fields."""


def arrange(answer: Answer, *, sort: str | None, columns: str | None, limit: int | None) -> None:
    """Sort the rows of a list, apply its limit and choose the shown columns; the JSON form keeps all fields.

    Raises BadSpec for a field that the objects do not have.
    """
    rows = list(answer.rows)
    total = len(rows) + answer.more
    known = fields(answer)
    if sort is not None:
        order = _sorted(rows, sort, known)
        rows = [rows[i] for i in order][:limit]
        answer.names = [answer.names[i] for i in order][:limit]
        answer.more = total - len(rows)
    if isinstance(answer.data, dict) and "items" in answer.data:
        answer.data["items"] = rows
    answer.rows = rows
    if columns is not None:
        names = [_known(name.strip(), known, "--columns") for name in columns.split(",")]
        answer.rows = [{name: row.get(name) for name in names} for row in rows]
        answer.columns = names
        shown = [field(name) for name in names]
        answer.draw = lambda screen: screen.table(shown, rows)
    elif answer.redraw is not None:
        answer.draw = answer.redraw(rows)


def _sorted(rows: Sequence[Data], sort: str, known: Sequence[str]) -> list[int]:
    """The indices of the rows in sorted order; equal rows keep their order, and rows without a value come last."""
    name, _, direction = sort.partition(":")
    if direction not in ("", "asc", DESCENDING):
        raise BadSpec(f"--sort: unknown direction {direction!r}", fix=f"write {name} or {name}:{DESCENDING}")
    _known(name, known, "--sort")
    having = [i for i, row in enumerate(rows) if row.get(name) is not None]
    missing = [i for i, row in enumerate(rows) if row.get(name) is None]
    having.sort(key=lambda i: _key(rows[i][name]), reverse=direction == DESCENDING)
    return having + missing


def _key(value: Any) -> tuple[int, Any]:
    if isinstance(value, (bool, int, float)):
        return (0, value)
    return (1, value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def _known(name: str, names: Sequence[str], option: str) -> str:
    if not names or name in names:
        return name
    meant = HEADINGS.get(name.lower().lstrip("-+"))
    if name[:1] in ("-", "+") and option == "--sort":
        meant = f"{meant or name[1:]}:{DESCENDING if name[0] == '-' else 'asc'}"
    near = [meant] if meant and meant.partition(":")[0] in names else get_close_matches(name, names, 1)
    fix = f"did you mean {near[0]}?" if near else f"valid names: {', '.join(names)}"
    raise BadSpec(f"{option}: unknown field {name!r}", fix=fix)


def field(name: str) -> Column:
    """The column of a field of the JSON form."""
    return Column(name.upper(), lambda row: words.value(name, row.get(name)))
