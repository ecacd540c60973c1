"""The cluster spec in Python, with the names of the proposal: groups of fixed nodes, and conditions on labels.

Each class has a JSON form (``as_dict``), which ``vctl.spec`` reads and checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

PACK: Final = "PACK"
SPREAD: Final = "SPREAD"
STRICT_PACK: Final = "STRICT_PACK"
STRICT_SPREAD: Final = "STRICT_SPREAD"

Amount = float | str
"""A number, or for memory a size such as ``8GiB``."""
Amounts = Mapping[str, Amount]


@dataclass(frozen=True, init=False)
class _Values:
    values: tuple[str, ...]

    def __init__(self, *values: str) -> None:
        object.__setattr__(self, "values", values)


class In(_Values):
    """The label has one of these values."""

    def __str__(self) -> str:
        return f"in({','.join(self.values)})"


class NotIn(_Values):
    """The label has none of these values, or does not exist."""

    def __str__(self) -> str:
        return f"!in({','.join(self.values)})"


@dataclass(frozen=True)
class Exists:
    """The label exists, with any value."""

    def __str__(self) -> str:
        return "exists()"


@dataclass(frozen=True)
class DoesNotExist:
    """The label does not exist."""

    def __str__(self) -> str:
        return "!exists()"


Condition = str | Sequence[str] | In | NotIn | Exists | DoesNotExist
"""A condition on a label: a text in one of the six forms, a list of values, or one of the classes."""
LabelSelector = Mapping[str, Condition]


@dataclass(frozen=True)
class FixedSizeNode:
    """A virtual node that is never resized."""

    resources: Amounts
    labels: Mapping[str, str] | None = None
    label_selector: LabelSelector | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        document: dict[str, Any] = {"resources": document_of(self.resources)}
        if self.labels is not None:
            document["labels"] = document_of(self.labels)
        if self.label_selector is not None:
            document["label_selector"] = selector_document(self.label_selector)
        return document


@dataclass(frozen=True)
class FixedSizeNodes:
    """Fixed nodes that are placed together under one policy, all of them or none."""

    nodes: Sequence[FixedSizeNode | Mapping[str, Any]]
    scheduling_policy: str = PACK

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "nodes": list_of(self.nodes),
            "scheduling_policy": self.scheduling_policy,
        }


Groups = Sequence[FixedSizeNodes | FixedSizeNode | Mapping[str, Any]]
"""Groups, or nodes, which are one PACK group."""


# A value of a wrong type is passed on unchanged: the parser of the spec refuses it, and names its place.


def selector_document(selector: object) -> Any:
    """A label selector as JSON."""
    if not isinstance(selector, Mapping):
        return selector
    return {key: _condition(value) for key, value in selector.items()}


def _condition(value: object) -> Any:
    if isinstance(value, (In, NotIn, Exists, DoesNotExist)):
        return str(value)
    return (
        value
        if isinstance(value, str) or not _is_list(value)
        else [str(alternative) for alternative in value]
    )


def document_of(part: object) -> Any:
    """The JSON form of a part of a spec, given as an object or as JSON."""
    if isinstance(part, (FixedSizeNode, FixedSizeNodes)):
        return part.as_dict()
    return dict(part) if isinstance(part, Mapping) else part


def list_of(parts: object) -> Any:
    """The JSON form of a list of parts of a spec."""
    return [document_of(part) for part in parts] if _is_list(parts) else parts


def _is_list(value: object) -> TypeGuard[Collection[object]]:
    """Whether a value is a list or the like. A generator is none, as its items can be read only once."""
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
