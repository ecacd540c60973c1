"""What is measured of devices, by NVML (played) and from a recording, and to which run a process on one belongs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.runtime.test_detect import DEVICES, GIB, FakeLibrary
from tests.specification import spec
from vctl.runtime import devices, nvml, processes
from vctl.runtime.cgroup_trees import name_of
from vctl.runtime.measured import DeviceProcess, NvmlError
from vctl.runtime.recorded import Recording

pytestmark = spec("19.devices")

UNKNOWN = (1 << 64) - 1
RUNNING = {  # by device in NVML's order: kind -> (pid, bytes)
    1: {"Compute": [(11, 4 * GIB), (12, UNKNOWN)], "Graphics": [(11, GIB), (900, 1 << 20)]},
    2: {"Compute": [(20 + number, GIB) for number in range(40)]},
}


class Driver(FakeLibrary):
    """A driver with processes on its devices; ``lacks``: a function that it does not have."""

    # ruff: noqa: N802 - the functions have the library's names

    def __init__(self, *, lacks: str = "", fails: str = "", code: int = 999) -> None:
        super().__init__(fails=fails or lacks, code=-1 if lacks else code)

    def _nvmlDeviceGetMemoryInfo(self, handle, memory) -> int:
        memory._obj.used = 5 * GIB
        return super()._nvmlDeviceGetMemoryInfo(handle, memory)

    def _nvmlDeviceGetUtilizationRates(self, handle, rates) -> int:
        rates._obj.gpu = 10 * handle.value
        return 3 if handle.value == 3 else 0  # a device in MIG mode has none

    def _nvmlDeviceGetMigMode(self, handle, mode, pending) -> int:
        mode._obj.value = handle.value == 3
        return 0

    def _running(self, kind, handle, count, found) -> int:
        some = RUNNING.get(handle.value, {}).get(kind, [])
        is_enough = found is not None and count._obj.value >= len(some)
        count._obj.value = len(some)
        if not is_enough:
            return 7 if some else 0
        for at, (pid, memory) in enumerate(some):
            found[at].pid, found[at].memory = pid, memory
        return 0

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, *given) -> int:
        return self._running("Compute", *given)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, *given) -> int:
        return self._running("Graphics", *given)

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(self, *given) -> int:
        return 3


def test_what_nvml_measures():
    library = Driver()
    one, two, three = nvml.Nvml(library).measure()
    assert (one.uuid, one.memory_used, one.memory_total, one.utilization) == (
        DEVICES[0][1],
        5 * GIB,
        80 * GIB,
        10,
    )
    assert one.processes == (
        DeviceProcess(11, 4 * GIB), DeviceProcess(12, None), DeviceProcess(900, 1 << 20),
    )  # fmt: skip
    assert len(two.processes) == 40
    assert (three.utilization, three.divided, three.processes) == (None, True, ())
    assert library.open == 1  # it stays open: to open it takes long


def test_processes_that_come_while_they_are_listed_are_listed_too(monkeypatch):
    """NVML is asked for the number first; by the next call there may be many more."""
    library, asked = Driver(), []
    crowd = [(pid, GIB) for pid in range(100, 300)]

    def running(kind, handle, count, found) -> int:
        asked.append(kind)
        present = crowd[: 2 if len(asked) == 1 else 200] if kind == "Compute" else []
        is_enough = found is not None and count._obj.value >= len(present)
        count._obj.value = len(present)
        if not is_enough:
            return 7 if present else 0
        for at, (pid, memory) in enumerate(present):
            found[at].pid, found[at].memory = pid, memory
        return 0

    monkeypatch.setattr(library, "_running", running)
    one, *_ = nvml.Nvml(library).measure()
    assert len(one.processes) == 200


def test_a_driver_without_lists_of_processes_still_gives_the_memory():
    one, *_ = nvml.Nvml(Driver(lacks="nvmlDeviceGetComputeRunningProcesses_v3")).measure()
    assert [process.pid for process in one.processes] == [11, 900]
    assert one.memory_used == 5 * GIB


def test_a_fault_of_the_driver_is_an_error_that_names_the_call():
    with pytest.raises(NvmlError, match="nvmlDeviceGetUtilizationRates failed with code 15"):
        nvml.Nvml(Driver(fails="nvmlDeviceGetUtilizationRates", code=15)).measure()


# ---- recordings ----


def recording(tmp_path: Path, document: object) -> Recording:
    file = tmp_path / "devices.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return Recording(str(file))


def test_a_recording_takes_the_place_of_nvml(tmp_path, monkeypatch):
    found = recording(
        tmp_path, {"devices": [{"uuid": "GPU-0", "name": "NVIDIA H100 80GB HBM3", "memory_total": 80}]}
    )
    monkeypatch.setenv(nvml.RECORDING, found.path)
    (gpu,), note = nvml.gpus(None)
    assert (gpu.index, gpu.uuid, gpu.accelerator_type, gpu.memory_bytes, note) == (0, "GPU-0", "H100", 80, "")
    library = nvml.load()
    assert library is not None
    assert library.source == "recorded"


def test_a_recorded_process_is_there_as_long_as_it_lives(tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    played = {"pid": 4242, "user": "ana", "command": "python train.py", "memory": 5}
    found = recording(
        tmp_path, {"devices": [{"uuid": "GPU-0", "processes": [{"pid": child.pid, "memory": 7}, played]}]}
    )
    (before,) = found.measure()
    child.kill()
    child.wait()
    (after,) = found.measure()
    assert [process.pid for process in before.processes] == [child.pid, 4242]
    assert ([process.pid for process in after.processes], before.memory_used, after.memory_used) == (
        [4242],
        12,
        5,
    )


WRONG = {
    "no file": (None, "No such file"),
    "not JSON": ("{", "not JSON"),
    "no list": ({"gpus": []}, "devices: it is no list"),
    "a device that is none": ({"devices": [3]}, r"devices\[0\]: it is no object"),
    "no uuid": ({"devices": [{}]}, r"devices\[0\].uuid: it is no text"),
    "a size in words": (
        {"devices": [{"uuid": "x", "memory_total": "80GiB"}]},
        r"memory_total: it is no number",
    ),
    "a negative number": ({"devices": [{"uuid": "x", "utilization": -1}]}, r"utilization: it is no number"),
    "a process without pid": (
        {"devices": [{"uuid": "x", "processes": [{}]}]},
        r"processes\[0\].pid: it is missing",
    ),
}


@pytest.mark.parametrize(("document", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_recording_is_refused_with_the_field(tmp_path, document, words):
    found = Recording(str(tmp_path / "none")) if document is None else recording(tmp_path, document)
    with pytest.raises(NvmlError, match=words):
        found.measure()


# ---- to which run a process belongs ----

PROGRAM = textwrap.dedent(
    """
    import os, sys, time
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
            print(os.getpid(), flush=True)
            time.sleep(60)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(60)
    """
)


def test_a_process_belongs_to_the_run_of_an_ancestor_or_of_its_mark():
    marks = {processes.RUN_MARK: "j1-a1", processes.HOME_MARK: "/home/x"}
    main = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env={**os.environ, **marks}
    )
    assert main.stdout is not None
    escaped = None
    try:
        escaped = int(main.stdout.readline())
        started = processes.start_time(main.pid)
        boot = processes.boot_id()
        mains = devices.mains([("j1-a1", main.pid, started, boot)], boot)
        on = DeviceProcess(escaped, 5)
        by_mark = devices.Attribution(mains, {"j1-a1"}, "/home/x").see(on)
        assert (by_mark.run_id, by_mark.is_over, by_mark.uid) == ("j1-a1", False, os.getuid())
        over = devices.Attribution({}, (), "/home/x").see(on)
        assert (over.run_id, over.is_over) == ("j1-a1", True)
        elsewhere = devices.Attribution({}, (), "/home/y").see(on)
        between_users = devices.Attribution({}, (), "/home/x", by_mark=False).see(on)
        assert elsewhere.run_id is between_users.run_id is None
        assert devices.Attribution(mains, {"j1-a1"}, "/").see(DeviceProcess(main.pid, 5)).run_id == "j1-a1"
        recycled = devices.mains(
            [("j1-a1", main.pid, started - 1, boot), ("j2-a1", 7, 7, "other boot")], boot
        )
        assert devices.Attribution(recycled, {"j1-a1"}, "/").see(DeviceProcess(main.pid, 5)).run_id is None
        assert 7 not in recycled
    finally:
        if escaped is not None:
            os.kill(escaped, 9)
        main.kill()
        main.communicate()


def test_a_process_that_is_gone_has_no_owner():
    child = subprocess.Popen(["true"])
    child.wait()
    seen = devices.Attribution({}, (), "/").see(DeviceProcess(child.pid, 5))
    assert (seen.uid, seen.started, seen.run_id) == (None, None, None)


TREE = Path("/sys/fs/cgroup/pids")


@pytest.mark.skipif(
    not os.access(TREE / "cgroup.procs", os.W_OK), reason="needs a writable cgroup of version 1"
)
def test_a_process_that_has_left_everything_behind_belongs_to_the_run_of_its_group(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    base = TREE / name_of(os.fsencode(tmp_path)).decode()
    group = base / "c.lab" / "r.1.1.0.abc"
    group.mkdir(parents=True)
    child = subprocess.Popen(["setsid", "env", "-i", "/bin/sleep", "60"])
    try:
        (group / "cgroup.procs").write_text(str(child.pid))
        on = DeviceProcess(child.pid, 5)
        seen = devices.Attribution({}, {"1.1.0.abc"}, str(tmp_path), by_mark=False).see(on)
        assert (seen.run_id, seen.is_over) == ("1.1.0.abc", False)
        assert devices.Attribution({}, (), str(tmp_path)).see(on).is_over
        assert devices.Attribution({}, (), str(other)).see(on).run_id is None
    finally:
        child.kill()
        child.wait()
        for folder in (group, group.parent, base):
            folder.rmdir()
