"""SQL about jobs, their runs, the reasons why shapes wait, and the feed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sqlite3 import Row

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.store import rows
from vctl.store.store import Store

VIEW = (
    "SELECT j.*, coalesce(j.state_reason, CASE WHEN j.status = 'PENDING' THEN coalesce(u.reason, w.reason,"
    " 'PendingEvaluation')"
    " END) AS reason, coalesce(j.message, CASE WHEN j.status = 'PENDING' THEN coalesce(u.message, w.message,"
    " 'waiting for the scheduler to look at it') END) AS words"
    " FROM jobs j LEFT JOIN waits w ON j.status = 'PENDING' AND w.parent_cluster_id = j.parent_cluster_id"
    " AND w.shape = j.shape"
    " LEFT JOIN waits u ON j.status = 'PENDING' AND u.parent_cluster_id = j.parent_cluster_id"
    " AND u.shape = j.shape || ';user=' || j.user "
)
"""Why a job waits is kept by shape; by shape and user where users are limited."""


def insert(store: Store, columns: Mapping[str, object], launch: Mapping[str, object]) -> int:
    """Queue a job; returns its number."""
    names = ", ".join(columns)
    marks = ", ".join("?" * len(columns))
    cursor = store.db.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", tuple(columns.values()))
    job_id = cursor.lastrowid
    assert job_id is not None
    store.db.execute(
        "INSERT INTO job_launches (job_id, argv, env, cwd, options) VALUES (?, ?, ?, ?, ?)",
        (job_id, launch["argv"], launch["env"], launch["cwd"], launch["options"]),
    )
    store.event(
        "job.submitted",
        "job",
        str(columns["submission_id"]),
        cluster_id=str(columns["parent_cluster_id"]),
        job_id=job_id,
    )
    return job_id


def view(store: Store, job_id: int) -> Row | None:
    """One job with its present reason."""
    return store.row(VIEW + "WHERE j.job_id = ?", job_id)


def views(
    store: Store, where: str = "1", values: Iterable[object] = (), limit: int | None = None
) -> list[Row]:
    """Jobs with their present reasons, newest first."""
    tail = "" if limit is None else f" LIMIT {int(limit)}"
    return store.rows(f"{VIEW} WHERE {where} ORDER BY j.job_id DESC{tail}", *values)


def count(store: Store, where: str = "1", values: Iterable[object] = ()) -> int:
    """How many jobs match."""
    found: int = store.value(f"SELECT count(*) FROM jobs j WHERE {where}", *values)
    return found


def launch(store: Store, job_id: int) -> Row | None:
    """What is started: argv, environment, directory, options; members of an array share theirs."""
    own = store.row("SELECT * FROM job_launches WHERE job_id = ?", job_id)
    return own or store.row("SELECT arrays.* FROM arrays JOIN jobs USING (array_id) WHERE job_id = ?", job_id)


def number_of(store: Store, submission_id: str) -> int | None:
    """The number of a submission id."""
    found: int | None = store.value("SELECT job_id FROM jobs WHERE submission_id = ?", submission_id)
    return found


def submission_id(store: Store, job_id: int) -> str | None:
    """The submission id of a job's number."""
    found: str | None = store.value("SELECT submission_id FROM jobs WHERE job_id = ?", job_id)
    return found


def numbers_like(store: Store, prefix: str, limit: int = 5) -> list[tuple[int, str]]:
    """Jobs whose submission id starts with a prefix; the range of the unique index, no scan."""
    return [
        (row[0], row[1])
        for row in store.rows(
            "SELECT job_id, submission_id FROM jobs WHERE submission_id >= ? AND submission_id < ? ORDER BY 2 LIMIT ?",
            prefix, prefix + "\U0010ffff", limit,
        )
    ]  # fmt: skip


def last_number(store: Store) -> int | None:
    """The newest job."""
    found: int | None = store.value("SELECT max(job_id) FROM jobs")
    return found


def pending_rows(store: Store) -> list[Row]:
    """The queue: what waits for nothing but its turn, its resources or its time."""
    return store.rows(
        "SELECT job_id, submission_id, parent_cluster_id, shape, spec, entry, priority, held, begin_at, shares_parent,"
        " per_node, user, submitted_at, time_limit_s FROM jobs"
        " WHERE status = 'PENDING' AND held = 0 AND waits_for = 0 AND closed = 0"
    )


def is_queued(row: Row) -> bool:
    """Whether a pending job is in the queue, not put back by a hold, a dependency or its array's limit."""
    return not (row["held"] or row["waits_for"] or row["closed"])


def get(store: Store, job_id: int) -> Row | None:
    """One row of ``jobs``."""
    return store.row("SELECT * FROM jobs WHERE job_id = ?", job_id)


