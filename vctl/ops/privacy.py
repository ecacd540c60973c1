"""What the users of a shared service see of each other's jobs: that they are there, not what they do.

Everybody sees the queue and who holds what. Command lines, environments, directories, metadata, paths of logs and
objects, and messages that may quote any of these, are shown to those who have the right ``read`` (``rights.py``). Every
reply of an operation goes through ``veiled``, whatever it is: what is private is known by the names of its fields.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from vctl.core.listed import Listed
from vctl.ops import rights
from vctl.store import owners
from vctl.store.store import Row, Store

R = TypeVar("R")
BLANK: Mapping[str, Any] = {
    "entrypoint": "", "metadata": {}, "log_path": None, "path": "", "message": None, "runtime_env": {}, "argv": [],
    "command": None, "env": {}, "cwd": "",
}  # fmt: skip
"""Private field -> what others see in its place."""
PUBLIC_DATA = frozenset((
    "amounts", "attempt", "count", "ends_at", "exit_code", "first", "last", "lender", "node", "node_ids", "nodes",
    "reason", "rule", "state_reason", "status", "winner",
))  # fmt: skip
"""What others see of the data of an event about a job."""
_GONE = -1
"""The number of no job."""
_PRIVATE_REASONS = ("Backoff", "LaunchFailed")
"""Reasons of a waiting job whose message tells how its last attempt ended."""


def veiled(store: Store, reply: R) -> R:
    """A reply without what the caller of a shared service may not see in it."""
    if store.identity is None or store.identity.is_admin:
        return reply
    with store.snapshot():
        result: R = Veil(store).over(reply)
    return result


def visible(store: Store, numbers: Iterable[int]) -> set[int]:
    """Those of these jobs of which the caller may see what they run."""
    if store.identity is None or store.identity.is_admin:
        return set(numbers)
    veil = Veil(store)
    wanted = set(numbers)
    veil.look_up(wanted)
    return {number for number in wanted if veil.sees(number)}


class Veil:
    """Leaves out of replies what a caller may not see. It remembers whose jobs are, for one reply."""

    def __init__(self, store: Store) -> None:
        assert store.identity is not None
        self._store, self._identity = store, store.identity
        self._visible: dict[int, bool] = {}
        self._administered: dict[str, bool] = {}
        self._shared: list[tuple[int, int]] | None = None

    def over(self, reply: Any) -> Any:
        """The reply, veiled."""
        if isinstance(reply, tuple):  # a page of a list
            return (self.over(reply[0]), *reply[1:])
        self.look_up(_numbers(reply))
        return self._part(reply, hidden=False)

    def sees(self, job_id: int) -> bool:
        """Whether the caller may see what a job runs; not of a job that is gone."""
        if (visible := self._visible.get(job_id)) is None:
            self.look_up([job_id])
            visible = self._visible[job_id]
        return visible

    def event(self, form: dict[str, Any]) -> dict[str, Any]:
        """An event, veiled."""
        number, about = form.get("job_id"), form.get("object")
        if about == "array" and number is None:
            number = owners.first_of_array(self._store, form["object_id"])
            number = _GONE if number is None else number
        if about in ("task", "object") and number is None:
            number = _GONE
        if number is None or self.sees(number):
            return form
        return {**form, "data": {name: value for name, value in form["data"].items() if name in PUBLIC_DATA}}

    def _part(self, part: Any, *, hidden: bool) -> Any:
        if isinstance(part, Listed):
            return self._columns(part)
        if isinstance(part, Mapping):
            return self._object(part, hidden=hidden)
        if isinstance(part, list):
            return [self._part(one, hidden=hidden) for one in part]
        return part

    def _object(self, form: Mapping[str, Any], *, hidden: bool) -> dict[str, Any]:
        if "seq" in form and "data" in form:
            return self.event(dict(form))
        number = form.get("job_id")
        if isinstance(number, int):
            hidden = not self.sees(number)
        elif number is None and "pid" in form and "command" in form:  # a process that no job runs
            hidden = form.get("user") != self._identity.name
        shown = {
            name: self._part(value, hidden=hidden) if isinstance(value, (dict, list, Listed)) else value
            for name, value in form.items()
        }
        if hidden:
            shown |= {name: blank for name, blank in BLANK.items() if name in shown}
            if "message" in shown and _tells_nothing(form):
                shown["message"] = form["message"]
        return shown

    def _columns(self, forms: Listed[Any]) -> Sequence[Any]:
        """A list of jobs by columns; it stays one."""
        names = forms.names
        if "job_id" not in names or "entrypoint" not in names:
            return [self._part(form, hidden=False) for form in forms]
        seen = [self.sees(number) for number in forms.field("job_id")]
        if all(seen):
            return forms
        fields = forms.fields()
        for name, blank in BLANK.items():
            if name in fields and name != "message":
                fields[name] = [one if ok else blank for one, ok in zip(fields[name], seen, strict=True)]
        kept = zip(fields["message"], fields["status"], fields["state_reason"], seen, strict=True)
        fields["message"] = [
            text if ok or _is_of_queue(status, reason) else None for text, status, reason, ok in kept
        ]
        return Listed(len(forms), fields)

    # ---- whose jobs are ----

    def look_up(self, numbers: Iterable[int]) -> None:
        """Note which of these jobs are visible."""
        unknown = set(numbers) - self._visible.keys()
        if not unknown:
            return
        self._visible |= {row["job_id"]: self._may_see(row) for row in owners.among(self._store, unknown)}
        for number in unknown - self._visible.keys():
            first = self._row_for(number)
            row = None if first is None else owners.one(self._store, first)
            self._visible[number] = row is not None and self._may_see(row)

    def _row_for(self, number: int) -> int | None:
        """The row that stands for a member of an array that has none of its own."""
        if self._shared is None:
            self._shared = owners.spans(self._store)
        at = bisect_right(self._shared, number, key=itemgetter(0)) - 1
        first, count = self._shared[at] if at >= 0 else (0, 0)
        return first if number < first + count else None

    def _may_see(self, row: Row) -> bool:
        return rights.is_owner(self._identity, row) or self._administers(row["parent_cluster_id"])

    def _administers(self, cluster_id: str) -> bool:
        if (known := self._administered.get(cluster_id)) is None:
            known = self._administered[cluster_id] = rights.administers(self._store, cluster_id)
        return known


def _numbers(part: Any) -> set[int]:
    """The numbers of the jobs that a reply is about."""
    if isinstance(part, Listed):
        return {number for number in part.field("job_id") if isinstance(number, int)}
    if isinstance(part, Mapping):
        found = {part["job_id"]} if isinstance(part.get("job_id"), int) else set()
        return found.union(*(_numbers(one) for one in part.values() if isinstance(one, (dict, list, Listed))))
    return set().union(*map(_numbers, part)) if isinstance(part, list) else set()


def _tells_nothing(form: Mapping[str, Any]) -> bool:
    """Whether the message of a job or task is of the queue: it waits, and has not begun."""
    return _is_of_queue(str(form.get("status", form.get("state", ""))), form.get("state_reason"))


def _is_of_queue(status: str, reason: str | None) -> bool:
    return status.startswith("PENDING") and reason not in _PRIVATE_REASONS
