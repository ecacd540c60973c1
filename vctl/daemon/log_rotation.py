"""Keeping logs below a size: what is there moves to ``<log>.1`` and the job goes on writing into the emptied file.

Off by default. What a job writes in the instant between copy and cut is lost, as with any copy-and-truncate.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def rotate(log: Path, most_bytes: int) -> bool:
    """Rotate a log that is larger than allowed (0: never); True when it was. Processes append, so none notices."""
    if most_bytes <= 0:
        return False
    try:
        if log.stat().st_size <= most_bytes:
            return False
    except FileNotFoundError:
        return False
    old, fresh = log.with_name(f"{log.name}.1"), log.with_name(f".{log.name}.rotating")
    with open(log, "rb") as source, open(fresh, "wb", opener=_private) as target:
        shutil.copyfileobj(source, target, 1 << 20)
        while rest := source.read(1 << 16):  # what came while copying
            target.write(rest)
        os.truncate(log, 0)
    os.replace(fresh, old)
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
