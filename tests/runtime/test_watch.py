"""Waking on changes of files."""

from __future__ import annotations

import ctypes
import errno
import select
import time
from pathlib import Path

import pytest

from tests.runtime.conftest import PATIENCE_S
from tests.specification import spec
from vctl.runtime import watch
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import RunState
from vctl.runtime.watch import FileChange, Watch

pytestmark = spec("16.local")


def wake(seen: Watch) -> list[FileChange]:
    ready, _, _ = select.select([seen], [], [], PATIENCE_S)
    assert ready, "nothing happened"
    return seen.read()


def test_a_renamed_in_file_wakes_once_with_its_name(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "staged ü").write_text("x")
    with Watch() as seen:
        seen.add(tmp_path / "in", watch.MOVED_TO)
        assert seen.read() == []
        (tmp_path / "staged ü").rename(tmp_path / "in" / "done ü")
        assert wake(seen) == [FileChange(tmp_path / "in", "done ü", watch.MOVED_TO)]
        assert seen.read() == []


def test_a_file_that_is_written_wakes(tmp_path):
    (tmp_path / "wal").write_text("")
    with Watch() as seen:
        seen.add(tmp_path / "wal", watch.MODIFY)
        (tmp_path / "wal").write_text("x")
        assert wake(seen)[0] == FileChange(tmp_path / "wal", "", watch.MODIFY)


def test_a_path_may_come_and_go_and_come_back(tmp_path):
    path = tmp_path / "log"
    with Watch() as seen:
        with pytest.raises(FileNotFoundError, match="log"):
            seen.add(path, watch.MODIFY)
        for text in ("first", "second"):
            path.write_text("")
            seen.add(path, watch.MODIFY | watch.DELETE_SELF)
            path.write_text(text)
            path.unlink()
            changes = wake(seen)
            assert [change.path for change in changes] == [path] * len(changes)
            assert changes[-1].mask & watch.IGNORED
        seen.remove(path)


def test_what_is_removed_wakes_no_more(tmp_path):
    with Watch() as seen:
        seen.add(tmp_path, watch.CREATE)
        seen.remove(tmp_path)
        (tmp_path / "x").write_text("")
        assert seen.read() == []


def test_dropped_changes_are_reported(tmp_path):
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    names = (tmp_path / "a", tmp_path / "b")
    names[0].write_text("")
    with Watch() as seen:
        seen.add(tmp_path, watch.MOVED_TO)
        for n in range(limit + 10):
            names[n % 2].rename(names[1 - n % 2])
        changes = seen.read()
    assert FileChange(None, "", watch.OVERFLOW) in changes


@pytest.mark.parametrize("how", ["its own", "of the scheduler before"])
def test_a_run_wakes_its_scheduler_at_start_and_at_end(ground, how):
    """Spec 8: nobody waits for a turn of the clock."""
    mark = ground.home / "mark"
    ground.launch("a", "sh", "-c", f"while [ ! -e {mark} ]; do sleep 0.01; done")
    runtime = ground.runtime
    if how == "its own":
        assert select.select([runtime], [], [], PATIENCE_S)[0]
        assert runtime.changes() == {"a"}
    else:
        ground.running("a")
        runtime.close()
        runtime = LocalRuntime(ground.home)
        runtime.prepare()
        assert runtime.observe("a").state is RunState.RUNNING
    assert runtime.changes() == set()
    mark.touch()
    assert select.select([runtime], [], [], PATIENCE_S)[0]
    assert runtime.changes() == {"a"}
    assert runtime.observe("a").state is RunState.EXITED
    runtime.close()


@pytest.fixture
def no_instance_left(monkeypatch):
    """As far as this process can tell, the user has as many as allowed."""

    def refused(flags):
        ctypes.set_errno(errno.EMFILE)
        return -1

    monkeypatch.setattr(watch._libc, "inotify_init1", refused)


@pytest.mark.usefixtures("no_instance_left")
def test_without_an_instance_it_says_again_and_again_to_look(tmp_path):
    with Watch() as seen:
        with pytest.raises(FileNotFoundError, match="log"):
            seen.add(tmp_path / "log", watch.MODIFY)
        seen.add(tmp_path, watch.CREATE)
        for _ in range(2):
            assert wake(seen) == [FileChange(None, "", watch.OVERFLOW)]
        seen.remove(tmp_path)


@pytest.mark.usefixtures("no_instance_left")
def test_a_run_of_the_scheduler_before_is_heard_of_without_an_instance(ground):
    mark = ground.home / "mark"
    ground.launch("a", "sh", "-c", f"while [ ! -e {mark} ]; do sleep 0.01; done")
    ground.running("a")
    ground.runtime.close()
    runtime = LocalRuntime(ground.home)
    runtime.prepare()
    assert runtime.observe("a").state is RunState.RUNNING
    mark.touch()
    give_up = time.monotonic() + PATIENCE_S
    while not runtime.changes():
        assert select.select([runtime], [], [], PATIENCE_S)[0]
        assert time.monotonic() < give_up
    assert runtime.observe("a").state is RunState.EXITED
    runtime.close()


def test_closing_twice_is_fine():
    seen = Watch()
    seen.close()
    seen.close()
