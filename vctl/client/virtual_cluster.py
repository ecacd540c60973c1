"""A virtual cluster as a value, as a sub-cluster of the caller's for the duration of a block, and as it is now."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from vctl import operations
from vctl.client import inside
from vctl.client.handles import ConfiguredBackend, backend_of
from vctl.client.state_api import State
from vctl.errors import BadSpec, Conflict, NotFound, TimedOut
from vctl.operations import views

if TYPE_CHECKING:
    from vctl.client.allocation import HeldAllocation
    from vctl.client.specs import Amounts, Groups
    from vctl.core.clusters import ClusterSpec
    from vctl.spec import documents

LONGEST_PAUSE_S = 0.5


class VirtualCluster:
    """A part of the cluster: its required resources, and its maximum.

    As a value it is the spec of a submit. As a context it becomes a sub-cluster of the job of the program; outside of
    jobs an own job holds it. Entering waits for its resources, at most ``timeout_s`` seconds. Tasks that are started in
    the block stay in it. Leaving waits for its tasks that are not detached and releases the cluster; after an exception
    these tasks are cancelled first. ``name`` becomes the last part of its id; by default the name is random.
    """

    def __init__(
        self,
        *,
        flexible_resource_min: Amounts | None = None,
        flexible_resource_max: Amounts | None = None,
        fixed_size_nodes: Groups | None = None,
        replica_sets: Mapping[str, int] | None = None,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.flexible_resource_min = flexible_resource_min
        self.flexible_resource_max = flexible_resource_max
        self.fixed_size_nodes = fixed_size_nodes
        self.replica_sets = replica_sets
        self.name = name
        self.timeout_s = timeout_s
        self._inside: _Inside | None = None
        from vctl.config import load

        self.parsed(load().get("unit_resources"))

    # ---- as a value ----

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], *, name: str | None = None, timeout_s: float | None = None
    ) -> VirtualCluster:
        """From the JSON form; the refusal of an unknown field names the nearest field."""
        from vctl.spec.cluster_spec import SPEC_FIELDS, parse_cluster_spec
        from vctl.spec.fields import as_mapping

        given = as_mapping(document, "", "a cluster spec", '{"flexible_resource_min": {"CPU": 1}}')
        if not given.keys() <= set(SPEC_FIELDS):
            parse_cluster_spec(given)  # raises the error that names the unknown field
        return cls(**cast(dict[str, Any], given), name=name, timeout_s=timeout_s)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, with the given fields only."""
        from vctl.client.specs import document_of, list_of

        fields = {
            "flexible_resource_min": document_of(self.flexible_resource_min),
            "flexible_resource_max": document_of(self.flexible_resource_max),
            "fixed_size_nodes": list_of(self.fixed_size_nodes),
            "replica_sets": document_of(self.replica_sets),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def to_json(self) -> str:
        """The JSON form as text, for ``--virtual-cluster`` and files."""
        return json.dumps(self.as_dict())

    def parsed(self, units: frozenset[str]) -> ClusterSpec:
        """The ``ClusterSpec``. Raises BadSpec, which names the wrong field."""
        from vctl.spec.cluster_spec import parse_cluster_spec

        return parse_cluster_spec(self.as_dict(), units=units)

    def __eq__(self, other: object) -> bool:
        return self.as_dict() == other.as_dict() if isinstance(other, VirtualCluster) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # its contents may change

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"VirtualCluster({given})"

    # ---- as a context ----

    def __enter__(self) -> VirtualCluster:
        if self._inside is not None:
            raise BadSpec("this VirtualCluster is entered already", fix="make another one for a nested block")
        from vctl.client.allocation import HeldAllocation, is_outside

        backend = backend_of()
        if is_outside():
            spec = self.parsed(backend.config.get("unit_resources"))
            held = HeldAllocation(backend, spec, name=self.name, timeout_s=self.timeout_s)
            block = inside.enter(held.variables["VCTL_CLUSTER_ID"], held.variables)
            self._inside = _Inside(backend, held.job.submission_id, block, held)
            return self
        job = str(inside.submission_id())
        cluster_id = self._make(backend, job, inside.cluster_id())
        self._inside = _Inside(backend, job, inside.enter(cluster_id))
        return self

    def _make(self, backend: ConfiguredBackend, job: str, parent: str) -> str:
        """Create the sub-cluster as soon as its minimum is free; returns its id. Raises TimedOut."""
        name = self.name or f"vc-{os.urandom(4).hex()}"
        give_up = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        pause_s = 0.02
        while True:
            try:
                return str(operations.clusters.create(backend, name, spec=self, parent=parent)["cluster_id"])
            except Conflict as error:
                if "resource" not in error.details:
                    raise
                if give_up is not None and time.monotonic() >= give_up:
                    raise TimedOut(
                        f"the virtual cluster did not start in {parent} within {self.timeout_s:g} s:"
                        f" {error.problem}",
                        fix="ask for less, wait longer with timeout_s, or free resources;"
                        " `vctl vc tree` shows their holders",
                        details=error.details,
                    ) from None
            backend.wait("jobs", job, 0)  # which starts a scheduler if none runs: its work frees resources
            remaining_s = pause_s if give_up is None else max(0.0, give_up - time.monotonic())
            time.sleep(min(pause_s, remaining_s))  # a change may wake many waiting programs at once
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._inside = self._inside, None
        assert entered is not None
        inside.leave(entered.block)
        entered.close(orderly=kind is None)

    @property
    def cluster_id(self) -> str | None:
        """Its id while it is entered."""
        return None if self._inside is None else self._inside.block.cluster_id

    def info(self) -> VirtualClusterInfo:
        """Its state; only while it is entered."""
        entered = self._entered()
        return VirtualClusterInfo(entered.backend, entered.block.cluster_id)

    def environment(self) -> dict[str, str]:
        """The environment for a child process in the cluster, from any thread."""
        return {**os.environ, **self._entered().block.variables()}

    def _entered(self) -> _Inside:
        if self._inside is None:
            raise BadSpec(
                "this VirtualCluster is not entered", fix="use it inside `with VirtualCluster(...) as vc:`"
            )
        return self._inside


class VirtualClusterInfo:
    """One virtual cluster, looked up at every call."""

    def __init__(self, backend: ConfiguredBackend, cluster_id: str) -> None:
        self.backend = backend
        self._cluster_id = cluster_id

    def __repr__(self) -> str:
        return f"VirtualClusterInfo({self._cluster_id!r})"

    def _now(self) -> documents.CurrentCluster:
        return views.current_cluster(self.backend, self._cluster_id)

    def spec(self) -> VirtualCluster:
        """The spec of the cluster."""
        return VirtualCluster.from_dict(self._now()["spec"])

    def cluster_id(self) -> str:
        """Its id."""
        return self._cluster_id

    def total_resources(self) -> documents.Amounts:
        """Its present resources."""
        return self._now()["total_resources"]

    def max_resources(self) -> documents.Amounts | None:
        """The resources to which it may grow; None: there is no limit."""
        return self._now()["max_resources"]

    def available_resources(self) -> documents.Amounts:
        """Its free resources."""
        return self._now()["available_resources"]

    def used_object_store_memory(self) -> float:
        """Bytes of the objects in it."""
        return self._now()["used_object_store_memory"]

    def nodes(self) -> list[documents.NodeOfCluster]:
        """Its virtual nodes, in the form of ``ray.nodes()``."""
        return self.state().nodes()

    def state(self) -> State:
        """The state API of this cluster, such as ``list_tasks()`` and ``summarize_tasks()``."""
        return State(self.backend, self._cluster_id)

    def child_clusters(self) -> list[VirtualClusterInfo]:
        """Its child clusters."""
        return [VirtualClusterInfo(self.backend, child) for child in self._now()["children"]]

    def parent_cluster(self) -> VirtualClusterInfo | None:
        """Its parent cluster; None for the primary."""
        parent = self._now()["parent"]
        return None if parent is None else VirtualClusterInfo(self.backend, parent)


class _Inside:
    """An entered cluster until it is released. ``held``: the allocation, if a job of its own holds it."""

    def __init__(
        self, backend: ConfiguredBackend, job: str, block: inside.Block, held: HeldAllocation | None = None
    ) -> None:
        self.backend = backend
        self.job = job
        self.block = block
        self.held = held

    def close(self, *, orderly: bool) -> None:
        """Wait for its tasks, or cancel them; then release it with its sub-clusters."""
        try:
            if orderly:
                self._until_idle()
        except BaseException:
            orderly = False
            raise
        finally:
            with contextlib.suppress(NotFound):  # the job may be over, with all its clusters
                if not orderly:
                    self._cancel()
                if self.held is None:
                    self._remove()
            if self.held is not None:
                self.held.close(orderly=orderly)

    def _attached(self) -> list[str]:
        """Tasks in it and below it that are not detached."""
        unfinished, _ = operations.tasks.list_tasks(self.backend, all=False, job=self.job)
        own = self.block.cluster_id
        return [
            str(task["task_id"])
            for task in unfinished
            if not task["detached"] and f"{task['cluster_id']}##".startswith(f"{own}##")
        ]

    def _until_idle(self) -> None:
        while attached := self._attached():
            for task_id in attached:
                self.backend.wait("tasks", task_id)

    def _cancel(self) -> None:
        for task_id in self._attached():
            operations.tasks.cancel(self.backend, task_id)
        self._until_idle()

    def _remove(self) -> None:
        """Delete the clusters; a cluster with detached tasks is deleted when these are over."""
        for cluster in reversed(State(self.backend, self.block.cluster_id).list_clusters()):
            operations.clusters.delete(self.backend, cluster["cluster_id"], drain=True)
