"""Physical nodes and their states."""

from __future__ import annotations

from dataclasses import dataclass, field

from vctl.core.labels import Labels
from vctl.core.resources import Holding

ALIVE, DRAINING, DRAINED, DEAD, RELEASING = "ALIVE", "DRAINING", "DRAINED", "DEAD", "RELEASING"
LOST = (DEAD, RELEASING)
"""States of nodes that count as no capacity any more."""
LOCAL, SIMULATED, RAY = "local", "simulated", "ray"

TRANSITIONS = {
    ALIVE: {"drain": DRAINING, "die": DEAD, "release": RELEASING},
    DRAINING: {"empty": DRAINED, "undrain": ALIVE, "die": DEAD, "release": RELEASING},
    DRAINED: {"undrain": ALIVE, "die": DEAD, "release": RELEASING},
    DEAD: {"release": RELEASING},
    RELEASING: {},
}
"""state -> event -> next state. A machine that restarts is a new node id. RELEASING: an empty machine of a node
provider stays a row until the provider has ended it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: totals (with instances and core ids), labels and state."""

    node_id: str
    template_id: str
    total: Holding
    hostname: str = ""
    labels: Labels = field(default_factory=dict)
    source: str = SIMULATED
    state: str = ALIVE
    boot_id: str | None = None
    shrunk: bool = False
    """Its totals were lowered, maybe below what lies on it: that may stay, and nothing takes its place."""

    @property
    def schedulable(self) -> bool:
        """Whether new work may be placed here."""
        return self.state == ALIVE
