"""What a machine is found to have. NVML and the kernel's files are played; the rest is this machine."""

from __future__ import annotations

import ctypes
import os

import pytest

from tests.specification import spec
from vctl.core.resources import SCALE
from vctl.runtime import nvml
from vctl.runtime.detect import detect, template_id

pytestmark = spec("3.sources")

GIB = 1 << 30
DEVICES = (  # in NVML's order, which need not be that of the bus
    ((0, 0x41, 0), "GPU-bbbb-2", "NVIDIA H100 80GB HBM3", 80 * GIB),
    ((0, 0x0F, 0), "GPU-aaaa-1", "NVIDIA H100 80GB HBM3", 80 * GIB),
    ((1, 0x01, 0), "GPU-aacc-3", "NVIDIA H100 80GB HBM3", 80 * GIB),
)


class FakeLibrary:
    """libnvidia-ml as ctypes shows it: integers and pointers in, a code out."""

    # ruff: noqa: N802 - the functions have the library's names

    def __init__(self, *, fails: str = "", code: int = 999) -> None:
        self.fails, self.code, self.open = fails, code, 0

    def __getattr__(self, name: str) -> object:
        if name == self.fails and self.code == -1:
            raise AttributeError(name)
        return lambda *arguments: self.code if name == self.fails else getattr(self, "_" + name)(*arguments)

    def _nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def _nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def _nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = len(DEVICES)
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index, handle) -> int:
        handle._obj.value = index.value + 1
        return 0

    def _nvmlDeviceGetUUID(self, handle, text, length) -> int:
        text.value = DEVICES[handle.value - 1][1].encode()
        return 0

    def _nvmlDeviceGetName(self, handle, text, length) -> int:
        text.value = DEVICES[handle.value - 1][2].encode()
        return 0

    def _nvmlDeviceGetMemoryInfo(self, handle, memory) -> int:
        memory._obj.total = DEVICES[handle.value - 1][3]
        return 0

    def _nvmlDeviceGetPciInfo_v3(self, handle, pci) -> int:
        pci._obj.domain, pci._obj.bus, pci._obj.device = DEVICES[handle.value - 1][0]
        return 0


def test_gpus_are_numbered_by_their_place_on_the_bus():
    machine = detect({}, open_nvml=lambda: nvml.Nvml(FakeLibrary()))
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-aacc-3"]
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]
    assert {gpu.memory_bytes for gpu in machine.gpus} == {80 * GIB}
    assert machine.labels["ray.io/accelerator-type"] == "H100"
    assert machine.template_id.endswith("g3gpu")
    assert machine.notes == ()


VISIBLE = {
    "unset means all": (None, [0, 1, 2], ""),
    "empty means none": ("", [], ""),
    "minus one means none": ("-1", [], ""),
    "indices, in their order": ("2,0", [2, 0], ""),
    "the first that is unknown ends the list": ("0,9,1", [0], "'9'"),
    "a UUID": ("GPU-aacc-3", [2], ""),
    "the beginning of a UUID": ("GPU-b", [1], ""),
    "a beginning that fits two": ("GPU-aa", [], "'GPU-aa'"),
    "twice the same": ("1,1", [1], "'1'"),
    "a part of a device": ("MIG-1234", [], "'MIG-1234'"),
}


@pytest.mark.parametrize(("visible", "want", "note"), VISIBLE.values(), ids=VISIBLE)
def test_only_what_the_scheduler_may_see_is_given_out(visible, want, note):
    found, said = nvml.gpus(visible, lambda: nvml.Nvml(FakeLibrary()))
    assert [gpu.index for gpu in found] == want
    assert note in said
    assert bool(note) == bool(said)


