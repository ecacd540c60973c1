"""The runtime context: the job, the cluster and the virtual node of a process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vctl.client import inside
from vctl.client.handles import ConfiguredBackend
from vctl.client.virtual_cluster import VirtualClusterInfo
from vctl.core.clusters import PRIMARY
from vctl.operations import views

if TYPE_CHECKING:
    from vctl.spec import documents


class VirtualNodeInfo:
    """One virtual node, looked up at every call."""

    def __init__(self, backend: ConfiguredBackend, node_id: str) -> None:
        self.backend = backend
        self._node_id = node_id

    def __repr__(self) -> str:
        return f"VirtualNodeInfo({self._node_id!r})"

    def _now(self) -> documents.CurrentNode:
        return views.current_node(self.backend, self._node_id)

    def node_id(self) -> str:
        """Its id."""
        return self._node_id

    def physical_node_id(self) -> str:
        """The physical node of which it is a slice."""
        return self._now()["physical_node_id"]

    def node_labels(self) -> dict[str, str]:
        """Its labels, with the labels of its parents and of the system."""
        return self._now()["labels"]

    def used_resources(self) -> documents.Amounts:
        """Its resources that tasks and child clusters hold."""
        return self._now()["used"]

    def avail_resources(self) -> documents.Amounts:
        """Its free resources."""
        return self._now()["available"]

    available_resources = avail_resources

    def total_resources(self) -> documents.Amounts:
        """Its total resources."""
        return self._now()["total"]

    def parent_node(self) -> VirtualNodeInfo | None:
        """The virtual node of the parent cluster in which it lies; None for a physical node."""
        parent = self._now()["parent"]
        return None if parent is None else VirtualNodeInfo(self.backend, parent)


class RuntimeContext:
    """The job, the cluster and the virtual node of this process."""

    def __init__(self, backend: ConfiguredBackend) -> None:
        self.backend = backend

    def current_cluster(self) -> VirtualClusterInfo:
        """The virtual cluster of the caller: that of the innermost ``with`` block, else that of the job."""
        return VirtualClusterInfo(self.backend, inside.cluster_id())

    def current_node(self) -> VirtualNodeInfo:
        """The virtual node of this process. Raises NotFound outside of jobs."""
        node = views.current_node(self.backend, views.this_node())
        return VirtualNodeInfo(self.backend, str(node["node_id"]))

    @property
    def in_job(self) -> bool:
        """Whether this process belongs to a job."""
        return inside.submission_id() is not None and inside.cluster_id() != PRIMARY

    @property
    def job_id(self) -> int | None:
        """The number of the job; None outside of jobs."""
        number = os.environ.get("VCTL_JOB_ID")
        return int(number) if number else None

    @property
    def submission_id(self) -> str | None:
        """The submission id of the job; None outside of jobs."""
        return inside.submission_id()

    @property
    def task_id(self) -> str | None:
        """The id of the task; None in the command of the job."""
        return os.environ.get("VCTL_TASK_ID") or None

    @property
    def attempt(self) -> int | None:
        """The number of the attempt of the job or task, from 1; None outside of jobs."""
        number = os.environ.get("VCTL_ATTEMPT")
        return int(number) if number else None

    @property
    def physical_node_id(self) -> str | None:
        """The physical node of this process; None outside of jobs."""
        return os.environ.get("VCTL_NODE_ID") or None

    @property
    def resources(self) -> documents.Amounts:
        """The resources of this process on its node; empty outside of jobs."""
        import json

        amounts: documents.Amounts = json.loads(os.environ.get("VCTL_RESOURCES") or "{}")
        return amounts
