"""Virtual clusters on one machine or a Ray cluster: named, nested, elastic parts with gang-scheduled jobs."""

__version__ = "0.1.0"
SOCKET = "commands.sock"
"""The socket in a state directory through which commands reach the command server.

It is defined here because every command imports this module anyway.
"""

TYPE_CHECKING = False  # a type checker treats it like typing.TYPE_CHECKING, whose import takes time
if TYPE_CHECKING:
    from collections.abc import Callable

    from vctl.client.api import (
        Client,
        available_resources,
        cluster_resources,
        connect,
        get_runtime_context,
        init,
        list_clusters,
        list_events,
        list_jobs,
        list_leases,
        list_nodes,
        list_objects,
        list_tasks,
        list_vnodes,
        nodes,
        shutdown,
        summarize_jobs,
        summarize_objects,
        summarize_tasks,
    )
    from vctl.client.context import RuntimeContext, VirtualNodeInfo
    from vctl.client.handles import Job, Task
    from vctl.client.specs import (
        PACK,
        SPREAD,
        STRICT_PACK,
        STRICT_SPREAD,
        DoesNotExist,
        Exists,
        FixedSizeNode,
        FixedSizeNodes,
        In,
        NotIn,
    )
    from vctl.client.virtual_cluster import VirtualCluster, VirtualClusterInfo
    from vctl.errors import VctlError

__all__ = [
    "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD", "Client", "DoesNotExist", "Exists", "FixedSizeNode",
    "FixedSizeNodes", "In", "Job", "NotIn", "RuntimeContext", "Task", "VctlError", "VirtualCluster",
    "VirtualClusterInfo", "VirtualNodeInfo", "available_resources", "cluster_resources", "connect",
    "get_runtime_context", "init", "list_clusters", "list_events", "list_jobs", "list_leases", "list_nodes",
    "list_objects", "list_tasks", "list_vnodes", "nodes", "shutdown", "summarize_jobs", "summarize_objects",
    "summarize_tasks",
]  # fmt: skip

_HOMES = {
    "vctl.client.virtual_cluster": ("VirtualCluster", "VirtualClusterInfo"),
    "vctl.client.context": ("RuntimeContext", "VirtualNodeInfo"),
    "vctl.client.handles": ("Job", "Task"),
    "vctl.client.specs": (
        "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD", "DoesNotExist", "Exists", "FixedSizeNode",
        "FixedSizeNodes", "In", "NotIn",
    ),
    "vctl.errors": ("VctlError",),
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a name of the Python API on first use, so that ``import vctl`` is cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = next((home for home, names in _HOMES.items() if name in names), "vctl.client.api")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def modules_of(package: str) -> "Callable[[str], object]":
    """Return a ``__getattr__`` for a package, which imports its modules on first use."""

    def module(name: str) -> object:
        path = f"{package}.{name}"
        try:
            if not name.startswith("_"):
                return __import__(path, fromlist=("__name__",))  # importlib takes each command some time
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return module


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
