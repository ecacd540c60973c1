"""The environment of a process: the variables of its command, and those that vctl sets over them. Pure."""

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property

from vctl.core.compact import dumps
from vctl.core.resources import SCALE

_ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_WIRE = "utf-8", "surrogateescape"


def portable(text: str) -> str:
    """A text of the operating system as it is in UTF-8: a supervisor may have another locale, and so another encoding.

    Raises UnicodeEncodeError for a text that no locale has.
    """
    return text if text.isascii() else text.encode(*_ENCODING).decode(*_WIRE)


class SharedVariables:
    """Variables that all runs of a command share. There may be many of both, so they are packed only once."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    @cached_property
    def packed(self) -> bytes:
        """The variables as JSON for a supervisor."""
        return dumps({portable(name): portable(text) for name, text in self.variables.items()}).encode()


NOTHING_SHARED = SharedVariables({})


def job_environment(
    brought: Mapping[str, str], vctl: Mapping[str, str], *, gpus: Iterable[str], cpus: int
) -> dict[str, str]:
    """The variables that vctl sets over the environment of the job's command.

    `gpus` are device ids as CUDA reads them (indices in PCI order, or UUIDs); none hides every device. `cpus`
    is an amount in 1/10000; it sets OMP_NUM_THREADS, whole CPUs and at least 1, unless the command's
    environment does.
    """
    return {
        "OMP_NUM_THREADS": brought.get("OMP_NUM_THREADS") or str(max(1, cpus // SCALE)),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **vctl,
    }
