"""Writes commands, environments and requests: a content that is in the tables already gets no second row."""

from __future__ import annotations

import zlib
from _sqlite3 import Connection
from collections.abc import Iterable, Sequence

from vctl.core.compact import dumps
from vctl.core.jobs import PendingJob
from vctl.core.spans import Spans
from vctl.engine.changes import Launch
from vctl.store.database import Tables
from vctl.store.known import Content, KnownContents
from vctl.store.rows import spec_text

_COLUMNS = {
    "environments": ("environment_id", "env"),
    "requests": ("request_id", "shape", "spec", "entry", "rules"),
    "commands": ("command_id", "argv", "cwd", "options", "entrypoint", "environment_id", "request_id"),
}
"""Table -> its key and the columns of its content."""


def request_of(job: PendingJob) -> tuple[str, str, str, str]:
    """What a job asks for, as columns: its shape, spec, entry and rules."""
    return job.shape, spec_text(job.spec), dumps(job.entry), job.rules


def command_of(db: Connection, launch: Launch, request: tuple[str, str, str, str] | None = None) -> int:
    """The number of a command, inside a transaction. ``request`` of a job: its shape, spec, entry and rules."""
    environment_id = _number(db, "environments", (launch.env,))
    request_id = None if request is None else _number(db, "requests", request)
    return _number(
        db,
        "commands",
        (launch.argv, launch.cwd, launch.options, launch.entrypoint, environment_id, request_id),
    )


def _number(db: Connection, table: str, content: Content) -> int:
    known = db.known if isinstance(db, Tables) else KnownContents()
    number = known.number(table, content)
    if number is None:
        number = _stored(db, table, content)
        known.note(table, content, number)
    return number


def _stored(db: Connection, table: str, content: Content) -> int:
    key, *columns = _COLUMNS[table]
    checksum = 0
    for part in content:
        checksum = zlib.crc32(part if isinstance(part, bytes) else str(part).encode(), checksum)
    same = " AND ".join(f"{name} IS ?" for name in columns)
    row = db.execute(
        f"SELECT {key} FROM {table} WHERE checksum = ? AND {same}", (checksum, *content)
    ).fetchone()
    if row is None:
        marks = ", ".join("?" * len(columns))
        row = db.execute(
            f"INSERT INTO {table} (checksum, {', '.join(columns)}) VALUES (?, {marks}) RETURNING {key}",
            (checksum, *content),
        ).fetchone()
    return int(row[0])


def used_by(db: Connection, spans: Spans) -> set[int]:
    """The commands of some jobs and of their tasks."""
    numbers = set[int]()
    for table in ("jobs", "tasks"):
        for span in spans:
            numbers.update(
                row[0]
                for row in db.execute(
                    f"SELECT DISTINCT command_id FROM {table} WHERE job_id BETWEEN ? AND ?", span
                )
            )
    return numbers


def drop_unused(db: Connection, command_ids: Iterable[int]) -> None:
    """Delete those of some commands that no job and no task has any more, with what only they named."""
    unused = _without(db, "commands", command_ids, ("jobs", "tasks"), ("environment_id", "request_id"))
    if not unused:
        return
    for at, table in enumerate(("environments", "requests")):
        _without(db, table, {number for row in unused if (number := row[at]) is not None}, ("commands",), ())
    db.execute("UPDATE head SET contents = random()")  # others forget the numbers that they know
    if isinstance(db, Tables):
        db.known.clear()


def _without(
    db: Connection, table: str, keys: Iterable[int], users: Sequence[str], named: Sequence[str]
) -> list[tuple[int | None, ...]]:
    key = _COLUMNS[table][0]
    unused = " AND ".join(
        f"NOT EXISTS (SELECT 1 FROM {user} u WHERE u.{key} = {table}.{key})" for user in users
    )
    return [
        tuple(row)
        for row in db.execute(
            f"DELETE FROM {table} WHERE {key} IN (SELECT value FROM json_each(?)) AND {unused}"
            f" RETURNING {', '.join((*named, key))}",
            (dumps(sorted(keys)),),
        ).fetchall()
    ]
