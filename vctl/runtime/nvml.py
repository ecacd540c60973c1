"""Finds the GPUs of this machine with NVIDIA's management library (NVML). Errors become notes."""

import ctypes
import re
from collections.abc import Callable, Iterable
from typing import Any

from vctl.core.values import value

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_VENDOR_WORDS = re.compile(r"^(?:(?:NVIDIA|Tesla|GeForce|Quadro)\s+)*")


@value(frozen=True, slots=True)
class Gpu:
    """One device. `index` counts in PCI order, as CUDA does under CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    uuid: str
    name: str
    memory_bytes: int

    @property
    def accelerator_type(self) -> str:
        """The model as Ray labels it: `H100` for `NVIDIA H100 80GB HBM3`, `RTX-3090` for a GeForce one."""
        words = re.findall(r"[A-Za-z0-9]+", _VENDOR_WORDS.sub("", self.name)) or [self.name]
        return "-".join(words[:2]) if words[0] == "RTX" else str(words[0])


class NvmlError(Exception):
    """A call of the library failed."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Pci(ctypes.Structure):
    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Nvml:
    """The library, called through ctypes."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def devices(self) -> Iterable[tuple[tuple[int, int, int], str, str, int]]:
        """(PCI address, uuid, name, memory in bytes) of every device, in any order. Raises NvmlError."""
        self._call("nvmlInit_v2")
        try:
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
            return [self._device(index) for index in range(count.value)]
        finally:
            self._call("nvmlShutdown")

    def _device(self, index: int) -> tuple[tuple[int, int, int], str, str, int]:
        handle, memory, pci = ctypes.c_void_p(), _Memory(), _Pci()
        uuid, name = (ctypes.create_string_buffer(_TEXT_BYTES) for _ in range(2))
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_TEXT_BYTES))
        self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(_TEXT_BYTES))
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        return (pci.domain, pci.bus, pci.device), uuid.value.decode(), name.value.decode(), int(memory.total)

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            result = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise NvmlError(f"{function} is missing: the driver is too old") from None
        if result != 0:
            raise NvmlError(f"{function} failed with code {result}")


def load() -> Nvml | None:
    """Open the library; None if it is not installed."""
    try:
        return Nvml(ctypes.CDLL(_LIBRARY))
    except OSError:
        return None


def gpus(visible: str | None, open_nvml: Callable[[], Nvml | None] = load) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that this process may assign to jobs, and a note about a problem (empty if there is none).

    `visible` is the CUDA_VISIBLE_DEVICES of this process; None means all GPUs.
    """
    try:
        nvml = open_nvml()
        if nvml is None:
            return (), f"no GPUs: {_LIBRARY} is not installed"
        ordered = sorted(nvml.devices())
    except (NvmlError, UnicodeDecodeError) as error:
        return (), f"no GPUs: NVML does not work: {error}"
    devices = [Gpu(index, uuid, name, memory) for index, (_, uuid, name, memory) in enumerate(ordered)]
    if visible is None:
        return tuple(devices), ""
    return _visible(devices, visible)


def _visible(devices: list[Gpu], visible: str) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names by index or by a prefix of the UUID.

    As with CUDA, the first word that names no single device, or one named before, ends the list.
    """
    chosen: list[Gpu] = []
    for word in (part.strip() for part in visible.split(",")):
        matching = [
            gpu
            for gpu in devices
            if word == str(gpu.index) or (word[:4] == "GPU-" and gpu.uuid.startswith(word))
        ]
        if len(matching) != 1 or matching[0] in chosen:
            if word in ("", "-1", "NoDevFiles"):
                return tuple(chosen), ""
            return tuple(
                chosen
            ), f"CUDA_VISIBLE_DEVICES={visible}: {word!r} names no single whole device here"
        chosen += matching
    return tuple(chosen), ""
