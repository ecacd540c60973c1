"""Makes a scheduler from the configuration: the one place that knows the settings of a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.daemon.scheduler import Scheduler
from vctl.engine.settings import LeaseTerms
from vctl.runtime.local import LocalRuntime
from vctl.spec.provider_spec import parse_provider
from vctl.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from vctl.config import Config
    from vctl.runtime.protocol import Runtime


def scheduler_of(store: Store, config: Config, *, kind: str) -> Scheduler:
    """A scheduler for a state directory; ``kind``: foreground or background. The caller holds the lock."""
    duration = config.get("lease_duration")
    return Scheduler(
        store,
        kind=kind,
        local_node=config.local_node,
        runtime=_runtime_of(store.home, config.get("ray")),
        maintenance_interval_s=float(config.get("maintenance_interval")),
        terms=LeaseTerms(
            idle_s=float(config.get("lease_idle_timeout")),
            cooldown_s=float(config.get("lease_cooldown")),
            duration_s=None if duration is None else float(duration),
            reclaim_grace_s=float(config.get("reclaim_grace")),
        ),
        log_max_bytes=int(config.get("log_max_bytes")),
        provider=parse_provider(
            config.get("provider"),
            timeout_s=float(config.get("provider_timeout")),
            units=config.get("unit_resources"),
        ),
    )


def _runtime_of(home: Path, ray: str | None) -> Runtime:
    """The runtime of a state directory. ``ray``: the address of a Ray cluster."""
    if ray:
        from vctl.ray.on_ray.runtime import RayRuntime

        return RayRuntime(home, ray)
    return LocalRuntime(home)
