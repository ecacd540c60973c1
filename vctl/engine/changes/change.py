"""The decorator of all changes, which makes frozen values of them, and the public event of a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from vctl.core.values import value

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState

C = TypeVar("C")


@dataclass_transform(frozen_default=True)
def change(kind: type[C]) -> type[C]:
    """A frozen dataclass."""
    return value(frozen=True)(kind)


@value(frozen=True, slots=True)
class PublicEvent:
    """The public event that the journal has beside a change. With an empty kind there is none."""

    kind: str
    object_kind: str
    object_id: str
    cluster_id: str | None = None
    job_id: int | None = None
    data: Mapping[str, Any] = {}


class Change:
    """A change of the state: a frozen value with everything that a rule may read afterwards, never a difference."""

    def public_event(self) -> PublicEvent:
        """The public event of the change; one with an empty kind is in the journal for schedulers alone."""
        raise NotImplementedError

    def apply(self, state: SchedulerState) -> None:
        """Let the state be as it is after the change. Applied again, the change does nothing."""
        raise NotImplementedError


def internal(kind: str, key: str) -> Callable[[Any], PublicEvent]:
    """No public event: a change for schedulers alone, of the object that its field ``key`` names."""

    def public_event(change: Any) -> PublicEvent:
        value = getattr(change, key)
        return PublicEvent("", kind, str(value), None, value if kind == "job" else None)

    return public_event


def unread(change: Any, state: Any) -> None:
    """The state stays: what a scheduler reads of such a change is in other changes."""
