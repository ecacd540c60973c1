"""Before the cluster of a job shrinks: its private Ray drains the raylets of the lost resources, for a limited time."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vctl.core.clusters import JOB
from vctl.core.resources import Amounts
from vctl.ops import nodes
from vctl.ops.forms import amounts
from vctl.ray.private import private_ray, ray_parent
from vctl.store import clusters, rows
from vctl.store.store import Store

FOLDER, SUFFIX = "gangs", ".ray"
"""The directory and the suffix of the files that tell the keeper of a private Ray its virtual nodes."""
MARGIN_S = 5.0
"""Seconds that a keeper gets in addition to the time in which raylets may drain."""
_POLL_S = 0.02


def drain_first(store: Store, cluster_id: str, change: Callable[[], object]) -> None:
    """Drain the raylets that lose resources by a change of a cluster. Raises the errors of the change."""
    row = clusters.get(store, cluster_id)
    if row is None or row["kind"] != JOB:
        return
    for path in (Path(store.home) / FOLDER).glob(f"{row['job_id']}.*{SUFFIX}"):
        if less := _losses(store, cluster_id, change):
            _ask(store, path, less)


def _losses(store: Store, cluster_id: str, change: Callable[[], object]) -> dict[str, Amounts]:
    """The virtual nodes that lose resources by a change, with their resources after it; the change is taken back."""
    before = _held(store, cluster_id)
    with nodes.rolled_back(store):
        change()
        after = _held(store, cluster_id)
    return {
        vnode_id: after.get(vnode_id, {})
        for vnode_id, had in before.items()
        if any(amount > after.get(vnode_id, {}).get(name, 0) for name, amount in had.items())
    }


def _held(store: Store, cluster_id: str) -> dict[str, Amounts]:
    return {row["vnode_id"]: rows.allocation(row).amounts for row in clusters.vnode_rows(store, cluster_id)}


def _ask(store: Store, path: Path, less: Mapping[str, Amounts]) -> None:
    """Ask the keeper of a Ray to drain, and wait until it has answered, the time is over, or Ray has ended."""
    try:
        folder = Path(json.loads(path.read_text())["folder"] or path)  # none where Ray is on other machines
        name, until = secrets.token_hex(8), time.time() + private_ray.DRAIN_S + MARGIN_S
        remaining = {vnode_id: amounts(has) for vnode_id, has in less.items()}
        ray_parent.put(f"{path}{ray_parent.LEAVING}", {"id": name, "until": until, "nodes": remaining})
        store.wake()
    except (OSError, ValueError, KeyError):
        return  # Ray has not started yet, or has ended
    while time.time() < until and folder.exists():
        try:
            if json.loads(Path(f"{path}{ray_parent.LEFT}").read_text())["id"] == name:
                return
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(_POLL_S)
