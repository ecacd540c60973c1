"""Measures the outputs of tasks in a thread beside the scheduler: a tree may be large."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from vctl.engine.stimuli import Outputs
from vctl.runtime import objects as files

AT_ONCE_S = 0.02
"""How long the scheduler waits for a result: nearly all objects are measured by then."""


def measure(folder: Path, names: Sequence[str]) -> Outputs:
    """Measure outputs, and make them read-only."""
    sizes: dict[str, int] = {}
    for name in names:
        try:
            sizes[name] = files.size_of(folder, name)
            files.seal(folder, name)
        except files.Unusable as error:
            return error.problem
    return sizes


class Measuring:
    """The outputs that are being measured, by run. ``wake`` is called whenever a result is ready."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._running: dict[str, threading.Thread] = {}
        self._results: dict[str, Outputs] = {}

    def result(self, run_id: str, folder: Path, names: Sequence[str]) -> Outputs | None:
        """The outputs of a run; None while they are being measured."""
        if run_id not in self._running and run_id not in self._results:
            # A daemon thread, so that the process can end without waiting for a large tree.
            thread = threading.Thread(target=self._measure, args=(run_id, folder, names), daemon=True)
            self._running[run_id] = thread
            thread.start()
            thread.join(AT_ONCE_S)
        if run_id not in self._results:
            return None
        self._running.pop(run_id, None)
        return self._results.pop(run_id)

    def ready(self) -> set[str]:
        """Runs whose result is ready."""
        return set(self._results)

    def _measure(self, run_id: str, folder: Path, names: Sequence[str]) -> None:
        try:
            self._results[run_id] = measure(folder, names)
        except Exception as error:  # noqa: BLE001 - a fault of one object: its task fails
            self._results[run_id] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            self._wake()
