"""SQL of accounting: what jobs held in a time, how they ended and how long they waited.

An attempt holds from its start to its end what it got at its start. The row of a job has its last attempt;
``attempts`` has those before; ``past_use`` has sums of whole days (UTC) of jobs that were deleted. The sums are of
microseconds, by what was held as text: whoever reads them multiplies, in exact integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vctl.core.limits import DAY_US
from vctl.store.rows import dumps
from vctl.store.store import Row, Store
from vctl.store.write.accounts import LOST, OUTCOME

__all__ = ["BY", "CLUSTER", "JOB", "LOST", "USER", "AccountingPeriod", "ended_since", "past"]

RUNNING = "RUNNING"
USER, CLUSTER, JOB = "user", "cluster", "job"
BY = (USER, CLUSTER, JOB)
_KEYS = {USER: "user", CLUSTER: "cluster_id", JOB: "job_id"}
_IN_TIME = "ended_at > :since AND started_at < :until"
_WHOSE = "job_id, user, parent_cluster_id AS cluster_id"
_SPANS = (
    f"SELECT {_WHOSE}, {OUTCOME} AS outcome, resources, started_at, ended_at"
    f" FROM jobs {{ended}} WHERE {_IN_TIME}"
    f" UNION ALL SELECT {_WHOSE}, '{RUNNING}', resources, started_at, max(:now, started_at)"
    " FROM jobs INDEXED BY jobs_running WHERE status = 'RUNNING' AND started_at < :until"
    f" UNION ALL SELECT job_id, user, cluster_id, outcome, resources, started_at, ended_at"
    f" FROM attempts WHERE {_IN_TIME}"
)
"""Each attempt that held anything in a time. ``ended``: how the jobs that ended in it are found."""
_STARTED = "started_at >= :since AND started_at < :until"
_FIRST = f"SELECT {_WHOSE}, (started_at - submitted_at) / 1000 AS wait FROM jobs {{0}} AND attempt = 1 AND {_STARTED}"
_AGAIN = (
    "SELECT a.job_id, a.user, a.cluster_id, (a.started_at - j.submitted_at) / 1000 FROM attempts a JOIN jobs j"
    f" USING (job_id) WHERE a.attempt = 1 AND a.{_STARTED.replace('AND ', 'AND a.')}"
)
_WAITS = " UNION ALL ".join((
    _FIRST.format("{ended} WHERE ended_at >= :since"),
    _FIRST.format("INDEXED BY jobs_running WHERE status = 'RUNNING'"),
    _AGAIN,
))  # fmt: skip
"""The wait of each job whose first attempt started in a time, in microseconds."""
_SEEN = "(user = :viewer OR cluster_id NOT IN (SELECT value FROM json_each(:hidden)))"
MOST_BY_INDEX = 0.1
"""The part of all jobs from which on it is faster to read all of them than to find those that ended in a time."""


class AccountingPeriod:
    """What is asked about one time, in nanoseconds since the epoch, by user, cluster or job; inside a snapshot."""

    def __init__(
        self,
        store: Store,
        by: str,
        since: int,
        until: int,
        now: int,
        hidden: Sequence[str] = (),
        viewer: str = "",
    ) -> None:
        """``hidden``: clusters of which only the jobs of ``viewer`` count."""
        self._db, self._by, self._key = store.db, by, _KEYS[by]
        self._time = {"since": since, "until": until}
        self._now = min(now, until)
        self._hidden = {"hidden": dumps(list(hidden)), "viewer": viewer} if hidden else {}
        self._seen = _SEEN if hidden else "true"
        self._is_now = until >= now
        ended = store.value("SELECT count(*) FROM jobs INDEXED BY jobs_ended WHERE ended_at >= ?", since)
        known = store.value("SELECT coalesce(sum(count), 0) FROM job_counts")
        self._ended = "NOT INDEXED" if ended > known * MOST_BY_INDEX else "INDEXED BY jobs_ended"

    def held(self) -> Iterator[Row]:
        """Key, outcome, resources, the number of attempts, and the microseconds that they held these.

        Of deleted jobs the days that begin in the time count, as a whole, and without attempts.
        """
        spans = _SPANS.format(ended=self._ended)
        yield from self._db.execute(
            f"SELECT {self._key}, outcome, resources, count(*), sum(max(0, min(ended_at, :until) / 1000"
            f" - max(started_at, :since) / 1000)) FROM ({spans}) WHERE {self._seen} GROUP BY 1, 2, 3",
            {**self._time, **self._hidden, "now": self._now},
        )
        if self._by != JOB:
            yield from self._db.execute(
                f"SELECT {self._key}, outcome, resources, 0, sum(held_us)"
                f" FROM past_use WHERE day * :day >= :since / 1000 AND day * :day < :until / 1000 AND {self._seen}"
                " GROUP BY 1, 2, 3",
                {**self._time, **self._hidden, "day": DAY_US},
            )

    def endings(self) -> Iterator[Row]:
        """Key, status, and the number of jobs that ended so; those that run now, if the time is not over."""
        key, seen = (text.replace("cluster_id", "parent_cluster_id") for text in (self._key, self._seen))
        yield from self._db.execute(
            f"SELECT {key}, status, sum(members) FROM jobs {self._ended}"
            f" WHERE ended_at >= :since AND ended_at < :until AND {seen} GROUP BY 1, 2",
            {**self._time, **self._hidden},
        )
        if self._is_now:
            yield from self._db.execute(
                f"SELECT {key}, status, count(*) FROM jobs INDEXED BY jobs_running"
                f" WHERE status = 'RUNNING' AND {seen} GROUP BY 1",
                self._hidden,
            )

    def waits(self) -> Iterator[Row]:
        """Key and wait, in microseconds, of each job that first started in the time."""
        found = f"SELECT {self._key}, wait FROM ({_WAITS.format(ended=self._ended)}) WHERE {self._seen}"
        yield from self._db.execute(found, {**self._time, **self._hidden})

    def names(self, numbers: Iterable[object]) -> dict[int, str]:
        """Number of a job -> its id."""
        found = self._db.execute(
            "SELECT job_id, submission_id FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))",
            (dumps(list(numbers)),),
        )
        return dict(found.fetchall())


def ended_since(store: Store, begin: int) -> Iterator[Row]:
    """Cluster, user, resources, start and end of attempts with GPUs that ended after a moment."""
    for source, cluster in (("jobs INDEXED BY jobs_ended", "parent_cluster_id"), ("attempts", "cluster_id")):
        yield from store.db.execute(
            f"SELECT {cluster}, user, resources, started_at, ended_at FROM {source}"
            " WHERE ended_at > ? AND started_at IS NOT NULL AND instr(resources, '\"GPU\"')",
            (begin,),
        )


def past(store: Store, since: int) -> Iterator[Row]:
    """Day, user, cluster, resources and microseconds of what deleted jobs held from a day on."""
    yield from store.db.execute(
        "SELECT day, user, cluster_id, resources, held_us FROM past_use WHERE day >= ?", (since,)
    )