TROUBLES = {
    "no library": (lambda: None, "not installed"),
    "the driver is not loaded": (
        lambda: nvml.Nvml(FakeLibrary(fails="nvmlInit_v2", code=9)),
        "code 9",
    ),
    "a device fails": (lambda: nvml.Nvml(FakeLibrary(fails="nvmlDeviceGetName")), "nvmlDeviceGetName"),
    "an old driver": (
        lambda: nvml.Nvml(FakeLibrary(fails="nvmlDeviceGetPciInfo_v3", code=-1)),
        "too old",
    ),
}


@pytest.mark.parametrize(("way", "words"), TROUBLES.values(), ids=TROUBLES)
def test_trouble_with_nvml_is_a_note(way, words):
    machine = detect({}, open_nvml=way)
    assert machine.gpus == ()
    assert words in machine.notes[0]
    assert "ray.io/accelerator-type" not in machine.labels


def test_the_library_is_closed_again_also_after_a_failure():
    library = FakeLibrary(fails="nvmlDeviceGetUUID")
    with pytest.raises(nvml.NvmlError):
        nvml.Nvml(library).devices()
    assert library.open == 0


def test_a_machine_without_the_library_has_no_nvml(monkeypatch):
    def no_library(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert nvml.load() is None


MODELS = {
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA H200": "H200",
    "Tesla V100-SXM2-16GB": "V100",
    "NVIDIA GeForce RTX 3090": "RTX-3090",
    "NVIDIA L40S": "L40S",
    "NVIDIA": "NVIDIA",
}


@pytest.mark.parametrize(("name", "want"), MODELS.items(), ids=MODELS)
def test_the_accelerator_type_is_the_model(name, want):
    assert nvml.Gpu(0, "", name, 0).accelerator_type == want


MEMINFO = {"/proc/meminfo": "MemTotal:       33554432 kB\nMemFree: 1 kB\n"}
CGROUPS = {
    "no limits": ({"/proc/self/cgroup": "0::/\n"}, None, 32 * GIB),
    "no cgroups at all": ({}, None, 32 * GIB),
    "version 2, own": (
        {
            "/proc/self/cgroup": "0::/user/job\n",
            "/sys/fs/cgroup/user/job/cpu.max": "50000 100000\n",
            "/sys/fs/cgroup/user/job/memory.max": f"{2 * GIB}\n",
        },
        5000,
        2 * GIB,
    ),
    "version 2, the one above is tighter": (
        {
            "/proc/self/cgroup": "0::/user/job\n",
            "/sys/fs/cgroup/user/job/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/user/cpu.max": "12345 100000\n",
            "/sys/fs/cgroup/user/memory.max": f"{GIB}\n",
            "/sys/fs/cgroup/user/job/memory.max": "max\n",
        },
        1234,
        GIB,
    ),
    "version 2 in a container: the path is the host's, the mount is ours": (
        {"/proc/self/cgroup": "0::/host/path\n", "/sys/fs/cgroup/cpu.max": "25000 100000\n"},
        2500,
        32 * GIB,
    ),
    "version 1": (
        {
            "/proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/\n",
            "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "75000\n",
            "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{4 * GIB}\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        7500,
        4 * GIB,
    ),
}


@pytest.mark.parametrize(("files", "cpus", "memory_bytes"), CGROUPS.values(), ids=CGROUPS)
def test_limits_of_cgroups_count(files, cpus, memory_bytes):
    machine = detect({}, read=(MEMINFO | files).get, open_nvml=lambda: None)
    allowed = os.sched_getaffinity(0)
    assert machine.cpu_ids == tuple(sorted(allowed))
    assert machine.cpus == (cpus or len(allowed) * SCALE)
    assert machine.memory_bytes == memory_bytes


def test_this_machine_is_detected():
    machine = detect()
    assert machine.cpus > 0
    assert 0 < machine.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.labels["vctl.io/hostname"] == machine.hostname


def test_template_ids():
    assert template_id(8 * SCALE, 16 * GIB - 300_000_000, 0) == "8c16g"
    assert template_id(8 * SCALE, 16 * GIB, 2) == "8c16g2gpu"
    assert template_id(SCALE // 2, GIB // 4, 0) == "1c1g"
