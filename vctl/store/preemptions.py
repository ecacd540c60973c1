"""SQL about preemption: the running jobs that end for waiting ones, and the nominations of waiting jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.jobs import Preemption
from vctl.core.resources import Allocation
from vctl.store.rows import loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.scheduler.nominations import Nomination


def all_rows(store: Store) -> list[Row]:
    """Every preemption that is not over."""
    return store.rows(
        "SELECT p.*, j.submission_id FROM preemptions p CROSS JOIN jobs j ON j.job_id = p.victim_id"
    )


def of(store: Store, victim_id: int) -> Row | None:
    """The preemption of a running job."""
    return store.row("SELECT * FROM preemptions WHERE victim_id = ?", victim_id)


def preemption(row: Row) -> Preemption:
    """A row of ``preemptions`` as a value; raises ValueError if the row is not valid."""
    for column in ("attempt", "winner_id", "warns", "ends_at", "told", "ending"):
        if not isinstance(row[column], int):
            raise ValueError(f"{column} is {row[column]!r}, not a number")
    return Preemption(
        row["victim_id"], row["submission_id"], row["attempt"], row["winner_id"], row["winner"], row["rule"],
        bool(row["warns"]), row["ends_at"], bool(row["told"]), bool(row["ending"]),
    )  # fmt: skip


def nominations(store: Store) -> list[Nomination]:
    """All nominations, oldest first."""
    return [nomination(row) for row in nomination_rows(store)]


def nomination_rows(store: Store) -> list[Row]:
    """The rows of all nominations, oldest first."""
    return store.rows("SELECT * FROM nominations ORDER BY number")


def nomination(row: Row) -> Nomination:
    """A row of ``nominations`` as a value."""
    pieces = tuple(
        (vnode_id, Allocation(amounts, {n: {int(i): a for i, a in s.items()} for n, s in shares.items()}, tuple(cores)))
        for vnode_id, amounts, shares, cores in loads(row["pieces"])
    )  # fmt: skip
    from vctl.scheduler.nominations import Nomination  # here, as it imports the search for placements

    return Nomination(
        row["job_id"], row["submission_id"], row["priority"], row["parent_cluster_id"], pieces,
        frozenset(loads(row["awaited"])),
    )  # fmt: skip