def between(store: Store, first: int, last: int) -> list[Row]:
    """Rows of ``jobs`` with consecutive numbers."""
    return store.rows("SELECT * FROM jobs WHERE job_id BETWEEN ? AND ?", first, last)


def is_running(store: Store, job_id: int) -> bool:
    """Whether a job runs."""
    return store.row("SELECT 1 FROM jobs WHERE job_id = ? AND status = 'RUNNING'", job_id) is not None


def next_attempt(store: Store, job_id: int) -> int:
    """Number of the next try of a job, from 1."""
    last: int = store.value("SELECT attempt FROM jobs WHERE job_id = ?", job_id)
    return last + 1


def running_rows(store: Store) -> list[Row]:
    """Jobs that run."""
    return store.rows("SELECT * FROM jobs WHERE status = 'RUNNING' ORDER BY job_id")


def position(store: Store, parent_id: str, priority: int, job_id: int) -> int:
    """Place in the queue, 1 is next; derived from the index, never stored."""
    ahead: int = store.value(
        "SELECT count(*) FROM jobs WHERE status = 'PENDING' AND parent_cluster_id = ?1"
        " AND (priority > ?2 OR (priority = ?2 AND job_id < ?3))",
        parent_id, priority, job_id,
    )  # fmt: skip
    return ahead + 1


def positions(store: Store) -> dict[int, int]:
    """Place in the queue of every pending job, in one pass."""
    found: dict[int, int] = {}
    seen: dict[str, int] = {}
    for job_id, parent in store.db.execute(
        "SELECT job_id, parent_cluster_id FROM jobs WHERE status = 'PENDING'"
        " ORDER BY parent_cluster_id, priority DESC, job_id"
    ):
        seen[parent] = found[job_id] = seen.get(parent, 0) + 1
    return found


def waiting_rows(store: Store, parent_id: str) -> list[Row]:
    """What the order of a queue is made of."""
    return store.rows(
        "SELECT job_id, priority, submitted_at, user, resources, time_limit_s FROM jobs"
        " WHERE status = 'PENDING' AND parent_cluster_id = ?",
        parent_id,
    )


def held_by_users(store: Store, parent_id: str) -> list[Row]:
    """(user, resources) of the jobs that run in a cluster."""
    return store.rows(
        "SELECT user, resources FROM jobs WHERE status = 'RUNNING' AND parent_cluster_id = ?", parent_id
    )


def head(store: Store, limit: int) -> list[Row]:
    """The first of the queue with their reasons."""
    return store.rows(f"{VIEW} WHERE j.status = 'PENDING' ORDER BY j.priority DESC, j.job_id LIMIT ?", limit)


def mark_started(
    store: Store,
    job_id: int,
    submission_id: str,
    cluster_id: str,
    attempt: int,
    node_ids: list[str],
    resources: str,
) -> None:
    """The gang is reserved: the job runs from now on."""
    store.db.execute(
        "UPDATE jobs SET status = ?, state_reason = NULL, message = NULL, cluster_id = ?, attempt = ?,"
        " started_at = ?, node_ids = ?, resources = ? WHERE job_id = ?",
        (jb.RUNNING, cluster_id, attempt, store.clock(), rows.dumps(node_ids), resources, job_id),
    )
    store.event(
        "job.started", "job", submission_id, cluster_id=cluster_id, job_id=job_id,
        data={"attempt": attempt, "nodes": node_ids},
    )  # fmt: skip


def mark_ended(
    store: Store, job_id: int, submission_id: str, *, status: str, reason: str | None, message: str | None,
    exit_code: int | None, cluster_id: str | None = None,
) -> None:  # fmt: skip
    """The final state of a job."""
    store.db.execute(
        "UPDATE jobs SET status = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ? WHERE job_id = ?",
        (status, reason, message, exit_code, store.clock(), job_id),
    )
    data: dict[str, object] = {"status": status, "exit_code": exit_code}
    if reason:
        data["reason"] = reason
    store.event("job.ended", "job", submission_id, cluster_id=cluster_id, job_id=job_id, data=data)


def tell(store: Store, row: Row, kind: str, data: Mapping[str, object] | None = None) -> None:
    """An event about a job."""
    store.event(
        kind,
        "job",
        row["submission_id"],
        cluster_id=row["parent_cluster_id"],
        job_id=row["job_id"],
        data=data,
    )


def mark_requeued(
    store: Store, row: Row, *, reason: str | None, message: str | None, begin_at: int | None,
    data: Mapping[str, object],
) -> None:  # fmt: skip
    """A running job waits again, for another attempt."""
    store.db.execute(
        "UPDATE jobs SET status = ?, state_reason = ?, message = ?, begin_at = ?, outcome = NULL, started_at = NULL,"
        " node_ids = NULL, stop_requested_at = NULL, stop_reason = NULL, stop_grace_s = NULL, master_port = NULL"
        " WHERE job_id = ?",
        (jb.PENDING, reason, message, begin_at, row["job_id"]),
    )
    tell(store, row, "job.requeued", data)


