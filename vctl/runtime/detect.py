"""Detects this machine as a node: CPUs and memory that this process may use, GPUs, and its type's name."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vctl.core.resources import SCALE
from vctl.core.values import value
from vctl.runtime import nvml, processes
from vctl.runtime.measured import DeviceLibrary

Read = Callable[[str], str | None]

_GIB = 1 << 30
_V1_UNLIMITED = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page
_CGROUPS = "/sys/fs/cgroup"


@value(frozen=True, slots=True)
class Machine:
    """This machine as a node. `cpus` is in 1/10000; under a quota of CPU time it is less than the cores."""

    hostname: str
    boot_id: str
    cpu_ids: tuple[int, ...]
    cpus: int
    memory_bytes: int
    gpus: tuple[nvml.Gpu, ...]
    template_id: str
    labels: Mapping[str, str]
    notes: tuple[str, ...]


def read_text(path: str) -> str | None:
    """The text of a file, or None if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return None


def detect(
    environ: Mapping[str, str] = os.environ,
    *,
    read: Read = read_text,
    open_nvml: Callable[[], DeviceLibrary | None] = nvml.load,
) -> Machine:
    """Detect the machine. Problems with GPUs become `notes`."""
    cpu_ids = tuple(sorted(os.sched_getaffinity(0)))
    cpus = min([len(cpu_ids) * SCALE, *_cpu_quotas(read)])
    memory_bytes = min([_memory_total(read), *_memory_limits(read)])
    gpus, note = nvml.gpus(environ.get("CUDA_VISIBLE_DEVICES"), open_nvml)
    hostname = socket.gethostname()
    labels = {"vctl.io/hostname": hostname}
    if gpus:
        labels["ray.io/accelerator-type"] = gpus[0].accelerator_type
    return Machine(
        hostname=hostname,
        boot_id=processes.boot_id(),
        cpu_ids=cpu_ids,
        cpus=cpus,
        memory_bytes=memory_bytes,
        gpus=gpus,
        template_id=template_id(cpus, memory_bytes, len(gpus)),
        labels=labels,
        notes=(note,) if note else (),
    )


def template_id(cpus: int, memory_bytes: int, gpus: int) -> str:
    """The name of a machine type: `8c16g`, `8c16g2gpu`; memory is rounded, as the kernel keeps some of it."""
    whole = f"{max(1, cpus // SCALE)}c{max(1, round(memory_bytes / _GIB))}g"
    return f"{whole}{gpus}gpu" if gpus else whole


def _memory_total(read: Read) -> int:
    for line in (read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_quotas(read: Read) -> Iterator[int]:
    """Limits of CPU time, in 1/10000 CPU: of this process's cgroup and of all above it."""
    for folder in _cgroup_dirs(read, ""):
        match (read(f"{folder}/cpu.max") or "max").split():
            case [quota, period] if quota != "max":
                yield _share(quota, period)
    for folder in _cgroup_dirs(read, "cpu"):
        limit, window = read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")
        if limit and window and int(limit) > 0:
            yield _share(limit, window)


def _share(quota: str, period: str) -> int:
    return max(1, int(quota) * SCALE // int(period))


def _memory_limits(read: Read) -> Iterator[int]:
    for folder in _cgroup_dirs(read, ""):
        limit = (read(f"{folder}/memory.max") or "max").strip()
        if limit != "max":
            yield int(limit)
    for folder in _cgroup_dirs(read, "memory"):
        limit = (read(f"{folder}/memory.limit_in_bytes") or "").strip()
        if limit and int(limit) < _V1_UNLIMITED:
            yield int(limit)


def _cgroup_dirs(read: Read, controller: str) -> Iterator[str]:
    """Directories of this process's cgroup and of all above it, innermost first. Controller '': version 2.

    The last one is the mount itself. In a container the path of the cgroup may be the host's, while the mount
    shows only the container's part, so the other directories may not exist.
    """
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        mounts = (
            (f"{_CGROUPS}/{controllers}", f"{_CGROUPS}/{controller}")
            if controller
            else (f"{_CGROUPS}/unified", _CGROUPS)
        )
        for mount in dict.fromkeys(mounts):
            parts = [part for part in path.split("/") if part]
            for depth in range(len(parts), -1, -1):
                yield "/".join([mount, *parts[:depth]])
