"""What a job's environment says of what it was granted."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.runtime.environment import job_environment

pytestmark = spec("2.environment", "8.environment")

CASES = {
    "no GPU hides them all": ({}, (), 10_000, {"CUDA_VISIBLE_DEVICES": ""}),
    "GPUs are named in order": ({}, ("3", "1"), 10_000, {"CUDA_VISIBLE_DEVICES": "3,1"}),
    "the submitter's devices are not the job's": (
        {"CUDA_VISIBLE_DEVICES": "7"},
        ("0",),
        0,
        {"CUDA_VISIBLE_DEVICES": "0"},
    ),
    "threads are whole CPUs": ({}, (), 35_000, {"OMP_NUM_THREADS": "3"}),
    "at least one thread": ({}, (), 5_000, {"OMP_NUM_THREADS": "1"}),
    "threads that are set stay": ({"OMP_NUM_THREADS": "9"}, (), 20_000, {"OMP_NUM_THREADS": "9"}),
    "vctl's variables win": ({"VCTL_JOB_ID": "1", "A": "b"}, (), 0, {"VCTL_JOB_ID": "2", "A": "b"}),
    "PCI order": ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, (), 0, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
}


@pytest.mark.parametrize(("own", "gpus", "cpus", "want"), CASES.values(), ids=CASES)
def test_environment(own, gpus, cpus, want):
    before = dict(own)
    made = own | job_environment(own, {"VCTL_JOB_ID": "2"}, gpus=gpus, cpus=cpus)
    assert {name: made[name] for name in want} == want
    assert own == before
