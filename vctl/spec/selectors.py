"""Reads labels and label selectors of users into core values."""

from __future__ import annotations

import re

from vctl.core.labels import SYSTEM, VCLUSTER_ID, VNODE_ID, Condition, Selector, key_problem, value_problem
from vctl.spec.fields import as_mapping, as_text, child, refuse, show
from vctl.spec.ids import is_id, resolve_cluster_id

MAX_LABELS = 64
_FORMS = 'forms: "v", "!v", "in(a,b)", "!in(a,b)", "exists()", "!exists()"'
_CALL = r"(!?)(in|exists)\(([^()]*)\)\Z"


def parse_labels(value: object, path: str) -> dict[str, str]:
    """Read the labels of a node, by the rules of Kubernetes; labels that the system sets are refused."""
    document = as_mapping(value, path, "labels", '{"name": "value"}')
    _check_number(len(document), path)
    labels: dict[str, str] = {}
    for key, given in document.items():
        label_path = child(path, key)
        _check_key(key, label_path)
        if key in SYSTEM:
            raise refuse(label_path, f"{key} is set by the system", "choose another label name")
        text = as_text(given, label_path, "a label value")
        if problem := value_problem(text):
            raise refuse(label_path, problem, "shorten it, or replace the other characters by -")
        labels[key] = text
    return labels


def parse_label_changes(value: object, path: str) -> dict[str, str | None]:
    """Changes of the labels of a node: a value to set, or None to remove the label."""
    document = as_mapping(value, path, "labels", '{"name": "value"}')
    _check_number(len(document), path)
    given = {key: text for key, text in document.items() if text is not None}
    return dict.fromkeys(document) | parse_labels(given, path)


def parse_selector(value: object, path: str) -> Selector:
    """Read a label selector; each value has one of the six ``_FORMS``, or is a list that means ``in(...)``.

    Selectors with the same meaning become equal tuples.
    """
    document = as_mapping(value, path, "a label selector", '{"name": "value"}')
    _check_number(len(document), path)
    conditions = []
    for key, given in document.items():
        key_path = child(path, key)
        _check_key(key, key_path)
        conditions.append(_condition(key, given, key_path))
    return tuple(sorted(conditions, key=lambda condition: condition.key))


def _condition(key: str, given: object, path: str) -> Condition:
    if given is None:
        raise refuse(path, "null selects nothing", 'write "exists()" or "!exists()", or leave the key out')
    if isinstance(given, (list, tuple)):
        texts = [as_text(item, f"{path}[{index}]", "a label value") for index, item in enumerate(given)]
        return Condition(key, "in", _values(key, texts, path))
    text = as_text(given, path, "a selector value").strip()
    if call := re.match(_CALL, text):
        mark, word, inside = call.groups()
        if word == "in":
            return Condition(key, f"{mark}in", _values(key, inside.split(","), path))
        if inside.strip():
            raise refuse(path, f"{word}() takes nothing between its brackets", f'write "{mark}exists()"')
        return Condition(key, f"{mark}exists")
    if "(" in text or ")" in text or "," in text:
        raise refuse(path, f"{show(text)} is not a selector value", _FORMS)
    if text.startswith("!"):
        return Condition(key, "!in", _values(key, [text[1:]], path))
    return Condition(key, "in", _values(key, [text], path))


def _values(key: str, texts: list[str], path: str) -> tuple[str, ...]:
    """The sorted, distinct values of a condition; refuses no values and empty values."""
    values = sorted({text.strip() for text in texts})
    if not values or "" in values:
        raise refuse(
            path, "an empty value cannot be selected", 'write "exists()" to accept any value; ' + _FORMS
        )
    if key in SYSTEM:
        return tuple(sorted({_system_value(key, value, path) for value in values}))
    for value in values:
        if problem := value_problem(value):
            raise refuse(path, problem, _FORMS)
    return tuple(values)


def _system_value(key: str, value: str, path: str) -> str:
    """The id in a system label, for an id as data or as tables show it: ``primary##job``."""
    if key == VCLUSTER_ID:
        return resolve_cluster_id(value, path)
    cluster_id, slash, number = value.rpartition("/")
    if key == VNODE_ID and slash and number.isascii() and number.isdecimal():
        return f"{resolve_cluster_id(cluster_id, path)}/{number}"
    if not is_id(value):  # a virtual node of the primary has the id of its node
        kind, listed = ("virtual node", "nodes -c ID") if key == VNODE_ID else ("node", "node list")
        raise refuse(path, f"{show(value)} is not the id of a {kind}", f"see `vctl {listed}` for the ids")
    return value


def _check_key(key: str, path: str) -> None:
    if problem := key_problem(key):
        raise refuse(path, problem, 'use a name such as "zone" or "example.com/zone"')


def _check_number(count: int, path: str) -> None:
    if count > MAX_LABELS:
        raise refuse(path, f"{count} labels, at most {MAX_LABELS} are accepted", "use fewer")
