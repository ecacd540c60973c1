"""Which function applies a change: one for each type, declared where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vctl.engine.cases import declaring
from vctl.engine.changes import Change
from vctl.engine.state import SchedulerState

CASES: dict[type[Change], Callable[[SchedulerState, Any], None]] = {}
applies = declaring(CASES)
"""Declare the function that applies changes of these types."""