def master_ports(store: Store) -> set[int]:
    """The meeting points of gangs that run."""
    found = store.rows("SELECT master_port FROM jobs WHERE status = 'RUNNING' AND master_port IS NOT NULL")
    return {row[0] for row in found}


def set_master_port(store: Store, job_id: int, port: int) -> None:
    """Where the members of a gang meet in this attempt."""
    store.db.execute("UPDATE jobs SET master_port = ? WHERE job_id = ?", (port, job_id))


def set_outcome(store: Store, job_id: int, outcome: str) -> None:
    """Keep how the entrypoint ended while what it started is still being ended."""
    store.db.execute("UPDATE jobs SET outcome = ? WHERE job_id = ?", (outcome, job_id))


def request_stop(
    store: Store, job_id: int, submission_id: str, *, reason: str, grace_s: float | None
) -> None:
    """Ask the scheduler to stop a running job; the earliest request keeps its time, the last one its grace."""
    store.db.execute(
        "UPDATE jobs SET stop_requested_at = coalesce(stop_requested_at, ?), stop_reason = coalesce(stop_reason, ?),"
        " stop_grace_s = coalesce(?, stop_grace_s) WHERE job_id = ?",
        (store.clock(), reason, grace_s, job_id),
    )
    store.event("job.stop_requested", "job", submission_id, job_id=job_id, data={"reason": reason})


def delete(store: Store, job_id: int, submission_id: str) -> None:
    """Forget a job that is over."""
    store.db.execute("DELETE FROM runs WHERE job_id = ?", (job_id,))
    store.db.execute("DELETE FROM tasks WHERE job_id = ?", (job_id,))
    store.db.execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))
    store.event("job.deleted", "job", submission_id, job_id=job_id)


def ended_before(store: Store, before_ns: int) -> list[Row]:
    """Jobs that ended before a moment."""
    return store.rows(
        "SELECT job_id, submission_id FROM jobs WHERE ended_at IS NOT NULL AND ended_at < ? AND status NOT IN"
        " ('PENDING', 'RUNNING') ORDER BY job_id",
        before_ns,
    )


def delete_events_before(store: Store, before_ns: int) -> int:
    """Forget old history, never what a scheduler has not read yet (the newest rows)."""
    return store.db.execute(
        "DELETE FROM events WHERE at < ? AND seq < (SELECT max(seq) FROM events)", (before_ns,)
    ).rowcount


# ---- runs ----


def insert_run(store: Store, run: Run) -> None:
    """Write the intent to start a process; the event is its job's."""
    amounts, instances, cores = rows.holding_columns(run.holding)
    store.db.execute(
        "INSERT INTO runs (run_id, job_id, task_id, attempt, rank, cluster_id, vnode_id, node_id, state, amounts,"
        " instances, cores, assigned_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            run.run_id, run.job_id, run.task_id, run.attempt, run.rank, run.cluster_id, run.vnode_id, run.node_id,
            run.state, amounts, instances, cores, store.clock(),
        ),
    )  # fmt: skip


def mark_launched(
    store: Store, run_id: str, *, pid: int, pid_start: int, boot_id: str, started_at: int
) -> None:
    """The process has been seen: how to find it again."""
    store.db.execute(
        "UPDATE runs SET state = ?, pid = ?, pid_start = ?, boot_id = ?, started_at = ? WHERE run_id = ? AND state = ?",
        (jb.LAUNCHED, pid, pid_start, boot_id, started_at, run_id, jb.ASSIGNED),
    )


def mark_stopping(store: Store, run_id: str, reason: str) -> None:
    """Remember why a run is being stopped, so that its end is told right after a crash too."""
    store.db.execute(
        "UPDATE runs SET stop_reason = coalesce(stop_reason, ?) WHERE run_id = ?", (reason, run_id)
    )


def warned_for(store: Store, run_id: str) -> int | None:
    """The end for which a process got its warning signal."""
    found: int | None = store.value("SELECT warned_for FROM runs WHERE run_id = ?", run_id)
    return found


def mark_warned(store: Store, run_id: str, end_ns: int) -> None:
    """The warning of this end was sent; another end is warned of anew."""
    store.db.execute("UPDATE runs SET warned_for = ? WHERE run_id = ?", (end_ns, run_id))


def end_run(store: Store, run_id: str, *, exit_code: int | None, message: str | None) -> None:
    """A process is over and everything it started is gone."""
    store.db.execute(
        "UPDATE runs SET state = ?, exit_code = ?, message = ?, ended_at = ? WHERE run_id = ?",
        (jb.ENDED, exit_code, message, store.clock(), run_id),
    )


