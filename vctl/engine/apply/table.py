"""Which function applies a change: one for each type, declared where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from vctl.engine.changes import Change
from vctl.engine.state import SchedulerState

Case = Callable[[SchedulerState, Any], None]
F = TypeVar("F", bound=Case)
CASES: dict[type[Change], Case] = {}


def applies(*kinds: type[Change]) -> Callable[[F], F]:
    """Declare the function that applies changes of these types."""

    def declare(case: F) -> F:
        CASES.update(dict.fromkeys(kinds, case))
        return case

    return declare
