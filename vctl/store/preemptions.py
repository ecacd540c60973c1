"""SQL about preemption: which running jobs are being ended for which waiting ones, and what is kept for these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.jobs import WAITING_FOR_PREEMPTION
from vctl.core.resources import Allocation
from vctl.engine.lifecycle import PREEMPTION
from vctl.store import moves
from vctl.store.rows import dumps, loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.scheduler.nominations import Nomination


def insert(
    store: Store, *, victim_id: int, attempt: int, winner_id: int, winner: str, rule: str, warns: bool, ends_at: int
) -> None:  # fmt: skip
    """A running job is to end for another."""
    store.db.execute(
        "INSERT OR REPLACE INTO preemptions VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)",
        (victim_id, attempt, winner_id, winner, rule, warns, ends_at),
    )


def all_rows(store: Store) -> list[Row]:
    """Every preemption that is not over."""
    return store.rows("SELECT p.*, j.submission_id FROM preemptions p JOIN jobs j ON j.job_id = p.victim_id")


def check(row: Row) -> Row:
    """A preemption that can be carried out; raises ValueError for any other."""
    for column in ("attempt", "winner_id", "warns", "ends_at", "told", "ending"):
        if not isinstance(row[column], int):
            raise ValueError(f"{column} is {row[column]!r}, not a number")
    return row


def of(store: Store, victim_id: int) -> Row | None:
    """That of a running job."""
    return store.row("SELECT * FROM preemptions WHERE victim_id = ?", victim_id)


def mark(store: Store, victim_id: int, *, told: bool, ending: bool) -> None:
    """How far it is: the job was told, its processes were told to end."""
    moves.update(
        store.db, PREEMPTION, "end" if ending else "tell", victim_id, "told = ?, ending = ?", (told, ending)
    )


def delete(store: Store, victim_id: int) -> None:
    """It is over, or taken back."""
    moves.delete(store.db, PREEMPTION, "over", victim_id)


def put_nomination(store: Store, nomination: Nomination) -> None:
    """Keep this for a waiting job; its place among the others stays."""
    pieces = [
        [vnode_id, dict(part.amounts), {n: dict(s) for n, s in part.instances.items()}, list(part.cores)]
        for vnode_id, part in nomination.pieces
    ]
    store.db.execute(
        "INSERT INTO nominations (job_id, submission_id, parent_cluster_id, priority, pieces, awaited)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (job_id) DO UPDATE SET priority = excluded.priority, pieces = excluded.pieces,"
        " awaited = excluded.awaited",
        (
            nomination.job_id, nomination.submission_id, nomination.parent_id, nomination.priority, dumps(pieces),
            dumps(sorted(nomination.awaited)),
        ),
    )  # fmt: skip


def nominations(store: Store) -> list[Nomination]:
    """Everything that is kept, in the order in which it was given."""
    return [nomination(row) for row in nomination_rows(store)]


def nomination_rows(store: Store) -> list[Row]:
    """The rows of these."""
    return store.rows("SELECT * FROM nominations ORDER BY number")


def nomination(row: Row) -> Nomination:
    """A row of ``nominations``."""
    pieces = tuple(
        (vnode_id, Allocation(amounts, {n: {int(i): a for i, a in s.items()} for n, s in shares.items()}, tuple(cores)))
        for vnode_id, amounts, shares, cores in loads(row["pieces"])
    )  # fmt: skip
    from vctl.scheduler.nominations import Nomination  # here: with it comes the search for places

    return Nomination(
        row["job_id"], row["submission_id"], row["priority"], row["parent_cluster_id"], pieces,
        frozenset(loads(row["awaited"])),
    )  # fmt: skip


def delete_nomination(store: Store, job_id: int) -> None:
    """Keep this no longer; the job waits as others do."""
    store.db.execute("DELETE FROM nominations WHERE job_id = ?", (job_id,))
    store.db.execute(
        "UPDATE jobs SET state_reason = NULL, message = NULL WHERE job_id = ? AND status = 'PENDING'"
        " AND state_reason = ?",
        (job_id, WAITING_FOR_PREEMPTION),
    )


def mark_winner(store: Store, job_id: int, message: str) -> None:
    """A waiting job waits for others to end for it."""
    store.db.execute(
        "UPDATE jobs SET state_reason = ?, message = ? WHERE job_id = ? AND status = 'PENDING'",
        (WAITING_FOR_PREEMPTION, message, job_id),
    )
