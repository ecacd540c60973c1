"""The base class of all changes, the decorator that makes them frozen values, and their public events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from vctl.core.values import value

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState

C = TypeVar("C")


@dataclass_transform(frozen_default=True)
def change(kind: type[C]) -> type[C]:
    """Make a class of changes a frozen value class."""
    return value(frozen=True)(kind)


@value(frozen=True, slots=True)
class PublicEvent:
    """The public event that the journal stores beside a change. An empty kind means no event."""

    kind: str
    object_kind: str
    object_id: str
    cluster_id: str | None = None
    job_id: int | None = None
    data: Mapping[str, Any] = {}


class Change:
    """A change of the state: a frozen value with all that a rule may read afterwards, never a difference."""

    def public_event(self) -> PublicEvent:
        """The public event of the change. With an empty kind, the change is for schedulers only."""
        raise NotImplementedError

    def apply(self, state: SchedulerState) -> None:
        """Apply the change to the state. Applied again, it does nothing."""
        raise NotImplementedError


def internal(kind: str, key: str) -> Callable[[Any], PublicEvent]:
    """Make the ``public_event`` of a change for schedulers only; its field ``key`` names the object."""

    def public_event(change: Any) -> PublicEvent:
        value = getattr(change, key)
        return PublicEvent("", kind, str(value), None, value if kind == "job" else None)

    return public_event


def unread(change: Any, state: Any) -> None:
    """Leave the state as it is: other changes contain what a scheduler needs."""
