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
]
