"""The newer migrations of the schema, in order: see ``schema.py``. The next one is appended here."""

from __future__ import annotations

LATER: list[tuple[str, str]] = [
    (
        "0011_one_table_of_counts",
        """
DROP TRIGGER job_inserted;
DROP TRIGGER job_deleted;
DROP TRIGGER job_moved;
DROP TRIGGER job_requeued_elsewhere;
DROP TABLE job_counts;
DROP TABLE queue_counts;
CREATE TABLE job_counts (
    parent_cluster_id TEXT NOT NULL, status TEXT NOT NULL, priority INTEGER NOT NULL, block INTEGER NOT NULL,
    count INTEGER NOT NULL, PRIMARY KEY (parent_cluster_id, status, priority, block)
) WITHOUT ROWID;
INSERT INTO job_counts SELECT parent_cluster_id, status, iif(status = 'PENDING', priority, 0),
    iif(status = 'PENDING', job_id >> 10, 0), count(*) FROM jobs GROUP BY 1, 2, 3, 4;
CREATE TRIGGER job_inserted AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts VALUES (new.parent_cluster_id, new.status, iif(new.status = 'PENDING', new.priority, 0),
        iif(new.status = 'PENDING', new.job_id >> 10, 0), 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
    UPDATE job_counts SET count = count - 1 WHERE parent_cluster_id = old.parent_cluster_id AND status = old.status
        AND priority = iif(old.status = 'PENDING', old.priority, 0)
        AND block = iif(old.status = 'PENDING', old.job_id >> 10, 0);
END;
CREATE TRIGGER job_moved AFTER UPDATE OF status, parent_cluster_id, priority ON jobs BEGIN
    INSERT INTO job_counts VALUES
        (old.parent_cluster_id, old.status, iif(old.status = 'PENDING', old.priority, 0),
            iif(old.status = 'PENDING', old.job_id >> 10, 0), -1),
        (new.parent_cluster_id, new.status, iif(new.status = 'PENDING', new.priority, 0),
            iif(new.status = 'PENDING', new.job_id >> 10, 0), 1)
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
END;
""",
    ),
    (
        "0012_runs_ahead",
        """
CREATE TABLE runs_ahead (
    run_id TEXT PRIMARY KEY, job_id INTEGER NOT NULL UNIQUE, follows TEXT NOT NULL, supervisor INTEGER NOT NULL,
    revision INTEGER NOT NULL
) WITHOUT ROWID;
""",
    ),
    (
        "0013_lags_and_gates",
        """
CREATE TABLE lags (
    cluster_id TEXT NOT NULL, child_id TEXT NOT NULL, user TEXT NOT NULL, lag REAL NOT NULL, waits INTEGER NOT NULL,
    at INTEGER NOT NULL, PRIMARY KEY (cluster_id, child_id, user)
) WITHOUT ROWID;
DROP TRIGGER job_inserted;
DROP TRIGGER job_deleted;
DROP TRIGGER job_moved;
DROP TABLE job_counts;
CREATE INDEX jobs_gated ON jobs (parent_cluster_id, priority, job_id, held, waits_for, begin_at)
    WHERE status = 'PENDING' AND (held OR waits_for OR begin_at IS NOT NULL);
CREATE TABLE job_counts (
    parent_cluster_id TEXT NOT NULL, status TEXT NOT NULL, priority INTEGER NOT NULL, opens INTEGER NOT NULL,
    block INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (parent_cluster_id, status, priority, opens, block)
) WITHOUT ROWID;
INSERT INTO job_counts SELECT parent_cluster_id, status, iif(status = 'PENDING', priority, 0),
    iif(status = 'PENDING', iif(held OR waits_for, 9223372036854775807, coalesce(begin_at, 0)), 0),
    iif(status = 'PENDING', job_id >> 10, 0), count(*) FROM jobs GROUP BY 1, 2, 3, 4, 5;
CREATE TRIGGER job_inserted AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts VALUES (new.parent_cluster_id, new.status, iif(new.status = 'PENDING', new.priority, 0),
        iif(new.status = 'PENDING', iif(new.held OR new.waits_for, 9223372036854775807, coalesce(new.begin_at, 0)), 0),
        iif(new.status = 'PENDING', new.job_id >> 10, 0), 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
    UPDATE job_counts SET count = count - 1 WHERE parent_cluster_id = old.parent_cluster_id AND status = old.status
        AND priority = iif(old.status = 'PENDING', old.priority, 0)
        AND opens = iif(old.status = 'PENDING',
            iif(old.held OR old.waits_for, 9223372036854775807, coalesce(old.begin_at, 0)), 0)
        AND block = iif(old.status = 'PENDING', old.job_id >> 10, 0);
END;
CREATE TRIGGER job_moved AFTER UPDATE OF status, parent_cluster_id, priority, held, waits_for, begin_at ON jobs BEGIN
    INSERT INTO job_counts VALUES
        (old.parent_cluster_id, old.status, iif(old.status = 'PENDING', old.priority, 0),
            iif(old.status = 'PENDING',
                iif(old.held OR old.waits_for, 9223372036854775807, coalesce(old.begin_at, 0)), 0),
            iif(old.status = 'PENDING', old.job_id >> 10, 0), -1),
        (new.parent_cluster_id, new.status, iif(new.status = 'PENDING', new.priority, 0),
            iif(new.status = 'PENDING',
                iif(new.held OR new.waits_for, 9223372036854775807, coalesce(new.begin_at, 0)), 0),
            iif(new.status = 'PENDING', new.job_id >> 10, 0), 1)
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
END;
""",
    ),
    (
        "0014_reservations",
        """
CREATE TABLE reservations (
    job_id INTEGER PRIMARY KEY, parent_cluster_id TEXT NOT NULL, priority INTEGER NOT NULL, shape TEXT NOT NULL,
    time_limit_ns INTEGER, policy TEXT NOT NULL, own TEXT, shared TEXT
);
""",
    ),
    (
        "0015_leases_without_places",
        """
DROP INDEX leases_by_vnode;
ALTER TABLE leases DROP COLUMN vnode_id;
ALTER TABLE leases DROP COLUMN node_id;
""",
    ),
    (
        "0016_lists",
        """
CREATE INDEX jobs_over ON jobs (
    job_id, status, parent_cluster_id, user, submitted_at, exit_code, priority, state_reason, name, shares_parent,
    array_index
) WHERE status NOT IN ('PENDING', 'RUNNING');
""",
    ),
]