def strip_run(store: Store, run_id: str) -> None:
    """A run goes on without what was booked for it, which is not there any more."""
    store.db.execute(
        "UPDATE runs SET amounts = '{}', instances = '{}', cores = '[]' WHERE run_id = ?", (run_id,)
    )


def live_runs(store: Store) -> list[Row]:
    """Runs that are not over."""
    return store.rows("SELECT * FROM runs WHERE state <> 'ENDED' ORDER BY run_id")


def runs_of(store: Store, job_id: int) -> list[Row]:
    """All runs of a job, oldest first."""
    return store.rows("SELECT * FROM runs WHERE job_id = ? ORDER BY attempt, rank", job_id)


# ---- why shapes wait ----


def set_wait(store: Store, parent_id: str, shape: str, reason: str, message: str) -> None:
    """Record why jobs of a shape wait below a parent."""
    store.db.execute(
        "INSERT INTO waits VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET reason = excluded.reason,"
        " message = excluded.message",
        (parent_id, shape, reason, message, store.clock()),
    )


def clear_wait(store: Store, parent_id: str, shape: str) -> None:
    """Jobs of this shape no longer wait."""
    store.db.execute("DELETE FROM waits WHERE parent_cluster_id = ? AND shape = ?", (parent_id, shape))


# ---- shapes that could run ----


def capacity(store: Store) -> int:
    """A number that changes whenever a node or a cluster made by name does."""
    found: int | None = store.value("SELECT value FROM meta WHERE key = 'capacity'")
    return found or 0


def is_feasible(store: Store, parent_id: str, shape: str) -> bool:
    """Whether a shape was found to be possible below a parent, and nothing has changed since."""
    known = store.value(
        "SELECT version FROM feasible WHERE parent_cluster_id = ? AND shape = ?", parent_id, shape
    )
    return known is not None and known == capacity(store)


def set_feasible(store: Store, parent_id: str, shape: str, version: int) -> None:
    """Keep that judgement, made at a ``capacity``, for the next job of the shape."""
    store.db.execute("INSERT OR REPLACE INTO feasible VALUES (?, ?, ?)", (parent_id, shape, version))


# ---- the feed ----


def last_event(store: Store) -> int:
    """Number of the newest event."""
    found: int = store.value("SELECT coalesce(max(seq), 0) FROM events")
    return found


def newest_event_at(store: Store) -> int | None:
    """When the newest event happened, by the clock of then."""
    found: int | None = store.value("SELECT max(at) FROM events")
    return found


def events_after(store: Store, seq: int, limit: int = -1) -> list[Row]:
    """Events after a number, oldest first."""
    return store.rows("SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?", seq, limit)


def events(store: Store, where: str, values: Iterable[object], limit: int) -> list[Row]:
    """The newest events that match, oldest first."""
    return store.rows(
        f"SELECT * FROM (SELECT * FROM events WHERE {where} ORDER BY seq DESC LIMIT {int(limit)}) ORDER BY seq",
        *values,
    )


def recent_failures(store: Store, limit: int) -> list[Row]:
    """The last jobs that failed."""
    return store.rows(
        "SELECT submission_id, name, state_reason, message, exit_code, ended_at FROM jobs INDEXED BY jobs_ended"
        " WHERE ended_at IS NOT NULL AND status = 'FAILED' ORDER BY ended_at DESC LIMIT ?",
        limit,
    )


def counts(store: Store) -> dict[str, int]:
    """How many jobs are pending and running."""
    return {
        "pending": store.value("SELECT count(*) FROM jobs WHERE status = 'PENDING'"),
        "running": store.value("SELECT count(*) FROM jobs WHERE status = 'RUNNING'"),
    }


def counts_by_status(store: Store) -> dict[str, int]:
    """How many jobs are in each state."""
    return {row[0]: row[1] for row in store.rows("SELECT status, count(*) FROM jobs GROUP BY 1 ORDER BY 1")}


def pending_by_reason(store: Store) -> dict[str, int]:
    """How many jobs wait for each reason."""
    return {
        row[0]: row[1]
        for row in store.rows(
            "SELECT state_reason, count(*) FROM v_jobs WHERE status = 'PENDING' GROUP BY 1 ORDER BY 1"
        )
    }


def counts_by_cluster(store: Store) -> dict[str, dict[str, int]]:
    """Pending and running jobs per cluster they were submitted to."""
    found: dict[str, dict[str, int]] = {}
    for status in (jb.PENDING, jb.RUNNING):
        for parent, number in store.db.execute(
            f"SELECT parent_cluster_id, count(*) FROM jobs WHERE status = '{status}' GROUP BY 1"
        ):
            found.setdefault(parent, {})[status.lower()] = number
    return found
