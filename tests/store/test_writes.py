"""Where the tables are written: in ``store/write`` and ``store/observed``; each exception has its reason."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.specification import spec

pytestmark = spec("17.durable")

STORE = Path(__file__).parents[2] / "vctl" / "store"
HOMES = ("write", "observed")
"""Modules (or packages) that may write any table."""
OUTSIDE = ("schema", "copies", "moves")
"""Migrations, rows that come back from a copy, and the statements of moves: those count where a move is asked for."""
MOVED = {
    "JOB": "jobs",
    "RUN": "runs",
    "TASK": "tasks",
    "NODE": "nodes",
    "CLUSTER": "clusters",
    "LEASE": "leases",
}

WRITE = re.compile(
    r"\b(?:INSERT(?: OR \w+)? INTO|UPDATE|DELETE FROM)\s+(?:main\.)?(\w+|\{\})(?=\s*(?:\(|SET|VALUES|WHERE|SELECT|$))"
)

EXCEPTIONS = {
    "database.apply_migrations head": "the format of the tables after a migration",
    "database.disown head": "another journal begins with a restored copy",
    "database.disown meta": "no records of processes belong to a restored copy",
    "database.disown runs_ahead": "a run that a restored copy has assigned ahead may run or be over by now",
    "feed.delete_until changes": "the journal is cut in front",
    "feed.delete_until events": "the journal is cut in front",
    "feed.forget_changes changes": "changes that every scheduler has read",
    "feed.forget_changes head": "the journal has all since then",
    "store._write_head head": "every transaction moves the head on",
    "store.begin_term terms": "the head has a new term",
    "store.end_term terms": "the term of the head is over",
    "tokens.add tokens": "a token is nobody's but its user's: neither the journal nor its readers know its hash",
    "tokens.remove tokens": "the same",
}
"""Writes of the journal itself, of its head and of migrations: no change can say them."""


def writes(path: Path) -> Iterator[tuple[str, str]]:
    """(function, table) of every statement of a module that writes; ``{}`` where the table is a variable."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        text = ""
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="moves")), args=[_, ast.Name(id=lifecycle), *_]
            ):
                text = f"UPDATE {MOVED.get(lifecycle, lifecycle.lower() + 's')} SET"
        if text:
            pass
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        inside = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
        name = max(inside, key=lambda f: f.lineno).name if inside else "(module)"
        for table in WRITE.findall(text):
            yield name, table


def found() -> Counter[str]:
    """All writes outside their homes, as ``module.function table``."""
    counted: Counter[str] = Counter()
    for path in sorted(STORE.glob("*.py")):
        if path.stem not in (*HOMES, *OUTSIDE):
            counted.update({f"{path.stem}.{name} {table}" for name, table in writes(path)})
    return counted


def test_every_write_is_in_its_home_or_listed() -> None:
    """What is listed and not there any more is taken off the list: it only gets shorter."""
    assert sorted(found()) == sorted(EXCEPTIONS)
