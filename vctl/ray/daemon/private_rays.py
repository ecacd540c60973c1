"""``--ray``: a private Ray cluster in a job's virtual cluster; a file tells its keeper the virtual nodes.

The file of a job is written before its start and replaced when its virtual cluster changes. It names the
temporary directory of that Ray, so a scheduler that finds the file of an ended job can remove both. On the
nodes of a Ray cluster, the runtime shows the same to the keepers there, and their agents remove their
directories.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import JOB, Cluster, VNode
from vctl.core.jobs import Run
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOCAL
from vctl.core.resources import GPU, Allocation, Amounts
from vctl.core.values import value
from vctl.daemon import gangs, notices
from vctl.engine.state import SchedulerState
from vctl.ops.forms import amounts
from vctl.ray import private
from vctl.ray.private import ray_parent
from vctl.ray.private.raylets import JOB_CONFIG, marked, to_install
from vctl.runtime import namespaces
from vctl.runtime.protocol import LaunchRequest, ReservedParts, Runtime
from vctl.scheduler.elasticity import can_grow
from vctl.scheduler.leasing import idle_parts

NODE_LABEL = "vctl.io/node-id"
"""The physical node: Ray keeps ``ray.io/node-id`` for itself."""
_KEEPER, _JOIN = (  # importing them would cost each start
    os.path.join(os.path.dirname(private.__file__), name) for name in ("private_ray.py", "ray_join.py")
)
RAYLET, JOINS = "ray-raylet", "joins"
"""The name of a task that is a raylet, and its part in the Ray of its job."""
_SUFFIX = ".ray"
_MAX_BYTES = 63


def command(home: Path, ledger: Ledger, run: Run, kind: str) -> tuple[str, ...]:
    """The words before the command of a job, which start Ray first; writes the file of its virtual nodes."""
    unique = hashlib.sha256(os.fsencode(home) + run.run_id.encode()).hexdigest()[:16]
    folder = ray_parent.FOLDERS + unique
    path = _path(home, run)
    _write(path, {"folder": folder, "nodes": nodes(ledger, run)})
    return (sys.executable, "-I", "-S", _KEEPER, str(path), folder, kind, "--")


def part_of(kind: str, argv: Sequence[str]) -> str:
    """The part of a run in the private Ray of its job, on the nodes of a Ray cluster."""
    return JOINS if os.path.basename("".join(argv[3:4])) == os.path.basename(_JOIN) else kind


def is_raylet(argv: Sequence[str]) -> bool:
    """Whether a command is a raylet that joins the Ray of its job."""
    return tuple(argv[3:4]) == (_JOIN,)


def job_config(
    submission_id: str, metadata: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """The variable by which ``ray.init()`` in a job finds the metadata of the job, as where Ray runs it.

    ``variables``: those of the job, in which the packages of its ``runtime_env`` are.
    """
    own = {"job_submission_id": submission_id, "job_name": submission_id, **metadata}
    return {
        JOB_CONFIG: json.dumps({"runtime_env": to_install(variables.get(JOB_CONFIG, "")), "metadata": own})
    }


def begin_on_ray(home: Path, ledger: Ledger, run: Run) -> Mapping[str, Any]:
    """The virtual nodes of a job on the nodes of a Ray cluster; writes their file."""
    shown = {"nodes": nodes(ledger, run)}
    _write(_path(home, run), {"folder": "", **shown})
    return shown


def reservation_of(ledger: Ledger, run: Run, attempt: int) -> ReservedParts:
    """The resources that Ray reserves for a run: all virtual nodes of its job, or else the run's own."""
    vnode = ledger.vnodes.get(run.vnode_id)
    while vnode is not None and ledger.clusters[vnode.cluster_id].kind != JOB:
        vnode = ledger.vnodes.get(vnode.parent_id or "")
    if vnode is None:
        return ReservedParts(run.run_id, ((run.vnode_id, run.node_id, run.allocation.amounts),), run.vnode_id)
    members = (ledger.vnodes[vnode_id] for vnode_id in ledger.members[vnode.cluster_id])
    parts = sorted((member.vnode_id, member.node_id, member.allocation.amounts) for member in members)
    return ReservedParts(f"{run.job_id}.{attempt}", tuple(parts), vnode.vnode_id)


