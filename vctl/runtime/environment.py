"""The variables that vctl adds to the environment of a process. Pure: values in, variables out."""

from collections.abc import Iterable, Mapping

from vctl.core.resources import SCALE


def job_environment(
    own: Mapping[str, str], vctl: Mapping[str, str], *, gpus: Iterable[str], cpus: int
) -> dict[str, str]:
    """The job's own environment with what vctl grants put over it.

    `gpus` are device ids as CUDA reads them (indices in PCI order, or UUIDs); none hides every device. `cpus`
    is an amount in 1/10000; it sets OMP_NUM_THREADS, whole CPUs and at least 1, unless the job's own
    environment does.
    """
    granted = {
        "OMP_NUM_THREADS": own.get("OMP_NUM_THREADS") or str(max(1, cpus // SCALE)),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return {**own, **granted, **vctl}
