"""The table of a module that applies changes: the function for each type of change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vctl.engine.changes import Change
from vctl.engine.state import SchedulerState

Table = Mapping[type[Change], Callable[[SchedulerState, Any], None]]
