"""Care of a server's state: the functions of ``vctl.ops.health``, ``replay`` and ``backup``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vctl.errors import NotPermitted
from vctl.operations.connection import Connection

Form = dict[str, Any]
_FIX = "run it there, with VCTL_ADDRESS unset"


def backup(server: Connection, path: Path) -> Form:
    """Files are written where the state is."""
    raise NotPermitted(f"{path} cannot be written: the state is at {server.address}", fix=_FIX)


def restore(home: Path, path: Path) -> Form:
    """A state is put back where it is."""
    raise NotPermitted(f"{home} is not replaced by {path}: VCTL_ADDRESS names a server", fix=_FIX)
