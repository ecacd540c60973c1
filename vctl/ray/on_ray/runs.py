"""A scheduler's files of the runs that it has sent to nodes of Ray, one for each run, in ``ray/runs``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vctl.core.values import field, value
from vctl.ray.on_ray.wire import DeviceIndices, Packed, Part
from vctl.runtime.protocol import RuntimeUnavailable, Seen


@value(slots=True, eq=False)
class LinkedRun:
    """A run that was sent to a node."""

    node_id: str
    reservation: str
    log: str
    log_max_bytes: int
    groups: Mapping[str, list[Part]]
    """Placement group -> its parts: one group for the start of a job, and more for its growth."""
    kind: str = ""
    main: str = ""
    count: int = 0
    words: Packed | None = None
    """For a run of a job's Ray (rays.py): the kind of keeper, the run of the job's command, how many
    keepers were started on other nodes, and the words they are started with."""
    devices: DeviceIndices = field(default_factory=dict)
    """The GPUs of this run, among those that Ray has reserved."""
    shown: str = ""
    said: str = ""
    """What the scheduler shows its keeper, and what the keeper has said."""
    seen: Packed | None = None
    request: Packed | None = None
    """The message that launches the run, until its agent knows the run."""
    stop: tuple[float, int] | None = None
    """The time at which the run is killed, on the monotonic clock, and the signal of the stop."""
    failed: Seen | None = None


class KnownRuns:
    """The files of the runs that a scheduler has sent to nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Make the directories."""
        for folder in (self.folder, self.folder / "runs", self.folder / "logs"):
            folder.mkdir(mode=0o700, exist_ok=True)

    def keep(self, run_id: str, run: LinkedRun) -> None:
        """Write the file of a run. Raises RuntimeUnavailable."""
        words: list[Any] = [run.node_id, run.reservation, run.log, run.log_max_bytes, run.groups]
        if run.kind or run.devices:
            words += [run.kind, run.main, run.count, run.words, run.devices]
        staged = self.folder / "runs" / f".{run_id}"
        try:
            staged.write_text(json.dumps(words))
            staged.rename(self.folder / "runs" / run_id)
        except OSError as error:
            raise RuntimeUnavailable(f"cannot use {staged}: {error.strerror}") from error

    def load(self) -> dict[str, LinkedRun]:
        """Read the files of all runs; damaged files are skipped."""
        runs: dict[str, LinkedRun] = {}
        for name in os.listdir(self.folder / "runs"):
            if not name.startswith("."):
                with contextlib.suppress(ValueError, TypeError):
                    runs[name] = LinkedRun(*json.loads((self.folder / "runs" / name).read_text()))
        return runs

    def forget(self, run_id: str) -> None:
        """Remove the file of a run that is over."""
        (self.folder / "runs" / run_id).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the files of all runs."""
        for path in (self.folder / "runs").iterdir():
            path.unlink()

    def identity(self) -> tuple[str, bool]:
        """The name of the state directory in Ray, and whether the directory is a copy of another one."""
        self.make()
        path, copied = self.folder / "id", False
        with contextlib.suppress(FileNotFoundError, ValueError):
            name, inode = path.read_text().split()
            if int(inode) == path.stat().st_ino:
                return name, False
            copied = True
        name = os.urandom(6).hex()
        path.unlink(missing_ok=True)
        with path.open("x") as file:
            file.write(f"{name} {os.fstat(file.fileno()).st_ino}\n")
        return name, copied
