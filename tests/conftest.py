"""What holds for every test: nothing of the caller's own vctl is seen, a check run repeats itself, nothing stays."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import fast, order, ray_guard
from tests.warm import Nursery
from vctl.ops import background
from vctl.runtime import processes
from vctl.store.locks import SCHEDULER_LOCK, holder

for signo, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if (
        signal.getsignal(signo) is signal.SIG_IGN
    ):  # by a shell that started us behind `&`: commands inherit it
        signal.signal(signo, usual)

hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


LEAVE_S = 20.0

# Else each of the thousand commands of a run would compile vctl anew, and each worker all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m fast`` does not import the other tests: that took as long as a third of the fast ones."""
    return True if config.option.markexpr == "fast" and fast.is_outside(collection_path) else None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For ``-n auto``."""
    return order.workers(config)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the fast tests. A long set runs only where ``-m`` names it: another ``-m`` replaces the usual one."""
    fast.mark(items)
    unnamed = [name for name in ("soak", "ray_set") if name not in config.option.markexpr]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unnamed)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=order.turn)


@pytest.fixture(autouse=True)
def nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An empty home, and no variable of a job or a user that would send a test into their state."""
    for name in os.environ:
        if name.startswith(("VCTL_", "VIRTUAL_CLUSTER_")):
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    for name, place in (("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config")):
        monkeypatch.setenv(name, str(Path(home, place)))
    monkeypatch.setenv("VCTL_IDLE_EXIT", "10")


@pytest.fixture(autouse=True)
def forbidden_calls(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """A fast test that starts a process or sleeps fails (tests/fast.py)."""
    if request.node.get_closest_marker("fast") is None:
        yield []
        return
    with fast.enforced() as seen:
        yield seen


@pytest.fixture(autouse=True)
def no_scheduler_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """A scheduler that a command has started in the background ends with the test."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        end_schedulers(folder)


def end_schedulers(folder: Path) -> None:
    """End those of all state directories in a folder, but not ourselves: a test that failed may hold such a lock."""
    for depth in range(1, 4):
        for lock in folder.glob("*/" * depth + SCHEDULER_LOCK):
            held = holder(lock.parent)
            if held is None or held.pid != os.getpid():
                background.stop(lock.parent)


@pytest.fixture(scope="session", autouse=True)
def nothing_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """After the last test no process works on a state directory of these tests; each has a while to end by itself."""
    yield
    folder = os.fsencode(tmp_path_factory.getbasetemp())
    end_schedulers(tmp_path_factory.getbasetemp())
    give_up = time.monotonic() + LEAVE_S
    while (left := at_work_in(folder)) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not left


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts servers without their imports."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def alone_with_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests with real Ray in one process at a time; what they start ends with that process, however it ends."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with open(folder / "ray.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ray_guard.begin()
        yield


def at_work_in(folder: bytes) -> dict[int, bytes]:
    """Pid and words of each process of vctl that names something in a folder."""
    commands = {one.pid: b" ".join(processes.command(one.pid)) for one in processes.all_processes()}
    return {
        pid: words
        for pid, words in commands.items()
        if b"vctl" in words and folder in words and pid != os.getpid()
    }


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a filesystem in a directory of its own, for one test: ``mount("-t", "tmpfs", "tmpfs")``."""
    disks: list[Path] = []

    def mounted(*words: str) -> Path:
        disk = tmp_path / "disk"
        disk.mkdir()
        if subprocess.run(["mount", *words, str(disk)], check=False, capture_output=True).returncode:
            pytest.skip("only who may mount can have a disk of his own")
        disks.append(disk)
        return disk

    yield mounted
    for disk in disks:
        subprocess.run(["umount", "-l", str(disk)], check=True)
