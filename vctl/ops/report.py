"""``vctl report``: what users, clusters or jobs held, waited for and wasted in a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from vctl.core.resources import CPU, GPU, MEMORY, SCALE
from vctl.errors import BadSpec, param
from vctl.ops import privacy
from vctl.spec.options import parse_since
from vctl.store import accounts
from vctl.store.rows import loads
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import ReportForm

HOUR_US = 3_600 * 10**6
_FIELDS = {CPU: ("cpu_hours", 1), GPU: ("gpu_hours", 1), MEMORY: ("memory_gib_hours", 1 << 30)}
"""Resource -> the field with its hours, and its unit there."""
_STATES = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "stopped", "RUNNING": "running"}


def report(
    store: Store, *, since: str, until: str | None = None, by: str = accounts.USER
) -> list[ReportForm]:
    """One line for each user, cluster or job that held, ended or started anything in a time; the largest first."""
    now = store.clock()
    begin = _moment(since, now, param("since"))
    end = now + 1 if until is None else _moment(until, now, param("until"))
    if begin >= end:
        raise BadSpec(
            f"{param('since')} is not before {param('until')}", fix="give an earlier time, such as 7d"
        )
    with store.snapshot():
        # of a private queue, nobody but its admins is told who has jobs there
        hidden = [] if by == accounts.CLUSTER else privacy.private_clusters(store)
        viewer = "" if store.identity is None else store.identity.name
        known = accounts.AccountingPeriod(store, by, begin, end, now, hidden, viewer)
        lines = _Lines(by)
        for key, outcome, resources, attempts, held_us in known.held():
            lines.hold(key, outcome, loads(resources or "{}"), attempts, held_us)
        for key, status, count in known.endings():
            lines.of(key)[_STATES[status]] += count  # type: ignore[literal-required]
        waits: dict[object, list[int]] = {}
        for key, wait in known.waits():
            waits.setdefault(key, []).append(wait)
        for key, all_of in waits.items():
            line, number = lines.of(key), len(all_of)
            all_of.sort()
            line["started"], line["wait_longest_s"] = number, all_of[-1] / 1e6
            line["wait_mean_s"] = sum(all_of) / number / 1e6
            line["wait_median_s"] = (all_of[(number - 1) // 2] + all_of[number // 2]) / 2e6
        return lines.forms(known.names)


def _moment(text: str, now: int, path: str) -> int:
    """A moment as users name it, in nanoseconds; whole microseconds, as events and rows show them."""
    return round(parse_since(text, now / 1e9, path) * 1e6) * 1000


class _Lines:
    """The lines by key. Hours are added up in exact integers: 1/10000 of the resource times microseconds."""

    def __init__(self, by: str) -> None:
        self._by = by
        self._lines: dict[object, ReportForm] = {}
        self._sums: dict[object, dict[str, int]] = {}

    def of(self, key: object) -> ReportForm:
        """The line of a key."""
        if key not in self._lines:
            self._lines[key], self._sums[key] = _empty(), {}
        return self._lines[key]

    def hold(self, key: object, outcome: str, amounts: dict[str, int], attempts: int, held_us: int) -> None:
        """Add what attempts with the same amounts and the same outcome held."""
        self.of(key)["attempts"] += attempts
        sums = self._sums[key]
        for name, (field, _) in _FIELDS.items():
            for where in (field, f"lost_{field}") if outcome == accounts.LOST else (field,):
                sums[where] = sums.get(where, 0) + amounts.get(name, 0) * held_us

    def forms(self, names: Callable[[Iterable[object]], dict[int, str]]) -> list[ReportForm]:
        """The lines in their JSON form, by CPU hours."""
        ids = names(self._lines) if self._by == accounts.JOB else {}
        order = sorted(self._lines, key=lambda key: (-self._sums[key].get("cpu_hours", 0), str(key)))
        return [self._form(key, ids) for key in order]

    def _form(self, key: object, ids: dict[int, str]) -> ReportForm:
        line = self._lines[key]
        if self._by == accounts.USER:
            line["user"] = str(key)
        elif self._by == accounts.CLUSTER:
            line["cluster_id"] = str(key)
        else:
            line["submission_id"] = ids.get(int(str(key)))
        for field, unit in _FIELDS.values():
            for where in (field, f"lost_{field}"):
                line[where] = self._sums[key].get(where, 0) / (unit * SCALE * HOUR_US)  # type: ignore[literal-required]
        return line


def _empty() -> ReportForm:
    return {
        "user": None, "cluster_id": None, "submission_id": None, "attempts": 0,
        "cpu_hours": 0.0, "gpu_hours": 0.0, "memory_gib_hours": 0.0,
        "lost_cpu_hours": 0.0, "lost_gpu_hours": 0.0, "lost_memory_gib_hours": 0.0,
        "succeeded": 0, "failed": 0, "stopped": 0, "running": 0,
        "started": 0, "wait_mean_s": None, "wait_median_s": None, "wait_longest_s": None,
    }  # fmt: skip
