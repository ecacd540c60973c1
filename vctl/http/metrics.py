"""``/metrics`` in Prometheus' text format, read from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vctl.core.clusters import PRIMARY
from vctl.core.resources import SCALE
from vctl.ops import views
from vctl.ops.capacity import capacities
from vctl.store import clusters, feed, job_views, nodes
from vctl.store.store import Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, object], float]


def text(store: Store) -> str:
    """All metrics, as of one snapshot."""
    with store.snapshot():
        return "\n".join(line for family in _families(store) for line in family) + "\n"


def _families(store: Store) -> Iterator[Iterator[str]]:
    sums = capacities(store)[PRIMARY]
    scheduler = views.scheduler(store)
    yield _family("vctl_nodes", "Physical nodes by state.", _by("state", nodes.states(store)))
    none = dict.fromkeys(sums.total, 0)
    yield _family("vctl_resources_total", "Resources of the physical nodes.", _amounts(sums.total))
    yield _family(
        "vctl_resources_reserved",
        "Resources that clusters below the primary hold.",
        _amounts({**none, **sums.reserved}),
    )
    yield _family(
        "vctl_resources_used", "Resources that jobs and tasks hold.", _amounts({**none, **sums.used})
    )
    yield _family(
        "vctl_resources_demanded",
        "Resources that waiting jobs and tasks ask for.",
        _amounts(job_views.demanded(store)),
    )
    yield _family(
        "vctl_resources_lent", "Resources that clusters have borrowed.", _amounts(job_views.lent(store))
    )
    yield _family("vctl_jobs", "Jobs by state.", _by("status", job_views.counts_by_status(store)))
    yield _family(
        "vctl_jobs_pending", "Waiting jobs by reason.", _by("reason", job_views.pending_by_reason(store))
    )
    yield _family("vctl_clusters", "Virtual clusters by kind.", _by("kind", clusters.counts(store)))
    yield _family(
        "vctl_scheduler_running", "1 while a scheduler is running.", [({}, float(scheduler["running"]))]
    )
    yield _family(
        "vctl_scheduler_last_round_ms",
        "Duration of the last scheduler round in ms.",
        [({}, float(scheduler["last_round_ms"] or 0))],
    )
    yield _family(
        "vctl_scheduler_rounds", "Rounds of the running scheduler.", [({}, float(scheduler["rounds"]))]
    )
    yield _family("vctl_events", "Number of the newest event.", [({}, float(feed.last(store)))])


def _by(label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [({label: name}, float(count)) for name, count in counts.items()]


def _amounts(amounts: Mapping[str, int]) -> list[Sample]:
    return [({"resource": name}, amount / SCALE) for name, amount in sorted(amounts.items())]


def _family(name: str, help: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(str(word))}"' for key, word in labels.items())
        yield f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}"


def _escaped(word: str) -> str:
    return word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
