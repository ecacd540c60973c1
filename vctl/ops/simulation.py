"""``vctl simulate`` on an open state: what a server answers too."""

from __future__ import annotations

from vctl.ops import simulated
from vctl.ops.simulate import Told
from vctl.store.store import Store


def run(store: Store, wanted: simulated.Wanted, told: Told | None = None) -> dict[str, object]:
    """Play work under the present settings and under other policies."""
    return simulated.at(store.home, wanted, told)
