"""SQL for repairs: rows set aside, integrity, and raw table contents for ``vctl doctor --prove``."""

from __future__ import annotations

from _sqlite3 import DatabaseError, Row

from vctl.engine.changes import RowSetAside
from vctl.engine.lifecycle import Lifecycle
from vctl.store import moves
from vctl.store.contents import JOB, JOBS
from vctl.store.gates import counted, opens
from vctl.store.store import Store
from vctl.store.write.repair import KEYS


def aside(store: Store, table: str, row: Row, problem: str) -> RowSetAside:
    """The change that sets a row aside with its whole content, so that nothing is lost and work goes on."""
    parts = (row[name] for name in KEYS[table])
    key = tuple([part.hex()] if isinstance(part, bytes) else part for part in parts)  # as JSON has it
    return RowSetAside(store.clock(), table, key, problem)


def set_object_aside(store: Store, lifecycle: Lifecycle, key: object, problem: str) -> bool:
    """Set the row of an object aside; False if it has none."""
    table, column = moves.TABLES[lifecycle.name]
    row = store.row(f"SELECT * FROM {table} WHERE {column} = ?", key)
    if row is not None:
        store.emit(aside(store, table, row, problem))
    return row is not None


def set_aside_rows(store: Store) -> list[Row]:
    """Rows set aside so far."""
    return store.rows("SELECT * FROM set_aside ORDER BY id")


def integrity(store: Store, *, indexes: bool) -> list[str]:
    """The problems that SQLite finds, by table; empty if it finds none. ``indexes``: each entry of an index is compared
    with its row, which reads the tables once more for each index."""
    check = "integrity_check" if indexes else "quick_check"
    if not _problems(store, check, ""):
        return []
    tables = store.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    found = {row[0]: _problems(store, check, row[0]) for row in tables}
    named = [f"table {name} is damaged: {problems[0]}" for name, problems in found.items() if problems]
    return named or _problems(store, check, "")


def _problems(store: Store, check: str, table: str) -> list[str]:
    try:
        lines = [str(row[0]) for row in store.rows(f"PRAGMA {check}({table or 20})")]
    except DatabaseError as error:
        return [str(error)]
    return [] if lines == ["ok"] else [" ".join(line.split()) for line in lines]


def wrong_counts(store: Store, *, all_rows: bool) -> list[str]:
    """The counts of ``job_counts`` and ``event_counts`` that differ from the rows; each as a sentence.

    Without ``all_rows`` jobs that are over are counted along their index, and events are not counted.
    """
    of = {
        name: "jobs NOT INDEXED" if all_rows else f"jobs INDEXED BY jobs_{name}"
        for name in ("queue", "running", "over")
    }
    started = "SELECT parent_cluster_id, status, 0, 0, 0, count(*) FROM {} WHERE {} GROUP BY 1, 2"
    rows = " UNION ALL ".join(
        (
            (
                f"SELECT parent_cluster_id, status, priority, {opens()} AS opens, job_id >> 10 AS block, count(*) AS n"
                f" FROM {of['queue']} WHERE status = 'PENDING' GROUP BY 1, 2, 3, 4, 5"
            ),
            started.format(of["running"], "status = 'RUNNING'"),
            started.format(of["over"], "status NOT IN ('PENDING', 'RUNNING')"),
            f"SELECT {counted('')}, members - 1 FROM jobs INDEXED BY jobs_folded WHERE members > 1",
        )
    )
    key = "parent_cluster_id || ' ' || status || ' ' || priority || ' ' || block || iif(opens, ' ' || opens, '') AS key"
    wrong = [
        f"job_counts of {name}: {kept or 0} kept, {real or 0} rows"
        for name, kept, real in store.rows(
            f"""WITH kept AS (SELECT {key}, count AS n FROM job_counts WHERE count <> 0),
            real AS (SELECT {key}, sum(n) AS n FROM ({rows}) GROUP BY key)
            SELECT kept.key, kept.n, real.n FROM kept LEFT JOIN real USING (key) WHERE kept.n IS NOT real.n
            UNION ALL SELECT real.key, NULL, real.n FROM real WHERE key NOT IN (SELECT key FROM kept)"""
        )
    ]
    if all_rows:
        both = (
            "SELECT code, count AS kept, 0 AS real FROM event_counts UNION ALL SELECT code, 0, 1 FROM events"
        )
        sums = f"SELECT code, sum(kept), sum(real) FROM ({both}) GROUP BY 1 HAVING sum(kept) <> sum(real)"
        wrong += [
            f"event_counts of {code}: {kept} kept, {real} rows" for code, kept, real in store.rows(sums)
        ]
    return wrong


def wrong_members(store: Store) -> list[str]:
    """The rows that stand for members of an array which have rows of their own, or have run; each as a sentence."""
    return [
        f"job {name} stands for {count} members of array {array_id}, which cannot be"
        for name, count, array_id in store.rows(
            """SELECT submission_id, members, array_id FROM jobs j INDEXED BY jobs_folded
            LEFT JOIN arrays a USING (array_id) WHERE members > 1
            AND (status IN ('RUNNING', 'SUCCEEDED') OR attempt > 0 OR first_job_id IS NULL OR job_id < first_job_id
            OR job_id + members - 1 > last_job_id
            OR EXISTS (SELECT 1 FROM jobs o WHERE o.job_id > j.job_id AND o.job_id < j.job_id + j.members))"""
        )
    ]


def table_rows(store: Store, table: str) -> list[Row]:
    """All rows of one table, raw."""
    assert table in (*KEYS, "waits", "events", "meta", "set_aside", "terms"), table
    return store.rows(f"SELECT {JOB} FROM {JOBS}" if table == "jobs" else f"SELECT * FROM {table}")


def live_rows(store: Store, table: str) -> list[Row]:
    """The rows of one table to which the rules of the tree apply.

    Of ended jobs and tasks these are only the ones whose job still has processes or, for a job, a cluster.
    """
    of_runs = "SELECT job_id FROM runs"
    where = {
        "tasks": "task_number IN (SELECT task_number FROM tasks WHERE ended_at IS NULL UNION"
        f" SELECT task_number FROM tasks WHERE job_id IN ({of_runs}))",
        "jobs": f"job_id IN (SELECT job_id FROM jobs WHERE status = 'RUNNING' UNION {of_runs} UNION"
        " SELECT job_id FROM clusters WHERE job_id IS NOT NULL)",
    }
    return (
        store.rows(f"SELECT * FROM {table} WHERE {where[table]}")
        if table in where
        else table_rows(store, table)
    )


def count_rows(store: Store, table: str) -> int:
    """How many rows a table has."""
    assert table in KEYS, table
    return int(store.value(f"SELECT count(*) FROM {table}"))


def is_set_aside(store: Store, table: str, key: str) -> bool:
    """Whether a row was set aside."""
    return store.row("SELECT 1 FROM set_aside WHERE source = ? AND row_key = ?", table, key) is not None
