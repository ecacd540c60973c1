"""The GPUs of this machine by NVIDIA's management library (NVML): which there are, and what uses them.

Errors become notes. It is one of two ``DeviceLibrary`` (``vctl/runtime/measured.py``); the other is a recording.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from vctl.core.values import value
from vctl.runtime.measured import Address, DeviceLibrary, DeviceProcess, Measured, NvmlError

RECORDING = "VCTL_DEVICES_FILE"
"""The variable that names a recording, which takes the place of NVML."""
_LIBRARY = "libnvidia-ml.so.1"
_NOT_SUPPORTED, _TOO_SMALL = 3, 7
_UNKNOWN = (1 << 64) - 1
_SPARE = 16
"""How many processes may begin between the two calls that count them and list them."""
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


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """The library, called through ctypes."""

    source = "nvml"

    def __init__(self, library: Any) -> None:
        self._library = library
        self._is_open = False

    def devices(self) -> Iterable[tuple[Address, str, str, int]]:
        """(PCI address, uuid, name, memory in bytes) of every device, in any order. Raises NvmlError."""
        self._call("nvmlInit_v2")
        try:
            return [self._device(handle) for handle in self._handles()]
        finally:
            self._call("nvmlShutdown")

    def measure(self) -> list[Measured]:
        """What is measured of every device now. Raises NvmlError.

        The library stays open from the first call on: to open it may take a second for each device.
        """
        if not self._is_open:
            self._call("nvmlInit_v2")
            self._is_open = True
        return [self._measure(handle) for handle in self._handles()]

    def _handles(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        handles = [ctypes.c_void_p() for _ in range(count.value)]
        for index, handle in enumerate(handles):
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handles

    def _identity(self, handle: ctypes.c_void_p) -> tuple[str, str, _Memory]:
        memory = _Memory()
        uuid, name = (ctypes.create_string_buffer(_TEXT_BYTES) for _ in range(2))
        self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_TEXT_BYTES))
        self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(_TEXT_BYTES))
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return uuid.value.decode(), name.value.decode(), memory

    def _device(self, handle: ctypes.c_void_p) -> tuple[Address, str, str, int]:
        pci = _Pci()
        uuid, name, memory = self._identity(handle)
        self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        return (pci.domain, pci.bus, pci.device), uuid, name, int(memory.total)

    def _measure(self, handle: ctypes.c_void_p) -> Measured:
        uuid, name, memory = self._identity(handle)
        rates, mode, pending = _Utilization(), ctypes.c_uint(), ctypes.c_uint()
        has_rates = self._supports("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
        self._supports("nvmlDeviceGetMigMode", handle, ctypes.byref(mode), ctypes.byref(pending))
        held: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for pid, used in self._running(handle, kind):
                held[pid] = max(used or 0, held.get(pid) or 0) or None
        processes = tuple(DeviceProcess(pid, used) for pid, used in sorted(held.items()))
        rate = int(rates.gpu) if has_rates else None
        return Measured(uuid, name, int(memory.total), int(memory.used), rate, processes, bool(mode.value))

    def _running(self, handle: ctypes.c_void_p, kind: str) -> list[tuple[int, int | None]]:
        """The processes of one kind on a device: (pid, bytes). None of a kind that the driver does not know."""
        function, count = f"nvmlDeviceGet{kind}RunningProcesses_v3", ctypes.c_uint(0)
        if not self._supports(function, handle, ctypes.byref(count), None, enough=_TOO_SMALL):
            return []
        while count.value:
            found = (_Process * (count.value + _SPARE))()
            count = ctypes.c_uint(len(found))
            if not self._supports(function, handle, ctypes.byref(count), found, enough=_TOO_SMALL):
                return []
            if count.value < len(found):  # else the list may be cut: once more, with room for more
                some = found[: count.value]
                return [(int(p.pid), None if p.memory == _UNKNOWN else int(p.memory)) for p in some]
        return []

    def _supports(self, function: str, *arguments: Any, enough: int = 0) -> bool:
        """Call a function that a driver or a device may lack; False if it does. Raises NvmlError for other faults."""
        try:
            self._call(function, *arguments)
        except NvmlError as error:
            if error.code in (None, _NOT_SUPPORTED):
                return False
            if not enough or error.code != enough:
                raise
        return True

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            result = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise NvmlError(f"{function} is missing: the driver is too old") from None
        if result != 0:
            raise NvmlError(f"{function} failed with code {result}", result)


def load() -> DeviceLibrary | None:
    """Open the library, or the recording in its place; None if it is not installed."""
    if path := os.environ.get(RECORDING):
        from vctl.runtime.recorded import Recording

        return Recording(path)
    try:
        return Nvml(ctypes.CDLL(_LIBRARY))
    except OSError:
        return None


def gpus(
    visible: str | None, open_nvml: Callable[[], DeviceLibrary | None] = load
) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that this process may assign to jobs, and a note about a problem (empty if there is none).

    `visible` is the CUDA_VISIBLE_DEVICES of this process; None means all GPUs.
    """
    try:
        library = open_nvml()
        if library is None:
            return (), f"no GPUs: {_LIBRARY} is not installed"
        ordered = sorted(library.devices())
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
