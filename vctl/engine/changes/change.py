"""The decorator of all changes, which makes frozen values of them, and the public event of a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, dataclass_transform

from vctl.core.values import value

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState

C = TypeVar("C")
FIELDS = "__dataclass_fields__"
_makers: dict[type, object] = {}


@dataclass_transform(frozen_default=True)
def change(kind: type[C]) -> type[C]:
    """A frozen dataclass that is made when its first value is, or when its fields are asked for.

    Making one costs half a millisecond. Every command imports all of them, and most commands need one or none.
    """

    def new(cls: type[C], *_: object, **__: object) -> C:
        _make(kind)
        return object.__new__(cls)

    setattr(kind, FIELDS, _Unmade())
    setattr(kind, "__new__", staticmethod(new))  # noqa: B010  # an assignment would be another type
    return kind


class _Unmade:
    """Stands for the fields of a change until somebody asks for them."""

    def __get__(self, instance: object, kind: type) -> Any:
        _make(kind)
        return getattr(kind, FIELDS)


def _make(kind: type) -> None:
    """Make it in the thread that comes first; another one waits for that half millisecond."""
    me = object()
    if _makers.setdefault(kind, me) is me:
        value(frozen=True)(kind)
        setattr(kind, "__new__", staticmethod(_plain))  # noqa: B010  # as above
    while kind.__new__ is not _plain:
        pass


def _plain(cls: type[C], *_: object, **__: object) -> C:
    return object.__new__(cls)


class PublicEvent(NamedTuple):
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
