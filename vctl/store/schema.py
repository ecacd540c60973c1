"""The schema, forward only: one migration per released change, each a list of statements.

Amounts in JSON columns are integers of 1/10000; times are nanoseconds since the epoch. ``events`` is both the
journal that people read and the feed that a scheduler follows: every change writes one row in its transaction. A row
with an empty kind is for schedulers alone. ``head`` is the one row that every transaction checks.
"""

from __future__ import annotations

from vctl.store.schema_changes import LATER

MIGRATIONS: list[tuple[str, str]] = [
    (
        "0001_foundation",
        """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE nodes (
    node_id TEXT PRIMARY KEY, hostname TEXT NOT NULL, template_id TEXT NOT NULL, source TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT, author TEXT, state_since INTEGER NOT NULL,
    amounts TEXT NOT NULL, instances TEXT NOT NULL, cores TEXT NOT NULL, labels TEXT NOT NULL,
    boot_id TEXT, heartbeat_timeout_s REAL, last_heartbeat INTEGER, created_at INTEGER NOT NULL,
    devices TEXT NOT NULL DEFAULT '{}', shrunk INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE clusters (
    cluster_id TEXT PRIMARY KEY, parent_id TEXT NOT NULL, kind TEXT NOT NULL, divisible INTEGER NOT NULL,
    revision INTEGER NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL, job_id INTEGER,
    detached INTEGER NOT NULL DEFAULT 0, settings TEXT NOT NULL DEFAULT '{}',
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, owner TEXT
);
CREATE INDEX clusters_by_parent ON clusters (parent_id);
CREATE TABLE vnodes (
    vnode_id TEXT PRIMARY KEY, cluster_id TEXT NOT NULL, node_id TEXT NOT NULL, parent_vnode_id TEXT NOT NULL,
    kind TEXT NOT NULL, whole INTEGER NOT NULL, rank INTEGER NOT NULL,
    amounts TEXT NOT NULL, instances TEXT NOT NULL, cores TEXT NOT NULL, labels TEXT NOT NULL
);
CREATE INDEX vnodes_by_cluster ON vnodes (cluster_id);
CREATE INDEX vnodes_by_parent ON vnodes (parent_vnode_id);
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY AUTOINCREMENT, submission_id TEXT NOT NULL UNIQUE, name TEXT,
    parent_cluster_id TEXT NOT NULL, cluster_id TEXT NOT NULL, shares_parent INTEGER NOT NULL DEFAULT 0,
    status TEXT NOT NULL, state_reason TEXT, message TEXT, exit_code INTEGER,
    priority INTEGER NOT NULL, shape TEXT NOT NULL, spec TEXT NOT NULL, given_spec TEXT, entry TEXT NOT NULL,
    entrypoint TEXT NOT NULL, user TEXT NOT NULL, metadata TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0, begin_at INTEGER, time_limit_s REAL, grace_s REAL NOT NULL,
    stop_requested_at INTEGER, stop_reason TEXT, stop_grace_s REAL,
    submitted_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER,
    resources TEXT, node_ids TEXT, outcome TEXT, rules TEXT NOT NULL DEFAULT '{}',
    waits_for INTEGER NOT NULL DEFAULT 0, closed INTEGER NOT NULL DEFAULT 0, array_id TEXT, array_index INTEGER,
    per_node INTEGER NOT NULL DEFAULT 0, master_port INTEGER
);
CREATE INDEX jobs_queue ON jobs (parent_cluster_id, priority DESC, job_id) WHERE status = 'PENDING';
CREATE INDEX jobs_running ON jobs (job_id) WHERE status = 'RUNNING';
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE job_launches (
    job_id INTEGER PRIMARY KEY REFERENCES jobs (job_id) ON DELETE CASCADE,
    argv TEXT NOT NULL, env TEXT NOT NULL, cwd TEXT NOT NULL, options TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE arrays (
    array_id TEXT PRIMARY KEY, first_job_id INTEGER NOT NULL, last_job_id INTEGER NOT NULL, range TEXT NOT NULL,
    count INTEGER NOT NULL, at_once INTEGER, argv TEXT NOT NULL, env TEXT NOT NULL, cwd TEXT NOT NULL,
    options TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
CREATE TABLE dependencies (
    job_id INTEGER NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE, condition TEXT NOT NULL, awaited TEXT NOT NULL,
    PRIMARY KEY (job_id, awaited, condition)
) WITHOUT ROWID;
CREATE INDEX dependencies_by_awaited ON dependencies (awaited);
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, job_id INTEGER NOT NULL, task_id TEXT, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
    cluster_id TEXT NOT NULL, vnode_id TEXT NOT NULL, node_id TEXT NOT NULL, state TEXT NOT NULL,
    amounts TEXT NOT NULL, instances TEXT NOT NULL, cores TEXT NOT NULL,
    pid INTEGER, pid_start INTEGER, boot_id TEXT, stop_reason TEXT, exit_code INTEGER, message TEXT,
    assigned_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER, warned_for INTEGER
);
CREATE INDEX runs_live ON runs (run_id) WHERE state <> 'ENDED';
CREATE INDEX runs_by_job ON runs (job_id);
CREATE TABLE tasks (
    task_number INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL UNIQUE, job_id INTEGER NOT NULL,
    cluster_id TEXT NOT NULL, owner_id TEXT NOT NULL, name TEXT, state TEXT NOT NULL, state_reason TEXT, message TEXT,
    request TEXT NOT NULL, selector TEXT NOT NULL, strategy TEXT NOT NULL, origin_vnode_id TEXT,
    inputs TEXT NOT NULL DEFAULT '[]', outputs TEXT NOT NULL DEFAULT '[]',
    max_retries INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0, detached INTEGER NOT NULL DEFAULT 0,
    vnode_id TEXT, node_id TEXT, exit_code INTEGER, grace_s REAL NOT NULL DEFAULT 3,
    stop_requested_at INTEGER, created_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER
);
CREATE INDEX tasks_unfinished ON tasks (cluster_id, task_number) WHERE ended_at IS NULL;
CREATE INDEX tasks_by_job ON tasks (job_id);
CREATE INDEX tasks_by_owner ON tasks (owner_id) WHERE ended_at IS NULL;
CREATE TABLE task_launches (
    task_id TEXT PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
    argv TEXT NOT NULL, env TEXT NOT NULL, cwd TEXT NOT NULL
);
CREATE TABLE leases (
    lease_id INTEGER PRIMARY KEY AUTOINCREMENT, borrower_id TEXT NOT NULL, lender_id TEXT NOT NULL,
    vnode_id TEXT NOT NULL, node_id TEXT NOT NULL, amounts TEXT NOT NULL, since INTEGER NOT NULL,
    expires_at INTEGER, job_id INTEGER
);
CREATE INDEX leases_by_vnode ON leases (vnode_id);
CREATE TABLE feasible (
    parent_cluster_id TEXT NOT NULL, shape TEXT NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (parent_cluster_id, shape)
) WITHOUT ROWID;
CREATE TABLE waits (
    parent_cluster_id TEXT NOT NULL, shape TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    since INTEGER NOT NULL, PRIMARY KEY (parent_cluster_id, shape)
) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, kind TEXT NOT NULL, object TEXT NOT NULL,
    object_id TEXT NOT NULL, cluster_id TEXT, job_id INTEGER, data TEXT NOT NULL
);
CREATE INDEX events_by_object ON events (object, object_id);
CREATE TABLE set_aside (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, row_key TEXT NOT NULL, content TEXT NOT NULL, problem TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE TABLE reigns (
    epoch INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, kind TEXT NOT NULL, started_at INTEGER NOT NULL,
    ended_at INTEGER
);
CREATE VIEW v_jobs AS
    SELECT j.job_id, j.submission_id, j.name, j.status,
           CASE WHEN j.status = 'PENDING' THEN coalesce(j.state_reason, w.reason, 'PendingEvaluation')
                ELSE j.state_reason END AS state_reason,
           CASE WHEN j.status = 'PENDING' THEN coalesce(j.message, w.message) ELSE j.message END AS message,
           j.exit_code, j.cluster_id, j.parent_cluster_id, j.priority, j.entrypoint, j.attempt, j.user,
           j.submitted_at, j.started_at, j.ended_at, j.metadata
    FROM jobs j LEFT JOIN waits w ON j.status = 'PENDING' AND w.parent_cluster_id = j.parent_cluster_id
        AND w.shape = j.shape;
CREATE VIEW v_nodes AS
    SELECT node_id, hostname, template_id, source, state, reason, author, amounts, labels, created_at FROM nodes;
CREATE VIEW v_clusters AS
    SELECT cluster_id, parent_id, kind, divisible, revision, state, job_id, created_at, updated_at FROM clusters;
CREATE VIEW v_vnodes AS
    SELECT vnode_id, cluster_id, node_id, parent_vnode_id, kind, whole, rank, amounts, labels FROM vnodes;
CREATE VIEW v_events AS SELECT seq, at, kind, object, object_id, cluster_id, job_id, data FROM events;
""",
    ),
    (
        "0002_preemption_objects_usage",
        """
CREATE INDEX leases_by_borrower ON leases (borrower_id);
CREATE INDEX leases_by_lender ON leases (lender_id);
DROP VIEW v_jobs;
CREATE VIEW v_jobs AS
    SELECT j.job_id, j.submission_id, j.name, j.status,
           CASE WHEN j.status = 'PENDING' THEN coalesce(j.state_reason, u.reason, w.reason, 'PendingEvaluation')
                ELSE j.state_reason END AS state_reason,
           CASE WHEN j.status = 'PENDING' THEN coalesce(j.message, u.message, w.message) ELSE j.message END AS message,
           j.exit_code, j.cluster_id, j.parent_cluster_id, j.priority, j.entrypoint, j.attempt, j.user,
           j.submitted_at, j.started_at, j.ended_at, j.metadata
    FROM jobs j
    LEFT JOIN waits w ON j.status = 'PENDING' AND w.parent_cluster_id = j.parent_cluster_id AND w.shape = j.shape
    LEFT JOIN waits u ON j.status = 'PENDING' AND u.parent_cluster_id = j.parent_cluster_id
        AND u.shape = j.shape || ';user=' || j.user;
CREATE TABLE objects (
    job_id INTEGER NOT NULL, name TEXT NOT NULL, node_id TEXT NOT NULL, cluster_id TEXT NOT NULL, size INTEGER NOT NULL,
    task_id TEXT, created_at INTEGER NOT NULL, PRIMARY KEY (job_id, name, node_id)
) WITHOUT ROWID;
CREATE INDEX objects_by_node ON objects (node_id);
CREATE TABLE promises (
    job_id INTEGER NOT NULL, name TEXT NOT NULL, task_id TEXT, PRIMARY KEY (job_id, name)
) WITHOUT ROWID;
CREATE TABLE task_inputs (
    job_id INTEGER NOT NULL, name TEXT NOT NULL, task_id TEXT NOT NULL, PRIMARY KEY (job_id, name, task_id)
) WITHOUT ROWID;
ALTER TABLE jobs ADD COLUMN preemptions INTEGER NOT NULL DEFAULT 0;
CREATE TABLE preemptions (
    victim_id INTEGER PRIMARY KEY REFERENCES jobs (job_id) ON DELETE CASCADE, attempt INTEGER NOT NULL,
    winner_id INTEGER NOT NULL, winner TEXT NOT NULL, rule TEXT NOT NULL, warns INTEGER NOT NULL,
    ends_at INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0, ending INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE earmarks (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL UNIQUE REFERENCES jobs (job_id) ON DELETE CASCADE, submission_id TEXT NOT NULL,
    parent_cluster_id TEXT NOT NULL, priority INTEGER NOT NULL, pieces TEXT NOT NULL, awaited TEXT NOT NULL
);
CREATE TABLE usage (
    cluster_id TEXT NOT NULL, child_id TEXT NOT NULL, user TEXT NOT NULL, resource TEXT NOT NULL, amount REAL NOT NULL,
    at INTEGER NOT NULL, PRIMARY KEY (cluster_id, child_id, user, resource)
) WITHOUT ROWID;
CREATE VIEW v_objects AS SELECT job_id, name, node_id, cluster_id, size, task_id, created_at FROM objects;
""",
    ),
    (
        "0003_provider_requests",
        """
CREATE TABLE provider_requests (
    request_id TEXT PRIMARY KEY, kind TEXT NOT NULL, action TEXT NOT NULL, template TEXT NOT NULL,
    amounts TEXT NOT NULL, labels TEXT NOT NULL, nodes TEXT NOT NULL, created_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, message TEXT
) WITHOUT ROWID;
""",
    ),
    (
        "0004_counts",
        """
CREATE INDEX jobs_failed ON jobs (ended_at) WHERE status = 'FAILED';
CREATE INDEX events_by_job ON events (job_id) WHERE job_id IS NOT NULL;
CREATE TABLE job_counts (
    parent_cluster_id TEXT NOT NULL, status TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (parent_cluster_id, status)
) WITHOUT ROWID;
CREATE TABLE queue_counts (
    parent_cluster_id TEXT NOT NULL, priority INTEGER NOT NULL, block INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (parent_cluster_id, priority, block)
) WITHOUT ROWID;
INSERT INTO job_counts SELECT parent_cluster_id, status, count(*) FROM jobs GROUP BY 1, 2;
INSERT INTO queue_counts SELECT parent_cluster_id, priority, job_id >> 10, count(*) FROM jobs WHERE status = 'PENDING'
    GROUP BY 1, 2, 3;
CREATE TRIGGER job_counts_empty AFTER UPDATE ON job_counts WHEN new.count = 0 BEGIN
    DELETE FROM job_counts WHERE parent_cluster_id = new.parent_cluster_id AND status = new.status;
END;
CREATE TRIGGER queue_counts_empty AFTER UPDATE ON queue_counts WHEN new.count = 0 BEGIN
    DELETE FROM queue_counts WHERE parent_cluster_id = new.parent_cluster_id AND priority = new.priority
        AND block = new.block;
END;
CREATE TRIGGER jobs_count_insert AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts VALUES (new.parent_cluster_id, new.status, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER jobs_count_delete AFTER DELETE ON jobs BEGIN
    UPDATE job_counts SET count = count - 1 WHERE parent_cluster_id = old.parent_cluster_id AND status = old.status;
END;
CREATE TRIGGER jobs_count_update AFTER UPDATE OF status, parent_cluster_id ON jobs
WHEN old.status <> new.status OR old.parent_cluster_id <> new.parent_cluster_id BEGIN
    UPDATE job_counts SET count = count - 1 WHERE parent_cluster_id = old.parent_cluster_id AND status = old.status;
    INSERT INTO job_counts VALUES (new.parent_cluster_id, new.status, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER queue_count_insert AFTER INSERT ON jobs WHEN new.status = 'PENDING' BEGIN
    INSERT INTO queue_counts VALUES (new.parent_cluster_id, new.priority, new.job_id >> 10, 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER queue_count_delete AFTER DELETE ON jobs WHEN old.status = 'PENDING' BEGIN
    UPDATE queue_counts SET count = count - 1 WHERE parent_cluster_id = old.parent_cluster_id
        AND priority = old.priority AND block = old.job_id >> 10;
END;
CREATE TRIGGER queue_count_leave AFTER UPDATE OF status, parent_cluster_id, priority ON jobs
WHEN old.status = 'PENDING' AND (new.status <> 'PENDING' OR old.parent_cluster_id <> new.parent_cluster_id
    OR old.priority <> new.priority) BEGIN
    UPDATE queue_counts SET count = count - 1 WHERE parent_cluster_id = old.parent_cluster_id
        AND priority = old.priority AND block = old.job_id >> 10;
END;
CREATE TRIGGER queue_count_enter AFTER UPDATE OF status, parent_cluster_id, priority ON jobs
WHEN new.status = 'PENDING' AND (old.status <> 'PENDING' OR old.parent_cluster_id <> new.parent_cluster_id
    OR old.priority <> new.priority) BEGIN
    INSERT INTO queue_counts VALUES (new.parent_cluster_id, new.priority, new.job_id >> 10, 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;
""",
    ),
    (
        "0005_submitters",
        """
ALTER TABLE jobs ADD COLUMN submitted_by INTEGER;
CREATE INDEX jobs_submitted_by ON jobs (submitted_by) WHERE submitted_by IS NOT NULL;
""",
    ),
    (
        "0006_head_and_changes",
        """
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1), journal TEXT NOT NULL, base INTEGER NOT NULL, term INTEGER NOT NULL,
    format INTEGER NOT NULL, revision INTEGER NOT NULL, capacity INTEGER NOT NULL
);
INSERT INTO head SELECT 1, lower(hex(randomblob(8))),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0),
    coalesce((SELECT max(epoch) FROM reigns), 0), 6, coalesce((SELECT value FROM meta WHERE key = 'revision'), 0),
    coalesce((SELECT value FROM meta WHERE key = 'capacity'), 0);
DELETE FROM meta WHERE key IN ('revision', 'capacity');
ALTER TABLE events ADD COLUMN change TEXT;
CREATE INDEX events_hidden ON events (seq) WHERE kind = '';
DROP VIEW v_events;
CREATE VIEW v_events AS SELECT seq, at, kind, object, object_id, cluster_id, job_id, data FROM events WHERE kind <> '';
DROP TRIGGER job_counts_empty;
DROP TRIGGER queue_counts_empty;
DROP TRIGGER jobs_count_insert;
DROP TRIGGER jobs_count_delete;
DROP TRIGGER jobs_count_update;
DROP TRIGGER queue_count_insert;
DROP TRIGGER queue_count_delete;
DROP TRIGGER queue_count_leave;
DROP TRIGGER queue_count_enter;
CREATE TRIGGER job_inserted AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts VALUES (new.parent_cluster_id, new.status, 1) ON CONFLICT DO UPDATE SET count = count + 1;
    INSERT INTO queue_counts VALUES (new.parent_cluster_id, new.priority, new.job_id >> 10, new.status = 'PENDING')
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
END;
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
    UPDATE job_counts SET count = count - 1 WHERE parent_cluster_id = old.parent_cluster_id AND status = old.status;
    UPDATE queue_counts SET count = count - (old.status = 'PENDING') WHERE parent_cluster_id = old.parent_cluster_id
        AND priority = old.priority AND block = old.job_id >> 10;
END;
CREATE TRIGGER job_moved AFTER UPDATE OF status ON jobs WHEN old.status <> new.status BEGIN
    INSERT INTO job_counts VALUES (old.parent_cluster_id, old.status, -1), (old.parent_cluster_id, new.status, 1)
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
    INSERT INTO queue_counts VALUES (old.parent_cluster_id, old.priority, old.job_id >> 10,
        (new.status = 'PENDING') - (old.status = 'PENDING')) ON CONFLICT DO UPDATE SET count = count + excluded.count;
END;
CREATE TRIGGER job_requeued_elsewhere AFTER UPDATE OF parent_cluster_id, priority ON jobs
WHEN old.parent_cluster_id <> new.parent_cluster_id OR old.priority <> new.priority BEGIN
    INSERT INTO job_counts VALUES (old.parent_cluster_id, new.status, -1), (new.parent_cluster_id, new.status, 1)
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
    INSERT INTO queue_counts VALUES
        (old.parent_cluster_id, old.priority, old.job_id >> 10, 0 - (new.status = 'PENDING')),
        (new.parent_cluster_id, new.priority, new.job_id >> 10, new.status = 'PENDING')
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
END;
""",
    ),
    (
        "0007_supervisors",
        """
ALTER TABLE runs ADD COLUMN supervisor INTEGER;
""",
    ),
    (
        "0008_terms",
        """
ALTER TABLE earmarks RENAME TO nominations;
ALTER TABLE reigns RENAME TO terms;
""",
    ),
    (
        "0009_gates_derived",
        """
UPDATE jobs SET state_reason = NULL, message = NULL
    WHERE status = 'PENDING' AND state_reason IN ('Held', 'Dependency', 'BeginTime', 'ArrayLimit');
DELETE FROM dependencies WHERE job_id IN (SELECT job_id FROM jobs WHERE status <> 'PENDING');
UPDATE jobs SET waits_for = 0 WHERE waits_for <> 0 AND status <> 'PENDING';
DROP VIEW v_jobs;
CREATE VIEW v_jobs AS WITH pending AS (
    SELECT *, CASE WHEN status <> 'PENDING' THEN NULL WHEN held THEN 'Held' WHEN waits_for THEN 'Dependency'
        WHEN state_reason = 'Preempted' AND NOT closed THEN 'Preempted'
        WHEN begin_at > (julianday('now') - 2440587.5) * 86400e9 THEN iif(attempt, 'Backoff', 'BeginTime')
        WHEN closed THEN 'ArrayLimit' END AS gate,
        iif(status = 'PENDING' AND state_reason = 'Backoff', NULL, state_reason) AS reason,
        strftime('%Y-%m-%dT%H:%M:%S', begin_at / 1000000000, 'unixepoch')
            || printf('.%06dZ', begin_at / 1000 % 1000000) AS begins
    FROM jobs)
SELECT j.job_id, j.submission_id, j.name, j.status,
    CASE WHEN j.status = 'PENDING' THEN coalesce(j.gate, j.reason, u.reason, w.reason, 'PendingEvaluation')
        ELSE j.state_reason END AS state_reason,
    CASE WHEN j.status <> 'PENDING' OR j.gate = 'Preempted' THEN j.message
        WHEN j.gate = 'Held' THEN 'held until `vctl job release`'
        WHEN j.gate = 'Dependency' THEN 'waits for ' || (SELECT group_concat(condition || ':' || awaited, ', ') FROM (
            SELECT condition, awaited FROM dependencies WHERE job_id = j.job_id ORDER BY awaited, condition LIMIT 5))
            || iif((SELECT count(*) FROM dependencies WHERE job_id = j.job_id) > 5, ' …', '')
        WHEN j.gate = 'Backoff' THEN iif(j.state_reason = 'Backoff', j.message, 'next try at ' || begins)
        WHEN j.gate = 'BeginTime' THEN 'begins at ' || begins
        WHEN j.gate = 'ArrayLimit' THEN 'the running members of its array are at the limit'
        ELSE coalesce(iif(j.reason IS NULL, NULL, j.message), u.message, w.message) END AS message,
    j.exit_code, j.cluster_id, j.parent_cluster_id, j.priority, j.entrypoint, j.attempt, j.user, j.submitted_at,
    j.started_at, j.ended_at, j.metadata
FROM pending j
LEFT JOIN waits w ON j.status = 'PENDING' AND w.parent_cluster_id = j.parent_cluster_id AND w.shape = j.shape
LEFT JOIN waits u ON j.status = 'PENDING' AND u.parent_cluster_id = j.parent_cluster_id
    AND u.shape = j.shape || ';user=' || j.user;
""",
    ),
    (
        "0010_lease_states",
        """
ALTER TABLE leases ADD COLUMN state TEXT NOT NULL DEFAULT 'GRANTED';
""",
    ),
    *LATER,
]

VERSION = len(MIGRATIONS)
"""``PRAGMA user_version`` of a database that this code writes."""
