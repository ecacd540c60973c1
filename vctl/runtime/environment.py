"""The environment of a process: the variables of its command, and those that vctl sets over them. Pure."""

import marshal
import os
from collections.abc import Iterable, Mapping
from functools import cached_property

from vctl.core.resources import SCALE


class SharedVariables:
    """Variables that all runs of a command share. There may be many of both, so they are packed only once."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    @cached_property
    def packed(self) -> bytes:
        """The variables as bytes for a supervisor, which may have another locale, and so another encoding."""
        encoded = {os.fsencode(name): os.fsencode(text) for name, text in self.variables.items()}
        return marshal.dumps(encoded)


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
