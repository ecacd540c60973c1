"""What is measured of devices, and what a library that measures them offers: NVML, or a recording of its figures."""

from collections.abc import Iterable
from typing import Protocol

from vctl.core.values import value


@value(frozen=True, slots=True)
class DeviceProcess:
    """A process that has opened a device; ``memory``: its bytes there, None where the driver does not say.

    ``user``, ``command`` and ``age_s`` are those of a recording; of a real process /proc has them.
    """

    pid: int
    memory: int | None
    user: str = ""
    command: str = ""
    age_s: float | None = None


@value(frozen=True, slots=True)
class Measured:
    """What is measured of a device now. ``utilization``: per cent of the last moment, None where there is none."""

    uuid: str
    name: str
    memory_total: int
    memory_used: int
    utilization: int | None
    processes: tuple[DeviceProcess, ...]
    divided: bool = False
    """Whether it is divided into MIG instances."""


Address = tuple[int, int, int]


class DeviceLibrary(Protocol):
    """What is asked of NVML, or of a recording. Both methods raise NvmlError."""

    source: str
    """``nvml`` or ``recorded``: the origin of the figures, which is always shown with them."""

    def devices(self) -> Iterable[tuple[Address, str, str, int]]:
        """(PCI address, uuid, name, memory in bytes) of every device, in any order."""

    def measure(self) -> list[Measured]:
        """What is measured of every device now, in any order."""


class NvmlError(Exception):
    """A call of the library failed. ``code``: its result, if it is there."""

    def __init__(self, problem: str, code: int | None = None) -> None:
        super().__init__(problem)
        self.code = code
