"""Puts a server where commands look for the state: ``vctl.ops`` and ``vctl.daemon`` are, for them, those of here.

A command says ``from vctl.ops import jobs`` and calls ``jobs.stop(call.store, …)``. With ``VCTL_ADDRESS`` set, the
store is a ``Connection``, and the module is the one of this package with the same functions; a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

STANDINS = {
    "vctl.ops.backup": "upkeep",
    "vctl.ops.object_views": "objects",
    "vctl.ops.objects": "objects",
    "vctl.ops.simulation": "simulation",
    "vctl.ops.submitting": "jobs",
    "vctl.ops.tasks": "tasks",
    "vctl.ops.why": "why",
    "vctl.daemon.waiting": "waiting",
}


def take_over() -> Callable[[], None]:
    """Let this process see the server's functions; what is returned lets it see its own again."""
    before: list[tuple[str, ModuleType | None, object]] = []
    for name, standin in STANDINS.items():
        package, _, word = name.rpartition(".")
        module, parent = import_module(f"vctl.client.{standin}"), import_module(package)
        before.append((name, sys.modules.get(name), getattr(parent, word, None)))
        sys.modules[name] = module
        setattr(parent, word, module)

    def give_back() -> None:
        for name, module, attribute in before:
            package, _, word = name.rpartition(".")
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
            if attribute is None:
                delattr(sys.modules[package], word)
            else:
                setattr(sys.modules[package], word, attribute)

    return give_back
