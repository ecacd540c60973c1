"""The table of a module that writes changes: the function for each type of change."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from vctl.engine.changes import Change

Table = Mapping[type[Change], Callable[[sqlite3.Connection, Any], None]]
"""It gets a connection and a list of changes of its type."""
