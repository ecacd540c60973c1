"""Functions by the type of a change, each declared where it stands: those that apply changes, those that write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from vctl.engine.changes import Change

C = TypeVar("C", bound=Callable[..., None])


def declaring(cases: dict[type[Change], Any]) -> Callable[..., Callable[[C], C]]:
    """The decorator that enters a function under types of changes. A type has one; a second is a ValueError."""

    def of(*kinds: type[Change]) -> Callable[[C], C]:
        if twice := cases.keys() & set(kinds):
            raise ValueError(f"declared twice: {', '.join(sorted(one.__name__ for one in twice))}")

        def declare(case: C) -> C:
            cases.update(dict.fromkeys(kinds, case))
            return case

        return declare

    return of
