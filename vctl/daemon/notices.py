"""Writes the file named by ``VCTL_LEASE_FILE``: it tells a job to return a lease, or that it will end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vctl.core.leases import CALLED
from vctl.daemon.trouble import say
from vctl.engine.rules import revocation
from vctl.engine.state import SchedulerState
from vctl.errors import disk_trouble
from vctl.store import jobs
from vctl.store.store import Store

FOLDER, SUFFIX = "notices", ".json"


def path_of(home: str | Path, submission_id: str) -> str:
    """The path of the notice of a job; ``home``: ``Store.job_files``."""
    return f"{home}/{FOLDER}/{submission_id}{SUFFIX}"


class Notices:
    """The notices of a state directory. A notice is removed when it is no longer true."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.of: dict[str, tuple[int, int | None]] = {}
        """Submission id -> the job and the lease that is called in; None: the job ends for another job."""

    def begin(self) -> None:
        """Take over the notices of an earlier scheduler, and remove the files that it left half written."""
        self.of.clear()
        for path in Path(self.store.job_files, FOLDER).glob("*"):
            name, number = path.name.removesuffix(SUFFIX), None
            if path.name != name and (number := jobs.number_of(self.store, name)) is not None:
                self.of[name] = number, _lease_of(path)
            else:
                _remove(path)

    def write(
        self, submission_id: str, job_id: int, notice: Mapping[str, object], lease_id: int | None
    ) -> None:
        """Write a notice in one step: a reader sees all of it or none.

        If something is in its place, only the signal tells the job. A full disk raises.
        """
        path = path_of(self.store.job_files, submission_id)
        fresh = f"{path}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(fresh, "w", opener=_private) as file:
                json.dump(notice, file)
                if self.store.job_files != self.store.home:
                    os.fchmod(file.fileno(), 0o644)  # its job is another user's
            os.replace(fresh, path)
        except OSError as error:
            if disk_trouble(error) is not None:
                raise
            say(f"no notice for {submission_id}: {error}")  # something else is in its place
        self.of[submission_id] = job_id, lease_id

    def remove_old(self, state: SchedulerState) -> None:
        """Remove the notices of jobs that go on, or that are over."""
        for submission_id, (job_id, lease_id) in list(self.of.items()):
            if not _is_true(state, job_id, lease_id):
                _remove(Path(path_of(self.store.job_files, submission_id)))
                del self.of[submission_id]


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _is_true(state: SchedulerState, job_id: int, lease_id: int | None) -> bool:
    if lease_id is None:
        return job_id in state.preemptions
    lease = state.leases.get(lease_id)
    if lease is None or lease.state != CALLED:
        return False
    return any(run.job_id == job_id for run in revocation.users_of(state, lease.borrower_id))


def _lease_of(path: Path) -> int | None:
    try:
        notice = json.loads(path.read_text())
        return int(notice["lease_id"]) if "lease_id" in notice else None
    except (OSError, ValueError, TypeError):
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
