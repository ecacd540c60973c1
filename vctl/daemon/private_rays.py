"""``--ray``: a Ray cluster in each job's virtual cluster; its keeper is told which virtual nodes there are.

The file of a job is written before its start and replaced when its virtual cluster changes. It names the temporary
directory of that Ray, so whoever finds the file of a job that is over can remove both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vctl import runtime
from vctl.core import labels as lb
from vctl.core.clusters import VNode
from vctl.core.jobs import Run
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOCAL
from vctl.core.resources import GPU
from vctl.daemon import gangs
from vctl.engine.rules.starts import vnodes_of
from vctl.engine.state import SchedulerState
from vctl.ops.forms import amounts

NODE_LABEL = "vctl.io/node-id"
"""The physical node: Ray keeps ``ray.io/node-id`` for itself."""
_KEEPER = os.path.join(
    os.path.dirname(runtime.__file__), "private_ray.py"
)  # importing it would cost each start
_SUFFIX = ".ray"
_FOLDERS = "/tmp/vctl-ray-"
_MOST_BYTES = 63


def command(home: Path, ledger: Ledger, run: Run, kind: str) -> tuple[str, ...]:
    """The words before the command of a job that starts Ray first; writes the file of its virtual nodes."""
    unique = hashlib.sha256(os.fsencode(home) + run.run_id.encode()).hexdigest()[:16]
    folder = _FOLDERS + unique
    path = _path(home, run)
    _write(path, {"folder": folder, "nodes": nodes(ledger, run.cluster_id)})
    return (sys.executable, "-I", "-S", _KEEPER, str(path), folder, kind, "--")


def nodes(ledger: Ledger, cluster_id: str) -> list[dict[str, Any]]:
    """The virtual nodes of a cluster as the keeper reads them, by rank."""
    return [_node(ledger, vnode) for vnode in vnodes_of(ledger, cluster_id)]


def _node(ledger: Ledger, vnode: VNode) -> dict[str, Any]:
    has, node = vnode.allocation, ledger.nodes.get(vnode.node_id)
    local = node is not None and node.source == LOCAL
    cores = has.bound_cores if local else None
    return {
        "id": vnode.vnode_id,
        "resources": amounts(has.amounts),
        "gpus": [str(index) for index in sorted(has.instances.get(GPU, {}))],
        "cores": None if cores is None else list(cores),
        "labels": labels(vnode),
    }


def labels(vnode: VNode) -> dict[str, str]:
    """The labels of a virtual node for Ray, which allows no ``#`` and no ``/`` in a value."""
    own = {
        key: text
        for key, text in vnode.labels.items()
        if key not in (lb.NODE_ID, lb.VNODE_ID, lb.VCLUSTER_ID)
    }
    return own | {
        lb.VNODE_ID: value(vnode.vnode_id),
        lb.VCLUSTER_ID: value(vnode.cluster_id),
        NODE_LABEL: value(vnode.node_id),
    }


def value(text: str) -> str:
    """An id as a label value of Ray; one that does not fit ends in a hash of itself."""
    plain = text.replace("##", "--").replace("/", ".")
    if lb.value_problem(plain) is None:
        return plain
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{plain[: _MOST_BYTES - 1 - len(mark)]}-{mark}"


@dataclass(slots=True)
class Shown:
    """What the file of a job shows: its cluster, the temporary directory of its Ray, and virtual nodes."""

    cluster_id: str
    folder: str
    vnodes: list[VNode]


class PrivateRays:
    """The files of live jobs that have a Ray of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.shown: dict[Path, Shown] = {}

    def begin(self, state: SchedulerState) -> None:
        """Find the files of live jobs, and remove what is left of others."""
        live = {_path(self.home, run): run for run in state.runs.values() if run.task_id is None}
        self.shown = {}
        for path in (self.home / gangs.FOLDER).glob(f"*{_SUFFIX}"):
            if path in live:
                self.shown[path] = Shown(live[path].cluster_id, _folder(path), [])
            else:
                _remove(path, _folder(path))

    def launched(self, state: SchedulerState, run: Run, argv: Sequence[str]) -> None:
        """A process is launched: keep the file of its job in step, if it has one."""
        if argv[3:4] == (_KEEPER,):
            vnodes = vnodes_of(state.ledger, run.cluster_id)
            self.shown[_path(self.home, run)] = Shown(run.cluster_id, argv[5], vnodes)

    def follow(self, state: SchedulerState) -> None:
        """Show each keeper what its virtual cluster has become; what cannot be written is written next time."""
        for path, one in self.shown.items():
            vnodes = vnodes_of(state.ledger, one.cluster_id)
            if vnodes and vnodes != one.vnodes:
                with contextlib.suppress(OSError):
                    _write(path, {"folder": one.folder, "nodes": nodes(state.ledger, one.cluster_id)})
                    one.vnodes = vnodes

    def forget(self, run: Run) -> None:
        """Remove the file of a job that is over, and what its Ray has left where its keeper was killed."""
        path = _path(self.home, run)
        if run.task_id is None and (one := self.shown.pop(path, None)) is not None:
            _remove(path, one.folder)


def _path(home: Path, run: Run) -> Path:
    return home / gangs.FOLDER / f"{run.job_id}.{run.attempt}{_SUFFIX}"


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(json.dumps(document))
    staged.rename(path)


def _folder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_text())["folder"])
    return ""


def _remove(path: Path, folder: str) -> None:
    if folder.startswith(_FOLDERS):
        shutil.rmtree(folder, ignore_errors=True)
    path.unlink(missing_ok=True)
