"""The file named by ``VCTL_LEASE_FILE``: a job reads in it that it has to give something back, or to end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def path_of(home: str | Path, submission_id: str) -> str:
    """Where the notices of a job are."""
    return f"{home}/notices/{submission_id}.json"


def write(home: str | Path, submission_id: str, notice: Mapping[str, object]) -> None:
    """Put a notice there in one step: a reader sees all of it or none."""
    path = path_of(home, submission_id)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w", opener=_private) as file:
        json.dump(notice, file)
    os.replace(fresh, path)


def remove(home: str | Path, submission_id: str) -> None:
    """Take it back."""
    Path(path_of(home, submission_id)).unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
