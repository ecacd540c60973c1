"""Recorded devices: a JSON file with the figures of NVML, for tests, demonstrations and machines without GPUs.

The variable ``VCTL_DEVICES_FILE`` names it. Everything that shows its figures says that they are recorded. The file
is read at each look, so what a test writes into it is what is measured next.

``{"devices": [{"uuid": "GPU-0", "name": "NVIDIA H100 80GB HBM3", "memory_total": 85899345920, "utilization": 78,
"processes": [{"pid": 4242, "memory": 641728512}]}]}``

A process is one of this machine, and is no longer there when that has ended; with a ``user`` it is played, and needs
no process.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vctl.runtime import processes
from vctl.runtime.measured import Address, DeviceProcess, Measured, NvmlError


class Recording:
    """The devices in a file."""

    source = "recorded"

    def __init__(self, path: str) -> None:
        self.path = path

    def devices(self) -> Iterable[tuple[Address, str, str, int]]:
        """(PCI address, uuid, name, memory in bytes) of every device: the place in the file is the address."""
        found = self.measure()
        return [((0, at, 0), one.uuid, one.name, one.memory_total) for at, one in enumerate(found)]

    def measure(self) -> list[Measured]:
        """The figures of every device, as the file has them now. Raises NvmlError, which names the field."""
        try:
            document = json.loads(Path(self.path).read_text())
        except OSError as error:
            raise NvmlError(f"{self.path}: {error.strerror}") from None
        except ValueError as error:
            raise NvmlError(f"{self.path}: not JSON: {error}") from None
        entries = document.get("devices") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise NvmlError(
                f'{self.path}: devices: it is no list; write {{"devices": [{{"uuid": "GPU-0"}}]}}'
            )
        return [self._device(f"devices[{at}]", entry) for at, entry in enumerate(entries)]

    def _device(self, where: str, entry: object) -> Measured:
        fields = self._object(where, entry)
        given = fields.get("processes", [])
        if not isinstance(given, list):
            raise NvmlError(f"{self.path}: {where}.processes: it is no list")
        held = [self._process(f"{where}.processes[{at}]", one) for at, one in enumerate(given)]
        present = tuple(one for one in held if one.user or processes.start_time(one.pid) is not None)
        used = sum(one.memory or 0 for one in present)
        return Measured(
            self._text(where, fields, "uuid"),
            self._text(where, fields, "name", "simulated GPU"),
            self._number(where, fields, "memory_total", 0) or 0,
            self._number(where, fields, "memory_used", used) or 0,
            self._number(where, fields, "utilization", None),
            present,
            bool(fields.get("divided")),
        )

    def _process(self, where: str, entry: object) -> DeviceProcess:
        fields = self._object(where, entry)
        pid = self._number(where, fields, "pid", None)
        if pid is None:
            raise NvmlError(f"{self.path}: {where}.pid: it is missing")
        memory, age_s = (self._number(where, fields, name, None) for name in ("memory", "age_s"))
        user, command = (self._text(where, fields, name, "") for name in ("user", "command"))
        return DeviceProcess(pid, memory, user, command, age_s)

    def _object(self, where: str, entry: object) -> Mapping[str, Any]:
        if not isinstance(entry, dict):
            raise NvmlError(f"{self.path}: {where}: it is no object")
        return entry

    def _text(self, where: str, fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
        text = fields.get(name, default)
        if not isinstance(text, str):
            raise NvmlError(f"{self.path}: {where}.{name}: it is no text")
        return text

    def _number(self, where: str, fields: Mapping[str, Any], name: str, default: int | None) -> int | None:
        number = fields.get(name, default)
        if number is not None and (type(number) is not int or number < 0):
            raise NvmlError(f"{self.path}: {where}.{name}: it is no number of 0 or more")
        return number
