"""The runtime context: what a process of a job can ask about the cluster and the virtual node it is in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vctl.client import inside
from vctl.client.handles import Place
from vctl.client.state_api import State
from vctl.core.clusters import PRIMARY
from vctl.operations import views
from vctl.spec import documents

if TYPE_CHECKING:
    from vctl.client.virtual_cluster import VirtualCluster


class VirtualNodeInfo:
    """One virtual node, looked up at every call."""

    def __init__(self, place: Place, node_id: str) -> None:
        self.backend = place
        self._node_id = node_id

    def __repr__(self) -> str:
        return f"VirtualNodeInfo({self._node_id!r})"

    def _now(self) -> documents.CurrentNode:
        return views.current_node(self.backend, self._node_id)

    def node_id(self) -> str:
        """Its id."""
        return self._node_id

    def physical_node_id(self) -> str:
        """The physical node that it is a slice of."""
        return self._now()["physical_node_id"]

    def node_labels(self) -> dict[str, str]:
        """Its labels: its own, those of its parents, and those of the system."""
        return self._now()["labels"]

    def used_resources(self) -> documents.Amounts:
        """What tasks and child clusters hold of it."""
        return self._now()["used"]

    def avail_resources(self) -> documents.Amounts:
        """What is free of it."""
        return self._now()["available"]

    available_resources = avail_resources

    def total_resources(self) -> documents.Amounts:
        """All of it."""
        return self._now()["total"]

    def parent_node(self) -> VirtualNodeInfo | None:
        """The virtual node of the parent cluster in which it lies; None for a physical node."""
        parent = self._now()["parent"]
        return None if parent is None else VirtualNodeInfo(self.backend, parent)


class VirtualClusterInfo:
    """One virtual cluster, looked up at every call."""

    def __init__(self, place: Place, cluster_id: str) -> None:
        self.backend = place
        self._cluster_id = cluster_id

    def __repr__(self) -> str:
        return f"VirtualClusterInfo({self._cluster_id!r})"

    def _now(self) -> documents.CurrentCluster:
        return views.current_cluster(self.backend, self._cluster_id)

    def spec(self) -> VirtualCluster:
        """What was asked for."""
        from vctl.client.virtual_cluster import VirtualCluster

        return VirtualCluster.from_dict(self._now()["spec"])

    def cluster_id(self) -> str:
        """Its id."""
        return self._cluster_id

    def total_resources(self) -> documents.Amounts:
        """What it has now."""
        return self._now()["total_resources"]

    def max_resources(self) -> documents.Amounts | None:
        """How far it may grow; None: there is no limit."""
        return self._now()["max_resources"]

    def available_resources(self) -> documents.Amounts:
        """What is free in it."""
        return self._now()["available_resources"]

    def used_object_store_memory(self) -> float:
        """Bytes of the objects in it."""
        return self._now()["used_object_store_memory"]

    def nodes(self) -> list[documents.NodeOfCluster]:
        """Its virtual nodes, in the form of ``ray.nodes()``."""
        return self.state().nodes()

    def state(self) -> State:
        """The state API for this cluster: ``list_tasks()``, ``summarize_tasks()`` and the like."""
        return State(self.backend, self._cluster_id)

    def child_clusters(self) -> list[VirtualClusterInfo]:
        """The clusters that were made in it."""
        return [VirtualClusterInfo(self.backend, child) for child in self._now()["children"]]

    def parent_cluster(self) -> VirtualClusterInfo | None:
        """The cluster that it is a part of; None for the primary."""
        parent = self._now()["parent"]
        return None if parent is None else VirtualClusterInfo(self.backend, parent)


class RuntimeContext:
    """Where this process is."""

    def __init__(self, place: Place) -> None:
        self.backend = place

    def current_cluster(self) -> VirtualClusterInfo:
        """The virtual cluster that the caller is in: of the innermost ``with`` block, else the job's."""
        return VirtualClusterInfo(self.backend, inside.cluster_id())

    def current_node(self) -> VirtualNodeInfo:
        """The virtual node that this process is on; NotFound outside a job."""
        found = views.current_node(self.backend, views.this_node())
        return VirtualNodeInfo(self.backend, str(found["node_id"]))

    @property
    def in_job(self) -> bool:
        """Whether this process belongs to a job."""
        return inside.submission_id() is not None and inside.cluster_id() != PRIMARY

    @property
    def job_id(self) -> int | None:
        """Number of the job, None outside."""
        number = os.environ.get("VCTL_JOB_ID")
        return int(number) if number else None

    @property
    def submission_id(self) -> str | None:
        """Id of the job, None outside."""
        return inside.submission_id()

    @property
    def task_id(self) -> str | None:
        """Id of the task, None in the job's own command."""
        return os.environ.get("VCTL_TASK_ID") or None

    @property
    def attempt(self) -> int | None:
        """Which try of the job or task this is, from 1."""
        number = os.environ.get("VCTL_ATTEMPT")
        return int(number) if number else None

    @property
    def physical_node_id(self) -> str | None:
        """The physical node, None outside a job."""
        return os.environ.get("VCTL_NODE_ID") or None

    @property
    def resources(self) -> documents.Amounts:
        """What this process was given on its node; empty outside a job."""
        import json

        found: documents.Amounts = json.loads(os.environ.get("VCTL_RESOURCES") or "{}")
        return found
