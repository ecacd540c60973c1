"""Writes the changes of preemptions and nominations to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence

from vctl.core.jobs import WAITING_FOR_PREEMPTION
from vctl.engine import changes as ch
from vctl.engine.lifecycle import PREEMPTION
from vctl.store import moves
from vctl.store.rows import dumps
from vctl.store.write.table import writes


@writes(ch.JobPreempting)
def _preempting(db: sqlite3.Connection, begun: Sequence[ch.JobPreempting]) -> None:
    preemptions = [change.preemption for change in begun]
    db.executemany(
        "INSERT OR REPLACE INTO preemptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                preemption.victim_id, preemption.attempt, preemption.winner_id, preemption.winner, preemption.rule,
                preemption.warns, preemption.ends_ns, preemption.told, preemption.ending,
            )
            for preemption in preemptions
        ],
    )  # fmt: skip


@writes(ch.PreemptionMoved)
def _moved(db: sqlite3.Connection, moved: Sequence[ch.PreemptionMoved]) -> None:
    for change in moved:
        moves.update(
            db, PREEMPTION, change.move, change.victim_id, "told = 1, ending = ?", (change.move == "end",)
        )


@writes(ch.JobSpared)
def _spared(db: sqlite3.Connection, spared: Sequence[ch.JobSpared]) -> None:
    for change in spared:
        moves.delete(db, PREEMPTION, "spare", change.victim_id)


@writes(ch.PreemptionOver)
def _over(db: sqlite3.Connection, over: Sequence[ch.PreemptionOver]) -> None:
    for change in over:
        moves.delete(db, PREEMPTION, "over", change.victim_id)


@writes(ch.JobPreempted)
def _preempted(db: sqlite3.Connection, preempted: Sequence[ch.JobPreempted]) -> None:
    db.executemany("DELETE FROM preemptions WHERE victim_id = ?", [(change.job_id,) for change in preempted])


@writes(ch.JobNominated)
def _nominated(db: sqlite3.Connection, nominated: Sequence[ch.JobNominated]) -> None:
    for change in nominated:
        pieces = [
            [vnode_id, dict(part.amounts), {n: dict(s) for n, s in part.instances.items()}, list(part.cores)]
            for vnode_id, part in change.pieces
        ]
        db.execute(
            "INSERT INTO nominations (job_id, submission_id, parent_cluster_id, priority, pieces, awaited)"
            " VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (job_id) DO UPDATE SET priority = excluded.priority, pieces = excluded.pieces,"
            " awaited = excluded.awaited",
            (
                change.job_id, change.submission_id, change.parent_id, change.priority, dumps(pieces),
                dumps(change.awaited),
            ),
        )  # fmt: skip
        if change.message is not None:
            db.execute(
                "UPDATE jobs SET state_reason = ?, message = ? WHERE job_id = ? AND status = 'PENDING'",
                (WAITING_FOR_PREEMPTION, change.message, change.job_id),
            )


@writes(ch.NominationDropped)
def _dropped(db: sqlite3.Connection, dropped: Sequence[ch.NominationDropped]) -> None:
    job_ids = [(change.job_id,) for change in dropped]
    db.executemany("DELETE FROM nominations WHERE job_id = ?", job_ids)
    db.executemany(
        "UPDATE jobs SET state_reason = NULL, message = NULL WHERE job_id = ? AND status = 'PENDING'"
        f" AND state_reason = '{WAITING_FOR_PREEMPTION}'",
        job_ids,
    )
