"""What jobs and tasks ask for, in the tables: damaged for some of them, and asked as one table."""

from __future__ import annotations

from sqlite3 import Connection

from vctl.core.clusters import ClusterSpec
from vctl.store import rows

SPEC = rows.spec_text(ClusterSpec())
HOMES = {
    "env": "environments",
    **dict.fromkeys(("shape", "spec", "entry", "rules"), "requests"),
    **dict.fromkeys(("argv", "cwd", "options", "entrypoint"), "commands"),
}
KEYS = {"environments": "environment_id", "requests": "request_id", "commands": "command_id"}
LAUNCHES = "jobs JOIN commands USING (command_id) JOIN environments USING (environment_id)"
JOURNAL = "changes LEFT JOIN events USING (seq)"
WHOLE = f"{LAUNCHES} JOIN requests USING (request_id)"


def plain(db: Connection) -> int:
    """A command for rows that a test writes itself."""
    environment = _copied(db, "environments", {"checksum": 0, "env": "{}"})
    request = _copied(
        db, "requests", {"checksum": 0, "shape": "s", "spec": SPEC, "entry": "{}", "rules": "{}"}
    )
    return _copied(
        db,
        "commands",
        {
            "checksum": 0, "argv": "[]", "cwd": "/", "options": "{}", "entrypoint": "c", "environment_id": environment,
            "request_id": request,
        },
    )  # fmt: skip


def spoil(db: Connection, column: str, text: object, which: str, table: str = "jobs") -> None:
    """Give the jobs (or tasks) ``which`` another text in a column: nobody else who asks for the same has it."""
    for key, number in db.execute(f"SELECT rowid, command_id FROM {table} WHERE {which}").fetchall():
        command = _row(db, "commands", number)
        if (home := HOMES[column]) == "commands":
            command[column] = text
        else:
            content = _row(db, home, command[KEYS[home]])
            command[KEYS[home]] = _copied(db, home, {**content, column: text})
        db.execute(
            f"UPDATE {table} SET command_id = ? WHERE rowid = ?", (_copied(db, "commands", command), key)
        )


def _row(db: Connection, table: str, number: object) -> dict[str, object]:
    cursor = db.execute(f"SELECT * FROM {table} WHERE {KEYS[table]} = ?", (number,))
    return {name[0]: value for name, value in zip(cursor.description, cursor.fetchone(), strict=True)}


def _copied(db: Connection, table: str, row: dict[str, object]) -> int:
    columns = {name: value for name, value in row.items() if name != KEYS[table]}
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
    return int(db.execute(sql, tuple(columns.values())).lastrowid or 0)
