"""Writes the changes of preemptions and nominations to the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.core.jobs import WAITING_FOR_PREEMPTION
from vctl.engine import changes as ch
from vctl.engine.lifecycle import PREEMPTION
from vctl.store import moves
from vctl.store.rows import dumps
from vctl.store.write.table import writes


@writes(ch.JobPreempting)
def _preempting(db: sqlite3.Connection, begun: Sequence[ch.JobPreempting]) -> None:
    found = [change.preemption for change in begun]
    db.executemany(
        "INSERT OR REPLACE INTO preemptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                one.victim_id, one.attempt, one.winner_id, one.winner, one.rule, one.warns, one.ends_ns, one.told,
                one.ending,
            )
            for one in found
        ],
    )  # fmt: skip


@writes(ch.PreemptionMoved)
def _moved(db: sqlite3.Connection, moved: Sequence[ch.PreemptionMoved]) -> None:
    for one in moved:
        moves.update(db, PREEMPTION, one.move, one.victim_id, "told = 1, ending = ?", (one.move == "end",))


@writes(ch.JobSpared)
def _spared(db: sqlite3.Connection, spared: Sequence[ch.JobSpared]) -> None:
    for one in spared:
        moves.delete(db, PREEMPTION, "spare", one.victim_id)


@writes(ch.PreemptionOver)
def _over(db: sqlite3.Connection, over: Sequence[ch.PreemptionOver]) -> None:
    for one in over:
        moves.delete(db, PREEMPTION, "over", one.victim_id)


@writes(ch.JobPreempted)
def _preempted(db: sqlite3.Connection, preempted: Sequence[ch.JobPreempted]) -> None:
    db.executemany("DELETE FROM preemptions WHERE victim_id = ?", [(one.job_id,) for one in preempted])


@writes(ch.JobNominated)
def _nominated(db: sqlite3.Connection, nominated: Sequence[ch.JobNominated]) -> None:
    for one in nominated:
        pieces = [
            [vnode_id, dict(part.amounts), {n: dict(s) for n, s in part.instances.items()}, list(part.cores)]
            for vnode_id, part in one.pieces
        ]
        db.execute(
            "INSERT INTO nominations (job_id, submission_id, parent_cluster_id, priority, pieces, awaited)"
            " VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (job_id) DO UPDATE SET priority = excluded.priority, pieces = excluded.pieces,"
            " awaited = excluded.awaited",
            (
                one.job_id, one.submission_id, one.parent_id, one.priority, dumps(pieces), dumps(one.awaited),
            ),
        )  # fmt: skip
        if one.message is not None:
            db.execute(
                "UPDATE jobs SET state_reason = ?, message = ? WHERE job_id = ? AND status = 'PENDING'",
                (WAITING_FOR_PREEMPTION, one.message, one.job_id),
            )


@writes(ch.NominationDropped)
def _dropped(db: sqlite3.Connection, dropped: Sequence[ch.NominationDropped]) -> None:
    job_ids = [(one.job_id,) for one in dropped]
    db.executemany("DELETE FROM nominations WHERE job_id = ?", job_ids)
    db.executemany(
        "UPDATE jobs SET state_reason = NULL, message = NULL WHERE job_id = ? AND status = 'PENDING'"
        f" AND state_reason = '{WAITING_FOR_PREEMPTION}'",
        job_ids,
    )
