"""Reservations in a Ray cluster: placement groups without actors, by name. Used by the link (link.py)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from vctl.ray.on_ray import wire
from vctl.ray.on_ray.wire import Packed

_POLL_S = (0.005, 0.25)
"""First and longest wait before a reservation is looked at again."""
_PATIENCE_S = 5.0
_NAMED = 3
"""The most shortages, and holders of each, in one message."""
_CREATED, _REMOVED = "CREATED", "REMOVED"
_DENIED = ("NO_RESOURCES", "INFEASIBLE")
"""What Ray says of a placement group that it cannot create now."""
_NODE_LABEL = "ray.io/node-id"
_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
_free: Callable[[], dict[str, dict[str, float]]] = available_resources_per_node


class Reservations:
    """The reservations of one state directory."""

    def __init__(self, state: str, say: Callable[[str], None]) -> None:
        self.state, self.say = state, say
        self.granted: dict[str, asyncio.Future[Any]] = {}

    async def wait_for(self, groups: list[Packed]) -> dict[str, list[str]]:
        """Wait until all resources of a run are reserved; virtual node -> its GPUs, in a fixed order."""
        chosen: dict[str, list[str]] = {}
        for name, bundles, own in groups:
            group = await self.reserve(name, bundles)
            for index, vnode_id in own:
                if has := bundles[index][1].get("GPU"):
                    strategy = PlacementGroupSchedulingStrategy(group, index)
                    options = {"num_cpus": 0, "num_gpus": has, "scheduling_strategy": strategy}
                    gpus = await ray.remote(_gpus).options(**options).remote()
                    chosen.setdefault(vnode_id, []).extend(gpus)
        return chosen

    async def reserve(self, name: str, bundles: list[tuple[str, dict[str, float]]]) -> Any:
        """Wait until Ray has created a placement group; all runs of a job share it."""
        if name not in self.granted:
            self.granted[name] = asyncio.ensure_future(asyncio.to_thread(self._reserve, name, bundles))
        group = await asyncio.shield(self.granted[name])
        began, pause_s = time.monotonic(), _POLL_S[0]
        while (await asyncio.to_thread(placement_group_table, group)).get("state") != _CREATED:
            if time.monotonic() > began + _PATIENCE_S:
                self.say(f"{name} waits for Ray, where others hold what its nodes have")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])
        return group

    def _reserve(self, name: str, bundles: list[tuple[str, dict[str, float]]]) -> Any:
        with contextlib.suppress(ValueError):
            return get_placement_group(name)
        return placement_group(
            [bundle for _, bundle in bundles], name=name, lifetime="detached",
            bundle_label_selector=[{_NODE_LABEL: node_id} for node_id, _ in bundles],
        )  # fmt: skip

    def shortage(self, groups: list[Packed]) -> str:
        """What placement groups lack on which nodes, and who holds that, as far as Ray tells; empty if nothing.

        Also empty until Ray has tried to create one of them in vain: what is free no longer has what it just takes.
        """
        mine = {name for name, _, _ in groups}
        table = placement_group_table().values()
        if not any(
            group["name"] in mine and group["stats"]["scheduling_state"] in _DENIED for group in table
        ):
            return ""
        free = _free()
        totals = {node["NodeID"]: node["Resources"] for node in _nodes()}
        needed: dict[tuple[str, str], float] = {}
        for node_id, amounts in (bundle for _, bundles, _ in groups for bundle in bundles):
            for name, amount in amounts.items():
                needed[node_id, name] = needed.get((node_id, name), 0.0) + amount
        texts = []
        for (node_id, name), amount in sorted(needed.items()):
            has = free.get(node_id, {}).get(name, 0.0)
            if amount <= has:
                continue
            total = totals.get(node_id, {}).get(name, 0.0)
            held = {
                group["name"] or group["placement_group_id"]: sum(
                    group["bundles"][index].get(name, 0.0)
                    for index, place in group["bundles_to_node_id"].items()
                    if place == node_id
                )
                for group in table
                if group["state"] == _CREATED and group["name"] not in mine
            }
            held["tasks and actors"] = total - has - sum(held.values())
            who = [f"{owner} holds {part:g}" for owner, part in held.items() if part > 0]
            texts.append(
                f"needs {amount:g} {name} on node {node_id}, where {has:g} of {total:g} are free in Ray"
                + "".join(f", {text}" for text in who[:_NAMED])
            )
        return "; ".join(texts[:_NAMED])

    def remove(self, name: str) -> None:
        """Remove a placement group."""
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))

    async def release(self, name: str) -> None:
        """Release a reservation."""
        if (granted := self.granted.pop(name, None)) is not None:
            await asyncio.wait({granted})
        await asyncio.to_thread(self.remove, name)

    def stale(self, names: set[str]) -> list[str]:
        """The names of this state directory's placement groups that are not in ``names``."""
        prefix = wire.reservation_name(self.state, "")
        return [
            group["name"]
            for group in placement_group_table().values()
            if group["name"].startswith(prefix) and group["state"] != _REMOVED and group["name"] not in names
        ]


def _gpus() -> list[str]:
    return sorted(ray.get_runtime_context().get_accelerator_ids()["GPU"])
