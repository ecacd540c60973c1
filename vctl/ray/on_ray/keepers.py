"""The keepers of jobs' Rays on one node: their commands, their files and the directories of their Rays.

The files are in the folder of the node (agent.py); each writer replaces its file as a whole:

    rays/<run>         the document for the keeper, with its virtual nodes (NODES)
    rays/<run>.said    the messages of the keeper
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from vctl.ray.on_ray.rays import JOINS, SATELLITE
from vctl.ray.private import private_ray, ray_join, ray_parent, ray_satellite


class Keepers:
    """The keepers of one state directory on this node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rays"
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def command(self, run_id: str, kind: str, argv: Iterable[str]) -> tuple[str, ...]:
        """The command line of a keeper, with the job's command at the end, or of the parent of a raylet."""
        script = {JOINS: ray_join, SATELLITE: ray_satellite}.get(kind, private_ray)
        paths = (os.path.abspath(script.__file__ or ""), str(self.folder / run_id), self._directory(run_id))
        own = (sys.executable, "-I", "-S", *paths)
        if kind == JOINS:
            return own
        return (*own, "--", *argv) if kind == SATELLITE else (*own, kind, "--", *argv)

    def show(self, run_id: str, text: str) -> None:
        """Write the document for a keeper."""
        ray_parent.write(str(self.folder / run_id), text)

    def said(self, run_id: str) -> str:
        """The messages of a keeper; empty if there are none."""
        try:
            return (self.folder / f"{run_id}{ray_parent.SAID}").read_text()
        except FileNotFoundError:
            return ""

    def forget(self, run_id: str) -> None:
        """Remove the files of a keeper that is over."""
        if (self.folder / run_id).exists():
            shutil.rmtree(self._directory(run_id), ignore_errors=True)
            for suffix in (ray_parent.SAID, ray_parent.LEFT, ""):
                (self.folder / f"{run_id}{suffix}").unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Remove the files of all keepers, which are over."""
        for name in os.listdir(self.folder):
            self.forget(name)

    def _directory(self, run_id: str) -> str:
        """The directory of a Ray; its path is short, because unix sockets are in it."""
        unique = hashlib.sha256(os.fsencode(self.folder / run_id)).hexdigest()[:16]
        return f"{ray_parent.FOLDERS}{unique}"
