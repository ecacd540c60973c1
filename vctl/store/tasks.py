"""SQL about tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vctl.core import tasks as tk
from vctl.engine.lifecycle import TASK
from vctl.store import moves
from vctl.store.store import Row, Store


def insert(store: Store, columns: Mapping[str, object], launch: Mapping[str, object]) -> int:
    """Queue a task; returns its number. Its id is made from it when none is given."""
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    cursor = store.db.execute(f"INSERT INTO tasks ({names}) VALUES ({marks})", tuple(columns.values()))
    number = cursor.lastrowid
    assert number is not None
    store.db.execute(
        "INSERT INTO task_launches (task_id, argv, env, cwd) VALUES (?, ?, ?, ?)",
        (columns["task_id"], launch["argv"], launch["env"], launch["cwd"]),
    )
    _event(store, "task.submitted", str(columns["task_id"]), str(columns["cluster_id"]), columns["job_id"])
    return number


def _event(
    store: Store, kind: str, task_id: str, cluster_id: str | None, job_id: object, **data: object
) -> None:
    number = job_id if isinstance(job_id, int) else None
    store.event(kind, "task", task_id, cluster_id=cluster_id, job_id=number, data=data)


def get(store: Store, task_id: str) -> Row | None:
    """One task."""
    return store.row("SELECT * FROM tasks WHERE task_id = ?", task_id)


def launch(store: Store, task_id: str) -> Row | None:
    """What is started: argv, environment, directory; what it uses and what it is to leave."""
    return store.row(
        "SELECT l.*, t.inputs, t.outputs FROM task_launches l JOIN tasks t USING (task_id) WHERE task_id = ?",
        task_id,
    )


def views(
    store: Store, where: str = "1", values: Iterable[object] = (), limit: int | None = None
) -> list[Row]:
    """Tasks that match, oldest first; the newest of them when limited."""
    tail = "" if limit is None else f" LIMIT {int(limit)}"
    found = store.rows(f"SELECT * FROM tasks WHERE {where} ORDER BY task_number DESC{tail}", *values)
    return found[::-1]


def waiting_rows(store: Store) -> list[Row]:
    """Tasks that wait for a place, oldest first."""
    return store.rows(
        "SELECT * FROM tasks WHERE ended_at IS NULL AND state = ? ORDER BY task_number", tk.PENDING_NODE
    )


def bound(store: Store) -> list[Row]:
    """Tasks that wait for one virtual node alone: ``vnode_id`` and ``request``."""
    return store.rows(
        "SELECT vnode_id, request FROM tasks WHERE ended_at IS NULL AND state = ? AND vnode_id IS NOT NULL",
        tk.PENDING_NODE,
    )


def stop_requests(store: Store) -> list[Row]:
    """Running tasks that somebody asked to cancel."""
    return store.rows("SELECT * FROM tasks WHERE ended_at IS NULL AND stop_requested_at IS NOT NULL")


def mark_started(store: Store, task_id: str, *, vnode_id: str, node_id: str, attempt: int) -> None:
    """A place is reserved: the task runs from now on."""
    moves.update(
        store.db, TASK, "start", task_id,
        "state = ?, state_reason = NULL, message = NULL, vnode_id = ?, node_id = ?, attempt = ?, started_at = ?",
        (tk.RUNNING, vnode_id, node_id, attempt, store.clock()),
    )  # fmt: skip
    row = get(store, task_id)
    assert row is not None
    _event(store, "task.started", task_id, row["cluster_id"], row["job_id"], vnode=vnode_id)


def mark_ready(store: Store, task_id: str) -> None:
    """All inputs of a task are there: it waits for a place from now on."""
    _move(store, task_id, "ready", None, None, "task.ready")


def mark_awaiting(store: Store, task_id: str, message: str) -> None:
    """Inputs of a task are not there, or not any more."""
    _move(store, task_id, "await", tk.AWAITING_INPUTS, message, "task.awaits_inputs")


def _move(store: Store, task_id: str, move: str, reason: str | None, message: str | None, event: str) -> None:
    (state,) = TASK.targets(move)
    moves.update(
        store.db, TASK, move, task_id, "state = ?, state_reason = ?, message = ?, vnode_id = NULL, node_id = NULL",
        (state, reason, message),
    )  # fmt: skip
    row = get(store, task_id)
    assert row is not None
    _event(store, event, task_id, row["cluster_id"], row["job_id"])


def mark_waiting(store: Store, task_id: str, reason: str, message: str, vnode_id: str | None = None) -> None:
    """Why a task waits, and for which virtual node alone; no event, because that is not a change of its state."""
    store.db.execute(
        "UPDATE tasks SET state_reason = ?1, message = ?2, vnode_id = ?3,"
        " node_id = (SELECT node_id FROM vnodes WHERE vnode_id = ?3) WHERE task_id = ?4 AND state = ?5",
        (reason, message, vnode_id, task_id, tk.PENDING_NODE),
    )


def mark_retry(store: Store, task_id: str, message: str) -> None:
    """A failed try is repeated: the task waits for a place again, if its inputs are still there."""
    moves.update(
        store.db, TASK, "retry", task_id, "state = ?, vnode_id = NULL, node_id = NULL, message = ?",
        (tk.PENDING_NODE, message),
    )  # fmt: skip
    row = get(store, task_id)
    assert row is not None
    _event(store, "task.retried", task_id, row["cluster_id"], row["job_id"], message=message)


def mark_ended(
    store: Store, task_id: str, *, move: str, reason: str | None, message: str | None, exit_code: int | None
) -> None:
    """The final state of a task: ``move`` is ``finish`` or ``fail``, or ``cancel`` for one that has not started."""
    (state,) = TASK.targets(move)
    moves.update(
        store.db, TASK, move, task_id, "state = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ?",
        (state, reason, message, exit_code, store.clock()),
    )  # fmt: skip
    row = get(store, task_id)
    assert row is not None
    _event(store, "task.ended", task_id, row["cluster_id"], row["job_id"], state=state, exit_code=exit_code)


def request_cancel(store: Store, task_id: str, grace_s: float | None) -> None:
    """Ask the scheduler to end a running task."""
    store.db.execute(
        "UPDATE tasks SET stop_requested_at = coalesce(stop_requested_at, ?), grace_s = coalesce(?, grace_s)"
        " WHERE task_id = ?",
        (store.clock(), grace_s, task_id),
    )
    row = get(store, task_id)
    assert row is not None
    _event(store, "task.stop_requested", task_id, row["cluster_id"], row["job_id"])


def is_detached(store: Store, task_id: str) -> bool:
    """Whether a task outlives its job: it is detached, or was started by one that is."""
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
    found: int = store.value(f"SELECT count(*) FROM tasks WHERE {where}", *values)
    return found


def jobs_with_objects(store: Store) -> list[int]:
    """Running jobs that have had tasks, others of which a task is not over, and all that have objects."""
    return [
        row[0]
        for row in store.rows(
            "SELECT job_id FROM tasks WHERE job_id IN (SELECT job_id FROM jobs WHERE status = 'RUNNING')"
            " UNION SELECT job_id FROM tasks WHERE ended_at IS NULL UNION SELECT job_id FROM objects"
        )
    ]


def owned_by(store: Store, owner_id: str) -> list[Row]:
    """Unfinished tasks that an owner (a job's submission id or a task id) started and did not detach."""
    return store.rows(
        "SELECT * FROM tasks WHERE owner_id = ? AND ended_at IS NULL AND NOT detached ORDER BY task_number",
        owner_id,
    )


def unfinished_of_job(store: Store, job_id: int) -> list[Row]:
    """Tasks of a job that are not over."""
    return store.rows(
        "SELECT * FROM tasks WHERE job_id = ? AND ended_at IS NULL ORDER BY task_number", job_id
    )


def unfinished_among(store: Store, first_job_id: int, last_job_id: int) -> Row | None:
    """The first task of a span of jobs that is not over: ``task_id`` and the job's ``submission_id``."""
    return store.row(
        "SELECT t.task_id, j.submission_id FROM tasks t JOIN jobs j USING (job_id)"
        " WHERE t.job_id BETWEEN ? AND ? AND t.ended_at IS NULL ORDER BY t.task_number LIMIT 1",
        first_job_id, last_job_id,
    )  # fmt: skip
