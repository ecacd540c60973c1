"""Asks Ray's autoscaler for nodes: the link's part of growth.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from vctl.ray.on_ray.wire import Packed

_AGAIN_S = 5.0


class Autoscaler:
    """The nodes to ask Ray's autoscaler for, and the task that asks."""

    def __init__(self, tell: Callable[..., None], say: Callable[[str], None]) -> None:
        self.tell, self.say = tell, say
        self.target: list[Packed] = []
        self.is_asking = False

    async def want(self, bundles: list[Packed]) -> None:
        """Ask for a cluster that can hold these bundles if all its nodes were idle."""
        self.target = bundles
        if self.is_asking:
            return
        self.is_asking, sent = True, None
        while sent != self.target:
            target = self.target
            try:
                await asyncio.to_thread(_request, target)
            except (RayError, RuntimeError, TypeError) as error:
                self.say(f"Ray's autoscaler cannot be asked for nodes: {error}")
                await asyncio.sleep(_AGAIN_S)
            else:
                sent = target
                self.tell("wanted", sent)
        self.is_asking = False


def _request(bundles: list[Packed]) -> None:
    more: dict[str, Any] = {}
    if any(labels for _, labels in bundles):  # Ray before 2.50 knows no labels
        more["bundle_label_selectors"] = [labels for _, labels in bundles]
    request_resources(bundles=[bundle for bundle, _ in bundles], **more)
