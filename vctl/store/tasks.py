"""SQL about tasks."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.core import tasks as tk
from vctl.store.contents import COMMAND, COMMANDS
from vctl.store.filters import MOMENT, NUMBER, TEXT, FilterColumn
from vctl.store.store import Row, Store

FILTERED = {
    **{key: FilterColumn(TEXT, key) for key in ("task_id", "name", "state", "state_reason")},
    "job_id": FilterColumn(NUMBER, "job_id"),
    **{key: FilterColumn(TEXT, key) for key in ("cluster_id", "node_id", "vnode_id", "owner_id")},
    "created_at": FilterColumn(MOMENT, "created_at"),
}
"""What the filters of a list of tasks compare. The reason of a waiting task is not in the tables."""


def get(store: Store, task_id: str) -> Row | None:
    """One task."""
    return store.row("SELECT * FROM tasks WHERE task_id = ?", task_id)


def launch(store: Store, task_id: str) -> Row | None:
    """The command of a task: argv, environment, directory."""
    return store.row(f"SELECT {COMMAND} FROM tasks {COMMANDS} WHERE task_id = ?", task_id)


def views(
    store: Store, where: str = "1", values: Iterable[object] = (), limit: int | None = None
) -> list[Row]:
    """Tasks that match, oldest first; the newest of them when limited."""
    tail = "" if limit is None else f" LIMIT {int(limit)}"
    tasks = store.rows(f"SELECT * FROM tasks WHERE {where} ORDER BY task_number DESC{tail}", *values)
    return tasks[::-1]


def waiting_rows(store: Store) -> list[Row]:
    """Tasks that wait for a place, oldest first."""
    return store.rows(
        "SELECT * FROM tasks WHERE ended_at IS NULL AND state = ? ORDER BY task_number", tk.PENDING_NODE
    )


def running_rows(store: Store, cluster_id: str) -> list[Row]:
    """Running tasks of a cluster, in the order in which they started."""
    return store.rows(
        "SELECT * FROM tasks WHERE ended_at IS NULL AND cluster_id = ? AND state = ? ORDER BY started_at, task_number",
        cluster_id, tk.RUNNING,
    )  # fmt: skip


def unfinished(store: Store) -> list[Row]:
    """Tasks that are not over, oldest first."""
    return store.rows("SELECT * FROM tasks WHERE ended_at IS NULL ORDER BY task_number")


def unfinished_in(store: Store, cluster_id: str) -> list[Row]:
    """Tasks of a cluster that are not over, oldest first."""
    return views(store, "cluster_id = ? AND ended_at IS NULL", [cluster_id])


def outliving(store: Store) -> set[str]:
    """Ids of the unfinished tasks that outlive their job: detached, or started by a detached task."""
    return set(
        store.column(
            "WITH RECURSIVE up (task_id, owner_id, detached) AS"
            " (SELECT task_id, owner_id, detached FROM tasks WHERE ended_at IS NULL"
            " UNION ALL SELECT up.task_id, t.owner_id, t.detached FROM up JOIN tasks t ON t.task_id = up.owner_id)"
            " SELECT task_id FROM up WHERE detached"
        )
    )


def bound(store: Store) -> list[Row]:
    """Tasks that wait for one virtual node alone: ``vnode_id`` and ``request``."""
    return store.rows(
        "SELECT vnode_id, request FROM tasks WHERE ended_at IS NULL AND state = ? AND vnode_id IS NOT NULL",
        tk.PENDING_NODE,
    )


def is_detached(store: Store, task_id: str) -> bool:
    """Whether a task outlives its job: it is detached, or a detached task started it."""
    return bool(
        store.value(
            "WITH RECURSIVE up (owner_id, detached) AS (SELECT owner_id, detached FROM tasks WHERE task_id = ?"
            " UNION ALL SELECT t.owner_id, t.detached FROM tasks t JOIN up ON t.task_id = up.owner_id)"
            " SELECT max(detached) FROM up",
            task_id,
        )
    )


def next_number(store: Store) -> int:
    """The number that the next task gets; inside a transaction."""
    last = store.value("SELECT seq FROM sqlite_sequence WHERE name = 'tasks'")
    return int(last or 0) + 1


def count(store: Store, where: str = "1", values: Iterable[object] = ()) -> int:
    """How many tasks match."""
    return int(store.value(f"SELECT count(*) FROM tasks WHERE {where}", *values))


def ids_among(store: Store, spans: Iterable[tuple[int, int]]) -> list[str]:
    """The ids of all tasks of some jobs."""
    ids = []
    for span in spans:
        ids += store.rows("SELECT task_id FROM tasks WHERE job_id BETWEEN ? AND ?", *span)
    return [row[0] for row in ids]


def unfinished_among(store: Store, first_job_id: int, last_job_id: int) -> Row | None:
    """The first task of a span of jobs that is not over: ``task_id`` and the job's ``submission_id``."""
    return store.row(
        "SELECT t.task_id, j.submission_id FROM tasks t JOIN jobs j USING (job_id)"
        " WHERE t.job_id BETWEEN ? AND ? AND t.ended_at IS NULL ORDER BY t.task_number LIMIT 1",
        first_job_id, last_job_id,
    )  # fmt: skip
