"""Computes the nodes to request from Ray's autoscaler; the link sends the request (autoscaler.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from vctl.core import resources as rs
from vctl.ray.on_ray.wire import Packed, RayNode, bundle
from vctl.runtime.protocol import NodeDemand


def constraint(targets: Iterable[NodeDemand], nodes: Iterable[RayNode]) -> list[Packed]:
    """The request to Ray's autoscaler, as bundles with the labels of their nodes.

    The autoscaler compares the request with all nodes as if they were idle. So the request also contains each
    present node that it could count as a wanted one.
    """
    kinds = [(amounts, dict(labels)) for amounts, labels in targets]
    request = [(bundle(amounts), labels) for amounts, labels in kinds]
    kinds.sort(key=lambda kind: len(kind[0]) + len(kind[1]), reverse=True)
    for node in nodes:
        for amounts, labels in kinds if not node.death else ():
            if rs.within(amounts, node.amounts) and labels.items() <= node.labels.items():
                request.append((bundle({name: node.amounts[name] for name in amounts}), labels))
                break
    return request


class RayGrowth:
    """The nodes that are wanted, and those that the present link was asked for.

    A request stays in Ray until another one replaces it, whichever process made it. The file exists while
    there may be one.
    """

    def __init__(self, folder: Path, tell: Callable[..., None]) -> None:
        self.file, self.tell = folder / "wants", tell
        self.target: Sequence[NodeDemand] | None = None
        """The wanted nodes; None before the first ``request_nodes``."""
        self.sent: list[Packed] | None = None

    def begin(self) -> None:
        """Note that there is a new link, to which nothing was sent yet."""
        self.sent = None

    def ask(self, nodes: Mapping[str, RayNode]) -> None:
        """Send the link the wanted nodes, unless it has them already."""
        if self.target is None:
            return
        request = constraint(self.target, nodes.values())
        if request != (self.sent or []) or (self.sent is None and self.file.exists()):
            self.file.touch(mode=0o600)
            self.sent = request
            self.tell("want", request)

    def confirm(self, bundles: Sequence[Packed]) -> None:
        """Note that Ray was asked for these bundles; removes the file if there are none."""
        if not bundles and not self.sent:
            self.file.unlink(missing_ok=True)
