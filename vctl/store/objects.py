"""SQL about objects: the named outputs of tasks on nodes, their makers, and the tasks that wait for them.

``objects`` has a row for each copy. ``promises`` has the maker of each object, also of one that was never
made: a task, or the entrypoint that put it there (``task_id`` is NULL).
"""

from __future__ import annotations

from _sqlite3 import Row
from collections.abc import Collection

from vctl.core import tasks as tk
from vctl.core.tasks import Maker
from vctl.store import rows
from vctl.store.store import Store

_MAKERS = (
    "SELECT p.job_id, p.name, p.task_id, t.state, t.state_reason, t.node_id"
    " FROM promises p LEFT JOIN tasks t USING (task_id)"
)
_WAITS = f"t.ended_at IS NULL AND t.state <> '{tk.RUNNING}'"


def makers(store: Store, job_id: int, names: Collection[str]) -> dict[str, Maker]:
    """Name -> the maker of the object, even if it was never made."""
    found = store.rows(
        f"{_MAKERS} WHERE p.job_id = ? AND p.name IN (SELECT value FROM json_each(?))",
        job_id, rows.dumps(list(names)),
    )  # fmt: skip
    return {row["name"]: _maker(row) for row in found}


def all_makers(store: Store) -> list[tuple[int, str, Maker]]:
    """(job, name, maker of the object) of all jobs."""
    return [(row["job_id"], row["name"], _maker(row)) for row in store.rows(_MAKERS)]


def _maker(row: Row) -> Maker:
    if row["task_id"] is None:
        return Maker(None)
    state = row["state"] or tk.FAILED  # the row of a task that is missing was set aside
    if state not in tk.FINAL:
        return Maker(row["task_id"])
    return Maker(row["task_id"], state, row["state_reason"], row["node_id"])


def there(store: Store, job_id: int, names: Collection[str]) -> set[str]:
    """The names in ``names`` that have an object."""
    return set(
        store.column(
            "SELECT DISTINCT name FROM objects WHERE job_id = ? AND name IN (SELECT value FROM json_each(?))",
            job_id,
            rows.dumps(list(names)),
        )
    )


def expecting(store: Store, job_id: int, names: Collection[str]) -> list[Row]:
    """Tasks that have not started and have one of these inputs, oldest first."""
    return store.rows(
        "SELECT DISTINCT t.* FROM task_inputs i JOIN tasks t USING (task_id)"
        f" WHERE i.job_id = ? AND i.name IN (SELECT value FROM json_each(?)) AND {_WAITS} ORDER BY t.task_number",
        job_id, rows.dumps(list(names)),
    )  # fmt: skip


def are_on(store: Store, node_id: str) -> list[Row]:
    """The objects on a node: ``job_id``, ``submission_id``, ``attempt``, ``name``, ``cluster_id``."""
    return store.rows(
        "SELECT j.job_id, j.submission_id, j.attempt, o.name, o.cluster_id FROM objects o JOIN jobs j USING (job_id)"
        " WHERE o.node_id = ? ORDER BY j.job_id, o.name",
        node_id,
    )


def copies(store: Store) -> list[Row]:
    """Every copy of every object, oldest first: the first copy of an object lies where it was made."""
    return store.rows("SELECT * FROM objects ORDER BY created_at, node_id")


def with_objects(store: Store) -> list[int]:
    """Jobs that have objects, or that have tasks with inputs or outputs."""
    return store.column(
        "SELECT job_id FROM objects UNION SELECT job_id FROM promises UNION SELECT job_id FROM task_inputs"
    )


def is_wanted(store: Store, job_id: int, attempt: int) -> bool:
    """Whether a job's attempt may use its objects: it runs, has an unfinished task, or is assigned ahead."""
    return bool(
        store.value(
            "SELECT 1 FROM jobs j WHERE job_id = ? AND attempt = ? AND (status = 'RUNNING'"
            " OR EXISTS (SELECT 1 FROM tasks t WHERE t.job_id = j.job_id AND t.ended_at IS NULL))"
            " UNION ALL SELECT 1 FROM runs_ahead WHERE job_id = ?",
            job_id, attempt, job_id,
        )
    )  # fmt: skip


def listed(store: Store, **columns: object) -> list[Row]:
    """Every copy of the objects with these values of columns, and its job's ``submission_id`` and ``attempt``.

    Oldest objects first.
    """
    where = " AND ".join(["1", *(f"o.{name} = ?" for name in columns)])
    return store.rows(
        "SELECT o.*, j.submission_id, j.attempt FROM objects o JOIN jobs j USING (job_id)"
        f" WHERE {where} ORDER BY o.job_id, o.name, o.created_at, o.node_id",
        *columns.values(),
    )


def sizes(store: Store) -> list[Row]:
    """(cluster_id, total bytes of all copies in it)."""
    return store.rows("SELECT cluster_id, sum(size) AS size FROM objects GROUP BY cluster_id")