def nodes(ledger: Ledger, run: Run, raylets: Sequence[Run] = ()) -> list[dict[str, Any]]:
    """The virtual nodes of a job's cluster as the keeper reads them, by rank.

    Resources of separate raylets, and leased resources that are idle, are left out. ``unused``: the resources
    that the job's command does not hold itself. ``growth``: whether resources were left out.
    """
    documents = []
    idle = borrowed_and_idle(ledger, run.cluster_id)
    for vnode in ledger.ranked(run.cluster_id):
        part = idle.get(vnode.vnode_id)
        has = vnode.allocation if part is None else rs.difference(vnode.allocation, part)
        for raylet in raylets:
            if raylet.vnode_id == vnode.vnode_id:
                has = rs.difference(has, raylet.allocation)
        own = run.allocation.amounts if run.vnode_id == vnode.vnode_id else {}
        node = ledger.nodes.get(vnode.node_id)
        cores = has.bound_cores if node is not None and node.source == LOCAL else None
        documents.append(
            {
                "id": vnode.vnode_id,
                "node": vnode.node_id,
                "resources": amounts(has.amounts),
                "unused": amounts({n: a for n, a in rs.subtract(has.amounts, own).items() if a > 0}),
                "growth": has != vnode.allocation,
                "gpus": [str(index) for index in sorted(has.instances.get(GPU, {}))],
                "cores": None if cores is None else list(cores),
                "labels": labels(vnode),
            }
        )
    return documents


def borrowed_and_idle(ledger: Ledger, cluster_id: str) -> dict[str, Allocation]:
    """Virtual node of a job's cluster -> the part of it that would return if nobody came to use it."""
    leases = ledger.borrowed(cluster_id)
    parent_id = ledger.clusters[cluster_id].parent_id if leases else None
    lent = rs.total(lease.amounts for lease in leases)
    idle = idle_parts(ledger, Lease(0, cluster_id, parent_id or "", lent, 0)) if leases else ()
    return {vnode.vnode_id: part for vnode, part in idle}


def limits(cluster: Cluster) -> Amounts | None:
    """The most that a cluster may have, including its fixed part; None if it cannot grow."""
    spec, fixed = cluster.spec, rs.total(node.resources for node in cluster.spec.fixed)
    if not can_grow(cluster):
        return None
    limit = dict(spec.flexible_max or {})
    for name, amount in (cluster.borrow_limit or {}).items():
        total = amount + spec.flexible_min.get(name, 0)
        limit[name] = min(total, limit.get(name, total))
    if limit and all(amount <= spec.flexible_min.get(name, 0) for name, amount in limit.items()):
        return None
    return {name: amount + fixed.get(name, 0) for name, amount in limit.items()}


def labels(vnode: VNode) -> dict[str, str]:
    """The labels of a virtual node for Ray, which allows no ``#`` and no ``/`` in a value."""
    own = {
        key: text
        for key, text in vnode.labels.items()
        if key not in (lb.NODE_ID, lb.VNODE_ID, lb.VCLUSTER_ID)
    }
    return own | {
        lb.VNODE_ID: label_value(vnode.vnode_id),
        lb.VCLUSTER_ID: label_value(vnode.cluster_id),
        NODE_LABEL: label_value(vnode.node_id),
    }


def label_value(text: str) -> str:
    """An id as a label value of Ray; one that does not fit ends in a hash of itself."""
    plain = text.replace("##", "--").replace("/", ".")
    return plain if lb.value_problem(plain) is None else marked(plain, text, _MAX_BYTES)


@value(slots=True)
class Shown:
    """The content of a job's file: its main process, the temporary directory of its Ray, and the rest."""

    run: Run
    folder: str
    document: dict[str, Any]
    answered: str = ""
    """The id of the last request to leave virtual nodes that was answered."""


