"""Reads and writes the queue settings of a cluster: a map with words, numbers and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vctl.core import queue_policy as qp
from vctl.core.queue_policy import QueuePolicy
from vctl.core.values import fields
from vctl.spec.fields import as_count, as_mapping, child, did_you_mean, refuse, show
from vctl.spec.quantities import parse_duration

MAX_JOBS = 10**9
Changes = dict[str, object]
"""Fields of ``QueuePolicy`` with their new values."""


def _word(words: tuple[str, ...]) -> Callable[[object, str], object]:
    def read(value: object, path: str) -> object:
        if value not in words:
            raise refuse(
                path, f"{show(value)} is not one of {', '.join(words)}", did_you_mean(str(value), words)
            )
        return value

    return read


def _number(maximum: int) -> Callable[[object, str], object]:
    def read(value: object, path: str) -> object:
        count = as_count(value, path, "it", maximum=maximum)
        if count < 1:
            raise refuse(path, f"{count} is less than 1", "write 1 or more")
        return count

    return read


def _nanoseconds(value: object, path: str) -> object:
    duration_ns = int(parse_duration(value, path, positive=True) * qp.SECOND)
    if not duration_ns:
        raise refuse(path, f"{show(value)} is shorter than a nanosecond", "write at least 1s")
    return duration_ns


def _pause(value: object, path: str) -> object:
    return int(parse_duration(value, path) * qp.SECOND)


READERS: dict[str, tuple[str, Callable[[object, str], object]]] = {
    "order": ("order", _word(qp.QUEUE_ORDERS)),
    "discipline": ("discipline", _word(qp.QUEUE_DISCIPLINES)),
    "weight": ("weight", _number(qp.MOST_WEIGHT)),
    "ageing_s": ("ageing_ns", _nanoseconds),
    "half_life_s": ("half_life_ns", _nanoseconds),
    "starvation_after_s": ("starvation_after_ns", _nanoseconds),
    "backfill_depth": ("backfill_depth", _number(qp.MOST_HEADS)),
    "max_running_jobs": ("max_running_jobs", _number(MAX_JOBS)),
    "max_running_per_user": ("max_running_per_user", _number(MAX_JOBS)),
    "preemption": ("preemption", _word(qp.PREEMPTIONS)),
    "min_runtime_s": ("min_runtime_ns", _pause),
    "preemption_grace_s": ("preemption_grace_ns", _pause),
}
"""Documented name -> (field of ``QueuePolicy``, reader of its value)."""
_DEFAULTS = {field.name: field.default for field in fields(QueuePolicy)}


def parse_queue(document: object, path: str = "queue") -> Changes:
    """Read changes of queue settings; a setting that is null gets its default."""
    changes: Changes = {}
    for name, value in as_mapping(document, path, "a map of settings", '{"order": "fifo"}').items():
        if name not in READERS:
            raise refuse(
                child(path, name), "there is no such setting of a queue", did_you_mean(name, READERS)
            )
        field, read = READERS[name]
        changes[field] = _DEFAULTS[field] if value is None else read(value, child(path, name))
    return changes


def queue_document(policy: QueuePolicy) -> Mapping[str, object]:
    """The settings in their documented form, times in seconds."""
    return {
        name: _seconds(getattr(policy, field)) if field.endswith("_ns") else getattr(policy, field)
        for name, (field, _) in READERS.items()
    }


def _seconds(nanoseconds: int | None) -> float | None:
    if nanoseconds is None:
        return None
    whole, rest = divmod(nanoseconds, qp.SECOND)
    return nanoseconds / qp.SECOND if rest else whole
