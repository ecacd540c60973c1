"""What the users of a shared service see of each other's jobs: that they are there, not what they do.

Everybody sees the queue and who holds what. Command lines, environments, directories, metadata, paths of logs and
objects, and messages that may quote any of these, are shown to those who have the right ``read`` (``rights.py``). Every
reply of an operation goes through ``veiled``, whatever it is: what is private is known by the names of its fields.
Where a cluster has a private queue, names of jobs and users are hidden, too: such a job is ``hidden-NUMBER``, and
nobody finds it by a filter of its name or its user.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from vctl.core.access import Access
from vctl.core.clusters import PRIMARY
from vctl.core.listed import Alike, Listed
from vctl.errors import VctlError
from vctl.ops import rights
from vctl.store import clusters, nodes, owners, settings
from vctl.store.filters import Condition, Filter
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
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What an id may consist of, in a text."""
_NAMES = frozenset(("array_id", "cluster_id", "name", "submission_id", "user"))
"""The filters of a list by which somebody could find out names."""
_PRIVATE_REASONS = ("Backoff", "LaunchFailed")
"""Reasons of a waiting job whose message tells how its last attempt ended."""


def veiled(store: Store, reply: R) -> R:
    """A reply without what the caller of a shared service may not see in it."""
    if store.identity is None or store.identity.is_admin:
        return reply
    with store.snapshot():
        result: R = Veil(store).over(reply)
    return result


def veil_error(store: Store, error: VctlError) -> None:
    """Hide names in the texts of an error, such as the nearest ids of an unknown one."""
    if store.identity is None or store.identity.is_admin:
        return
    with store.snapshot():
        if private_clusters(store):
            error.told_as(Veil(store).without_names)


def private_clusters(store: Store) -> list[str]:
    """The logical clusters whose names are hidden from the caller: their queue is private, and others administer it."""
    identity = store.identity
    if identity is None or identity.is_admin:
        return []
    said = settings.accesses(store)
    if not any(one.private_queue for one in said.values()):
        return []
    private: dict[str, bool] = {PRIMARY: bool(said.get(PRIMARY, Access()).private_queue)}
    for row in clusters.parents_first(clusters.logical_rows(store)):
        own = said.get(row["cluster_id"], Access()).private_queue
        private[row["cluster_id"]] = private.get(row["parent_id"], False) if own is None else own
    return [name for name, hides in private.items() if hides and not rights.administers(store, name)]


def narrowed(store: Store, within: Condition, filters: Iterable[Filter]) -> Condition:
    """A condition on ``jobs j`` for a list with filters: one by a name finds no job whose name is hidden."""
    if store.identity is None or _NAMES.isdisjoint(key for key, _, _ in filters):
        return within
    if not (hidden := private_clusters(store)):
        return within
    public, values = owners.outside_of(hidden, store.identity.uid)
    return f"{within[0]} AND {public}", [*within[1], *values]


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
        self._private = frozenset(private_clusters(store))
        self._hidden: dict[str, str] = {}
        """Hidden name of a job or an array -> the name in its place."""
        self._renamed: dict[str, str] = {}
        """Each text of a reply -> the same without hidden names."""

    def over(self, reply: Any) -> Any:
        """The reply, veiled."""
        if isinstance(reply, tuple):  # a page of a list
            return (self.over(reply[0]), *reply[1:])
        self.look_up(_numbers(reply))
        shown = self._part(reply, hidden=False)
        return self.without_names(shown) if self._private else shown

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

    # ---- names in private queues ----

    def without_names(self, reply: Any) -> Any:
        """A reply, or a text, without hidden names; those that it has are looked up."""
        texts = set[str]()
        _collect(reply, texts)
        tokens = {token for text in texts for token in _TOKEN.findall(text)}
        arrays = {array_id for token in tokens if (array_id := token.rpartition("_")[0])} | tokens
        found = owners.named_in(self._store, self._private, self._identity.uid, tokens, arrays)
        # a job may have the name of a cluster or a node, which everybody may read
        public = {row["cluster_id"] for row in clusters.logical_rows(self._store)} if found else set()
        public |= {row["node_id"] for row in nodes.all_rows(self._store)} if found else set()
        self._hidden = {name: f"hidden-{number}" for name, number in found if name not in public}
        if not self._hidden:
            return reply
        self._renamed = {text: _TOKEN.sub(self._alias, text) for text in texts}
        return self._named(reply)

    def _alias(self, match: re.Match[str]) -> str:
        token = match[0]
        if (alias := self._hidden.get(token)) is not None:
            return alias
        array_id, mark, index = token.rpartition("_")
        alias = self._hidden.get(array_id) if mark and index.isdigit() else None
        return token if alias is None else f"{alias}_{index}"

    def _named(self, part: Any) -> Any:
        if isinstance(part, str):
            return self._renamed[part]
        if isinstance(part, Listed):
            return Listed(len(part), self._named_columns(part.fields()))
        if isinstance(part, Mapping):
            shown = {name: self._named(value) for name, value in part.items()}
            if "user" in part and self._is_hidden(part.get("submission_id")):
                shown |= {"user": "", "name": None}
            return shown
        return [self._named(one) for one in part] if isinstance(part, list) else part

    def _named_columns(self, fields: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        hidden = [self._is_hidden(name) for name in fields.get("submission_id", ())]
        shown: dict[str, Sequence[Any]] = {
            name: [self._named(value) for value in values] for name, values in fields.items()
        }
        for name, blank in (("user", ""), ("name", None)):
            if hidden and name in shown:
                shown[name] = [
                    blank if hides else one for one, hides in zip(shown[name], hidden, strict=True)
                ]
        return shown

    def _is_hidden(self, name: object) -> bool:
        return isinstance(name, str) and self._renamed.get(name, name) != name

    # ---- contents ----

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


def _collect(part: Any, texts: set[str]) -> None:
    """Add all texts of a reply."""
    if isinstance(part, str):
        texts.add(part)
    elif isinstance(part, Listed):
        for values in part.fields().values():
            for value in [values[0]] if isinstance(values, Alike) and values else values:
                _collect(value, texts)
    elif isinstance(part, Mapping):
        for value in part.values():
            _collect(value, texts)
    elif isinstance(part, (list, tuple)):
        for value in part:
            _collect(value, texts)


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
