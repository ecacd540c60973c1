"""The schema: the tables of the first release as one script, and one migration for each change after it.

Amounts in JSON columns are integers of 1/10000; times are nanoseconds since the epoch. ``events`` is the
history that people read; ``changes`` is the feed that a scheduler follows: every change writes itself there in its
transaction, and stays until each scheduler has read it. One that people are shown has a row with its number in
``events``. ``head`` is the one row that every transaction checks. ``notifications`` has a row for each start and each
end that somebody asked to be told (``--notify``): triggers write it in the transaction of the move, whoever makes it.
"""

from __future__ import annotations

from vctl.store.entries import CLUSTER, DATA, KIND, OBJECT
from vctl.store.gates import counted, gate, opens

FIRST = 19
"""The version of the first schema. Builds before the first release wrote lower ones, which nothing reads any more."""

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1), journal TEXT NOT NULL, base INTEGER NOT NULL, term INTEGER NOT NULL,
    format INTEGER NOT NULL, revision INTEGER NOT NULL, capacity INTEGER NOT NULL,
    contents INTEGER NOT NULL
);
INSERT INTO head VALUES (1, lower(hex(randomblob(8))), 0, 0, {FIRST}, 0, 0, random());
CREATE TABLE nodes (
    node_id TEXT PRIMARY KEY, hostname TEXT NOT NULL, template_id TEXT NOT NULL, source TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT, author TEXT, state_since INTEGER NOT NULL,
    amounts TEXT NOT NULL, instances TEXT NOT NULL, cores TEXT NOT NULL, labels TEXT NOT NULL,
    boot_id TEXT, heartbeat_timeout_s REAL, last_heartbeat INTEGER, created_at INTEGER NOT NULL,
    devices TEXT NOT NULL DEFAULT '{{}}', shrunk INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE clusters (
    cluster_id TEXT PRIMARY KEY, parent_id TEXT NOT NULL, kind TEXT NOT NULL, divisible INTEGER NOT NULL,
    revision INTEGER NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL, job_id INTEGER,
    detached INTEGER NOT NULL DEFAULT 0, settings TEXT NOT NULL DEFAULT '{{}}',
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
CREATE TABLE environments (
    environment_id INTEGER PRIMARY KEY AUTOINCREMENT, checksum INTEGER NOT NULL, env TEXT NOT NULL
);
CREATE INDEX environments_by_checksum ON environments (checksum);
CREATE TABLE requests (
    request_id INTEGER PRIMARY KEY AUTOINCREMENT, checksum INTEGER NOT NULL, shape TEXT NOT NULL, spec TEXT NOT NULL,
    entry TEXT NOT NULL, rules TEXT NOT NULL
);
CREATE INDEX requests_by_checksum ON requests (checksum);
CREATE TABLE commands (
    command_id INTEGER PRIMARY KEY AUTOINCREMENT, checksum INTEGER NOT NULL, argv TEXT NOT NULL, cwd TEXT NOT NULL,
    options TEXT NOT NULL, entrypoint TEXT NOT NULL,
    environment_id INTEGER NOT NULL REFERENCES environments (environment_id),
    request_id INTEGER REFERENCES requests (request_id)
);
CREATE INDEX commands_by_checksum ON commands (checksum);
CREATE INDEX commands_by_environment ON commands (environment_id);
CREATE INDEX commands_by_request ON commands (request_id) WHERE request_id IS NOT NULL;
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY AUTOINCREMENT, submission_id TEXT NOT NULL UNIQUE, name TEXT,
    parent_cluster_id TEXT NOT NULL, shares_parent INTEGER NOT NULL DEFAULT 0,
    cluster_id TEXT AS (iif(shares_parent, parent_cluster_id, parent_cluster_id || '##' || submission_id)),
    status TEXT NOT NULL, state_reason TEXT, message TEXT, exit_code INTEGER, priority INTEGER NOT NULL,
    command_id INTEGER NOT NULL REFERENCES commands (command_id),
    user TEXT NOT NULL, metadata TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0, begin_at INTEGER, time_limit_s REAL, grace_s REAL NOT NULL,
    stop_requested_at INTEGER, stop_reason TEXT, stop_grace_s REAL,
    submitted_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER, resources TEXT, node_ids TEXT, outcome TEXT,
    waits_for INTEGER NOT NULL DEFAULT 0, closed INTEGER NOT NULL DEFAULT 0, array_id TEXT, array_index INTEGER,
    per_node INTEGER NOT NULL DEFAULT 0, master_port INTEGER, preemptions INTEGER NOT NULL DEFAULT 0,
    submitted_by INTEGER, members INTEGER NOT NULL DEFAULT 1 CHECK (members > 0),
    step INTEGER NOT NULL DEFAULT 1 CHECK (step > 0), notifies INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_queue ON jobs (parent_cluster_id, priority DESC, job_id) WHERE status = 'PENDING';
CREATE INDEX jobs_gated ON jobs (parent_cluster_id, priority, job_id, status, held, waits_for, begin_at)
    WHERE status = 'PENDING' AND {opens()} > 0;
CREATE INDEX jobs_folded ON jobs (job_id) WHERE members > 1;
CREATE INDEX jobs_running ON jobs (job_id) WHERE status = 'RUNNING';
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_failed ON jobs (ended_at) WHERE status = 'FAILED';
CREATE INDEX jobs_over ON jobs (
    job_id, status, parent_cluster_id, user, submitted_at, exit_code, priority, state_reason, name, shares_parent,
    array_index
) WHERE status NOT IN ('PENDING', 'RUNNING');
CREATE INDEX jobs_submitted_by ON jobs (submitted_by) WHERE submitted_by IS NOT NULL;
CREATE INDEX jobs_by_command ON jobs (command_id);
CREATE INDEX jobs_of_notified_arrays ON jobs (array_id) WHERE notifies AND status IN ('PENDING', 'RUNNING');
CREATE TABLE job_counts (
    parent_cluster_id TEXT NOT NULL, status TEXT NOT NULL, priority INTEGER NOT NULL, opens INTEGER NOT NULL,
    block INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (parent_cluster_id, status, priority, opens, block)
) WITHOUT ROWID;
CREATE TRIGGER job_inserted AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts VALUES ({counted("new.")}, new.members)
        ON CONFLICT DO UPDATE SET count = count + new.members;
END;
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
    UPDATE job_counts SET count = count - old.members
        WHERE (parent_cluster_id, status, priority, opens, block) = ({counted("old.")});
END;
CREATE TRIGGER job_moved
AFTER UPDATE OF status, parent_cluster_id, priority, held, waits_for, begin_at, members ON jobs BEGIN
    INSERT INTO job_counts VALUES ({counted("old.")}, -old.members), ({counted("new.")}, new.members)
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
END;
CREATE TABLE arrays (
    array_id TEXT PRIMARY KEY, first_job_id INTEGER NOT NULL, last_job_id INTEGER NOT NULL, range TEXT NOT NULL,
    count INTEGER NOT NULL, at_once INTEGER
) WITHOUT ROWID;
CREATE TABLE notifications (
    number INTEGER PRIMARY KEY AUTOINCREMENT, subject TEXT NOT NULL, moment TEXT NOT NULL, job_id INTEGER NOT NULL,
    is_over INTEGER NOT NULL DEFAULT 0, UNIQUE (subject, moment)
);
CREATE INDEX notifications_due ON notifications (number) WHERE NOT is_over;
CREATE TRIGGER job_notified AFTER UPDATE OF status ON jobs WHEN new.notifies BEGIN
    DELETE FROM notifications WHERE new.status = 'PENDING' AND subject = coalesce(new.array_id, new.submission_id)
        AND moment = 'end';
    INSERT INTO notifications (subject, moment, job_id) SELECT coalesce(new.array_id, new.submission_id), 'start',
        new.job_id WHERE new.status <> 'PENDING' AND new.started_at IS NOT NULL ON CONFLICT DO NOTHING;
    INSERT INTO notifications (subject, moment, job_id) SELECT coalesce(new.array_id, new.submission_id), 'end',
        new.job_id WHERE new.status NOT IN ('PENDING', 'RUNNING') AND (new.array_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM jobs WHERE array_id = new.array_id AND notifies AND status IN ('PENDING', 'RUNNING')))
        ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER member_added AFTER INSERT ON jobs WHEN new.notifies AND new.array_id IS NOT NULL BEGIN
    DELETE FROM notifications WHERE subject = new.array_id AND moment = 'end';
END;
CREATE TRIGGER job_forgotten AFTER DELETE ON jobs WHEN old.notifies AND old.array_id IS NULL BEGIN
    DELETE FROM notifications WHERE subject = old.submission_id;
END;
CREATE TRIGGER array_forgotten AFTER DELETE ON arrays BEGIN
    DELETE FROM notifications WHERE subject = old.array_id;
END;
CREATE TABLE dependencies (
    job_id INTEGER NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE, condition TEXT NOT NULL, awaited TEXT NOT NULL,
    PRIMARY KEY (job_id, awaited, condition)
) WITHOUT ROWID;
CREATE INDEX dependencies_by_awaited ON dependencies (awaited);
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, job_id INTEGER NOT NULL, task_id TEXT, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
    cluster_id TEXT NOT NULL, vnode_id TEXT NOT NULL, node_id TEXT NOT NULL, state TEXT NOT NULL,
    amounts TEXT NOT NULL, instances TEXT NOT NULL, cores TEXT NOT NULL,
    pid INTEGER, pid_start INTEGER, boot_id TEXT, stop_reason TEXT,
    assigned_at INTEGER NOT NULL, started_at INTEGER, warned_for INTEGER, supervisor INTEGER
) WITHOUT ROWID;
CREATE TABLE runs_ahead (
    run_id TEXT PRIMARY KEY, job_id INTEGER NOT NULL UNIQUE, follows TEXT NOT NULL, supervisor INTEGER NOT NULL,
    revision INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE tasks (
    task_number INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL UNIQUE, job_id INTEGER NOT NULL,
    cluster_id TEXT NOT NULL, owner_id TEXT NOT NULL, name TEXT, state TEXT NOT NULL, state_reason TEXT, message TEXT,
    request TEXT NOT NULL, selector TEXT NOT NULL, strategy TEXT NOT NULL, origin_vnode_id TEXT,
    inputs TEXT NOT NULL DEFAULT '[]', outputs TEXT NOT NULL DEFAULT '[]',
    max_retries INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0, detached INTEGER NOT NULL DEFAULT 0,
    vnode_id TEXT, node_id TEXT, exit_code INTEGER, grace_s REAL NOT NULL DEFAULT 3,
    stop_requested_at INTEGER, created_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER,
    command_id INTEGER NOT NULL REFERENCES commands (command_id)
);
CREATE INDEX tasks_unfinished ON tasks (cluster_id, task_number) WHERE ended_at IS NULL;
CREATE INDEX tasks_by_job ON tasks (job_id);
CREATE INDEX tasks_by_owner ON tasks (owner_id) WHERE ended_at IS NULL;
CREATE INDEX tasks_by_command ON tasks (command_id);
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
CREATE TABLE leases (
    lease_id INTEGER PRIMARY KEY AUTOINCREMENT, borrower_id TEXT NOT NULL, lender_id TEXT NOT NULL,
    amounts TEXT NOT NULL, since INTEGER NOT NULL, expires_at INTEGER, job_id INTEGER,
    state TEXT NOT NULL DEFAULT 'GRANTED'
);
CREATE INDEX leases_by_borrower ON leases (borrower_id);
CREATE INDEX leases_by_lender ON leases (lender_id);
CREATE TABLE preemptions (
    victim_id INTEGER PRIMARY KEY REFERENCES jobs (job_id) ON DELETE CASCADE, attempt INTEGER NOT NULL,
    winner_id INTEGER NOT NULL, winner TEXT NOT NULL, rule TEXT NOT NULL, warns INTEGER NOT NULL,
    ends_at INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0, ending INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE nominations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL UNIQUE REFERENCES jobs (job_id) ON DELETE CASCADE, submission_id TEXT NOT NULL,
    parent_cluster_id TEXT NOT NULL, priority INTEGER NOT NULL, pieces TEXT NOT NULL, awaited TEXT NOT NULL
);
CREATE TABLE reservations (
    job_id INTEGER PRIMARY KEY, parent_cluster_id TEXT NOT NULL, priority INTEGER NOT NULL, shape TEXT NOT NULL,
    time_limit_ns INTEGER, policy TEXT NOT NULL, own TEXT, shared TEXT
);
CREATE TABLE usage (
    cluster_id TEXT NOT NULL, child_id TEXT NOT NULL, user TEXT NOT NULL, resource TEXT NOT NULL, amount REAL NOT NULL,
    at INTEGER NOT NULL, PRIMARY KEY (cluster_id, child_id, user, resource)
) WITHOUT ROWID;
CREATE TABLE lags (
    cluster_id TEXT NOT NULL, child_id TEXT NOT NULL, user TEXT NOT NULL, lag REAL NOT NULL, waits INTEGER NOT NULL,
    at INTEGER NOT NULL, PRIMARY KEY (cluster_id, child_id, user)
) WITHOUT ROWID;
CREATE TABLE feasible (
    parent_cluster_id TEXT NOT NULL, shape TEXT NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (parent_cluster_id, shape)
) WITHOUT ROWID;
CREATE TABLE waits (
    parent_cluster_id TEXT NOT NULL, shape TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    since INTEGER NOT NULL, PRIMARY KEY (parent_cluster_id, shape)
) WITHOUT ROWID;
CREATE TABLE provider_requests (
    request_id TEXT PRIMARY KEY, kind TEXT NOT NULL, action TEXT NOT NULL, template TEXT NOT NULL,
    amounts TEXT NOT NULL, labels TEXT NOT NULL, nodes TEXT NOT NULL, created_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, message TEXT
) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, code NOT NULL, object_id TEXT NOT NULL, place, job_id INTEGER,
    content,
    kind TEXT AS ({KIND}), object TEXT AS ({OBJECT}), cluster_id TEXT AS ({CLUSTER}), data TEXT AS ({DATA})
);
CREATE INDEX events_by_job ON events (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX events_rare ON events (code) WHERE code > '';
CREATE TABLE event_counts (
    code PRIMARY KEY, count INTEGER NOT NULL, kind TEXT AS ({KIND}), object TEXT AS ({OBJECT})
) WITHOUT ROWID;
CREATE TRIGGER event_inserted AFTER INSERT ON events BEGIN
    INSERT INTO event_counts VALUES (new.code, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER event_deleted AFTER DELETE ON events BEGIN
    UPDATE event_counts SET count = count - 1 WHERE code = old.code;
END;
CREATE TABLE changes (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, change TEXT);
CREATE TABLE set_aside (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, row_key TEXT NOT NULL, content TEXT NOT NULL, problem TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE TABLE terms (
    epoch INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, kind TEXT NOT NULL, started_at INTEGER NOT NULL,
    ended_at INTEGER
);
CREATE VIEW v_jobs AS WITH pending AS (
    SELECT *, CASE WHEN status = 'PENDING' THEN {gate("(julianday('now') - 2440587.5) * 86400e9")} END AS gate,
        iif(status = 'PENDING' AND state_reason IN ('Backoff', 'InsufficientResources'), NULL, state_reason) AS reason,
        strftime('%Y-%m-%dT%H:%M:%S', begin_at / 1000000000, 'unixepoch')
            || printf('.%06dZ', begin_at / 1000 % 1000000) AS begins
    FROM jobs LEFT JOIN commands USING (command_id) LEFT JOIN requests USING (request_id))
SELECT j.job_id, j.submission_id, j.name, j.status,
    CASE WHEN j.status = 'PENDING' THEN coalesce(j.gate, j.reason, u.reason, w.reason, 'PendingEvaluation')
        ELSE j.state_reason END AS state_reason,
    CASE WHEN j.status <> 'PENDING' OR j.gate IN ('Preempted', 'InsufficientResources') THEN j.message
        WHEN j.gate = 'Held' THEN 'held until `vctl job release`'
        WHEN j.gate = 'Dependency' THEN 'waits for ' || (SELECT group_concat(condition || ':' || awaited, ', ') FROM (
            SELECT condition, awaited FROM dependencies WHERE job_id = j.job_id ORDER BY awaited, condition LIMIT 5))
            || iif((SELECT count(*) FROM dependencies WHERE job_id = j.job_id) > 5, ' …', '')
        WHEN j.gate = 'Backoff' THEN iif(j.state_reason = 'Backoff', j.message, 'next try at ' || begins)
        WHEN j.gate = 'BeginTime' THEN 'begins at ' || begins
        WHEN j.gate = 'ArrayLimit' THEN 'the running members of its array are at the limit'
        ELSE coalesce(iif(j.reason IS NULL, NULL, j.message), u.message, w.message) END AS message,
    j.exit_code, j.cluster_id, j.parent_cluster_id, j.priority, j.entrypoint, j.attempt, j.user, j.submitted_at,
    j.started_at, j.ended_at, j.metadata, j.members
FROM pending j
LEFT JOIN waits w ON j.status = 'PENDING' AND w.parent_cluster_id = j.parent_cluster_id AND w.shape = j.shape
LEFT JOIN waits u ON j.status = 'PENDING' AND u.parent_cluster_id = j.parent_cluster_id
    AND u.shape = j.shape || ';user=' || j.user;
CREATE VIEW v_nodes AS
    SELECT node_id, hostname, template_id, source, state, reason, author, amounts, labels, created_at FROM nodes;
CREATE VIEW v_clusters AS
    SELECT cluster_id, parent_id, kind, divisible, revision, state, job_id, created_at, updated_at FROM clusters;
CREATE VIEW v_vnodes AS
    SELECT vnode_id, cluster_id, node_id, parent_vnode_id, kind, whole, rank, amounts, labels FROM vnodes;
CREATE VIEW v_events AS SELECT seq, at, kind, object, object_id, cluster_id, job_id, data FROM events;
CREATE VIEW v_objects AS SELECT job_id, name, node_id, cluster_id, size, task_id, created_at FROM objects;
"""

LATER: list[tuple[str, str]] = [
    (
        "0020_job_uid",
        "ALTER TABLE jobs ADD COLUMN uid INTEGER;",
    ),  # of the user of a shared service, else NULL
    (
        "0021_limits",
        """CREATE TABLE limits (
            subject TEXT NOT NULL, name TEXT NOT NULL, resource TEXT NOT NULL, period TEXT NOT NULL,
            amount INTEGER NOT NULL, author TEXT NOT NULL, at INTEGER NOT NULL,
            PRIMARY KEY (subject, name, resource, period)
        ) WITHOUT ROWID;
        CREATE TRIGGER cluster_forgotten AFTER DELETE ON clusters WHEN old.kind = 'logical' BEGIN
            DELETE FROM limits WHERE subject = 'cluster' AND name = old.cluster_id;
        END;""",
    ),  # of users and clusters
    (
        "0022_node_fences",
        "ALTER TABLE nodes ADD COLUMN fences TEXT NOT NULL DEFAULT '[]';",
    ),  # unit resource -> instance -> why no new work gets it
    (
        "0023_tokens",  # of the users of a shared service
        """
        CREATE TABLE tokens (
            token_id INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL,
            name TEXT NOT NULL, created_at INTEGER NOT NULL, ends_at INTEGER NOT NULL
        );
        CREATE INDEX tokens_by_uid ON tokens (uid);
        """,
    ),
    (
        "0024_accounts",
        """CREATE TABLE attempts (
            job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, user TEXT NOT NULL, cluster_id TEXT NOT NULL,
            outcome TEXT NOT NULL, resources TEXT, started_at INTEGER NOT NULL, ended_at INTEGER NOT NULL,
            PRIMARY KEY (job_id, attempt)
        ) WITHOUT ROWID;
        CREATE TABLE past_use (
            day INTEGER NOT NULL, user TEXT NOT NULL, cluster_id TEXT NOT NULL, outcome TEXT NOT NULL,
            resources TEXT NOT NULL, held_us INTEGER NOT NULL,
            PRIMARY KEY (day, user, cluster_id, outcome, resources)
        ) WITHOUT ROWID;""",
    ),  # attempts of jobs that were tried again, and what jobs held that were deleted
]
"""Name and script of each migration, in order: the next one is appended here, and ``SCHEMA`` stays."""

VERSION = FIRST + len(LATER)
"""``PRAGMA user_version`` of a database that this code writes."""
