"""``vctl __complete KIND``: the ids that exist now. Runs at every TAB, so it is quick and never fails."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.store.store import Store

MOST = 500


def offer(words: Sequence[str]) -> int:
    """Print the ids of a kind, one a line. Nothing when there is no state, or it cannot be read."""
    kind = words[0] if words else ""
    if kind not in OFFERS:
        return 0
    try:
        sys.stdout.write("".join(f"{word}\n" for word in _ids(kind)))
        sys.stdout.flush()
    except Exception:
        # a shell has nowhere to show a problem: it would spoil the line that is being typed
        if os.environ.get("VCTL_DEBUG") == "1":
            raise
    return 0


def _ids(kind: str) -> list[str]:
    from vctl.config import load
    from vctl.store.database import database_path

    config = load()
    if config.get("address"):
        return _of_server(kind, config)
    home = config.home()
    if not database_path(home).exists():
        return []
    from vctl.store.store import Store

    with Store.open(home, create=False) as store:
        found: list[str] = OFFERS[kind](store)
        return found


def _of_server(kind: str, config: "Config") -> list[str]:
    from vctl.client.connection import connect
    from vctl.client.remote import take_over

    give_back = take_over()
    try:
        found: list[str] = OFFERS[kind](connect(config))
        return found
    finally:
        give_back()


def _jobs(store: "Store") -> list[str]:
    from vctl.ops import jobs

    found, _ = jobs.list_jobs(store, all=True, limit=MOST)
    return [str(job["submission_id"]) for job in found] + (["last"] if found else [])


def _tasks(store: "Store") -> list[str]:
    from vctl.ops import tasks

    found, _ = tasks.list_tasks(store, all=True)
    return [str(task["task_id"]) for task in found][-MOST:]


def _clusters(store: "Store") -> list[str]:
    from vctl.ops import cluster_views

    found = cluster_views.list_clusters(store, filters=(), all_kinds=True)
    return ["primary" if vc["kind"] == "primary" else str(vc["cluster_id"]) for vc in found][:MOST]


def _nodes(store: "Store") -> list[str]:
    from vctl.ops import nodes

    return [str(node["node_id"]) for node in nodes.list_nodes(store)][:MOST]


def _vnodes(store: "Store") -> list[str]:
    from vctl.core.clusters import PRIMARY
    from vctl.ops import views

    here = os.environ.get("VCTL_CLUSTER_ID") or PRIMARY
    return [str(node["NodeID"]) for node in views.nodes(store, here)][:MOST]


OFFERS: dict[str, Any] = {
    "jobs": _jobs,
    "tasks": _tasks,
    "clusters": _clusters,
    "nodes": _nodes,
    "vnodes": _vnodes,
}