class PrivateRays:
    """The files of live jobs that have a Ray of their own."""

    def __init__(self, home: Path, runtime: Runtime) -> None:
        self.home, self.runtime = home, runtime
        self.shown: dict[Path, Shown] = {}
        self._raylets: set[str] = set()
        """Runs that are raylets."""

    def begin(self, state: SchedulerState) -> None:
        """Find the files of live jobs, and remove the files and directories of other jobs."""
        live = {_path(self.home, run): run for run in state.runs.values() if run.task_id is None}
        self.shown = {}
        for path in (self.home / gangs.FOLDER).glob(f"*{_SUFFIX}"):
            if path in live:
                self.shown[path] = Shown(live[path], _folder(path), {})
            else:
                _remove(path, _folder(path))

    def launched(self, run: Run, request: LaunchRequest) -> None:
        """Note that a run is launched: whether it is a raylet, or the main process of a job with a file."""
        argv = namespaces.behind(request.argv)
        if request.ray == JOINS or is_raylet(argv):
            self._raylets.add(run.run_id)
        elif request.ray or argv[3:4] == (_KEEPER,):
            self.shown[_path(self.home, run)] = Shown(run, "" if request.ray else argv[5], {})

    def follow(self, state: SchedulerState) -> None:
        """Show each keeper its present virtual cluster; a file that cannot be written now follows later."""
        if not self.shown:
            return
        for path, shown in self.shown.items():
            run = shown.run
            document = self._document(state, run)
            if not shown.folder:
                document |= self._remote_files(state, path, run)
            if document["nodes"] and document != shown.document:
                with contextlib.suppress(OSError):
                    _write(path, {"folder": shown.folder, **document})
                    shown.document = document
                    if not shown.folder:
                        reserved = reservation_of(state.ledger, run, run.attempt)
                        self.runtime.show(run.run_id, document, reserved)
            if shown.answered != (request_id := document.get("leaving", {}).get("id", shown.answered)):
                if self.runtime.given_up(run.run_id) == request_id:
                    ray_parent.put(f"{path}{ray_parent.LEFT}", {"id": request_id})
                    shown.answered = request_id

    def _remote_files(self, state: SchedulerState, path: Path, run: Run) -> dict[str, Any]:
        """The files that keepers on other machines cannot read: the request to leave virtual nodes
        (vctl/ray/ops/draining.py), and the notice that a lease is called in."""
        job = state.running.jobs.get(run.job_id) if state.leases else None
        notice = "" if job is None else notices.path_of(self.home, job.submission_id)
        documents = {"leaving": _read(f"{path}{ray_parent.LEAVING}"), "notice": _read(notice)}
        return {name: document for name, document in documents.items() if document}

    def _document(self, state: SchedulerState, run: Run) -> dict[str, Any]:
        ledger, cluster = state.ledger, state.ledger.clusters.get(run.cluster_id)
        tasks = [task for task in state.tasks.of_job(run.job_id) if task.name == RAYLET]
        runs = [
            state.runs[run_id] for task in tasks for run_id in state.runs_of_task(task.task_id, run.job_id)
        ]
        document: dict[str, Any] = {"nodes": nodes(ledger, run, runs)}
        if cluster is not None and (limit := limits(cluster)) is not None:
            running = {raylet.task_id for raylet in runs}
            document["elastic"] = {
                "most": amounts(limit),
                "largest": {} if ledger.templates else amounts(_largest(ledger)),
                "idle_s": state.lease_terms.idle_s,
                "raylets": {task.task_id: task.task_id in running for task in tasks},
            }
        return document

    def forget(self, run: Run) -> None:
        """Remove the file of an ended job, and the directory that its Ray left if its keeper was killed."""
        if not self.shown or run.task_id is not None:
            return
        path = _path(self.home, run)
        if (shown := self.shown.pop(path, None)) is not None:
            _remove(path, shown.folder)

    def ended_raylet(self, run: Run) -> bool:
        """Whether an ended run was a raylet: it had long been idle, so what it had need not be idle again."""
        is_raylet = run.run_id in self._raylets
        self._raylets.discard(run.run_id)
        return is_raylet


def _largest(ledger: Ledger) -> Amounts:
    """The most that any physical node has of each resource."""
    largest: dict[str, int] = {}
    for node in ledger.nodes.values():
        for name, amount in node.total.amounts.items():
            largest[name] = max(amount, largest.get(name, 0))
    return largest


def _path(home: Path, run: Run) -> Path:
    return home / gangs.FOLDER / f"{run.job_id}.{run.attempt}{_SUFFIX}"


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    ray_parent.put(str(path), document)


def _read(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(Path(path).read_text())
        return document if isinstance(document, dict) else {}
    return {}


def _folder(path: Path) -> str:
    return str(_read(str(path)).get("folder", ""))


def _remove(path: Path, folder: str) -> None:
    if folder.startswith(ray_parent.FOLDERS):
        shutil.rmtree(folder, ignore_errors=True)
    for suffix in (ray_parent.LEAVING, ray_parent.LEFT, ""):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
