"""Record files: whatever a kill or a full disk leaves of one, no run starts twice and no end is made up."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

from tests.runtime.conftest import Ground, eventually
from tests.specification import spec
from vctl.runtime import lines, processes, supervisors
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import RunState
from vctl.runtime.records import RecordFile

pytestmark = spec("16.local")


def quiet(ground, path):
    """The scheduler goes, and with it whoever has the file."""
    ground.runtime.close()
    eventually(lambda: RecordFile(str(path), int(path.name)).holder() is None)


def test_a_kill_at_every_byte_of_a_record(ground):
    """A run whose T is whole is never started again; one without is started once; only a whole E is an end."""
    tally = ground.home / "tally"
    words = ("/bin/sh", "-c", f"echo x >> {tally}; exit 3")
    ground.launch("a", *words)
    assert ground.ended("a").exit_code == 3
    path = ground.record("a")
    quiet(ground, path)
    whole = path.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    assert [one[:1] for one in whole.splitlines()] == [b"H", b"T", b"S", b"E"]
    header, taken, _, ended = (at + 1 for at in ends)
    before, other = 1, LocalRuntime(ground.home)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        other = LocalRuntime(ground.home)
        starts = header <= size < taken
        if starts and size not in (header, header + 1, (header + taken) // 2, taken - 1):
            continue  # the same for all of them, and each takes a process
        other.launch(ground.request("a", *words))
        wanted = RunState.EXITED if starts or size == ended else RunState.LOST
        eventually(lambda other=other, wanted=wanted: other.observe("a").state is wanted, f"{size}")
        before += starts
        assert tally.read_text().count("x") == before, size
        other.close()
        if starts:
            quiet(ground, path)
            assert RecordFile(str(path), int(path.name)).read() == {"a"}, "the torn line hides no other"
    assert before == 5


def test_supervisors_that_are_killed_at_any_moment(ground):
    """Each run starts at most once, and is over or lost; one that was not taken is taken by another process."""
    tally, chance = ground.home / "tally", random.Random(5)
    names = [f"r{n}" for n in range(60)]
    for n, name in enumerate(names):
        ground.launch(name, "/bin/sh", "-c", f"echo {name} >> {tally}; sleep 0.0{n % 7}")
        time.sleep(chance.uniform(0, 0.02))
        for one in processes.all_processes():
            if processes.name(one.pid) == b"vctl-supervisor" and chance.random() < 0.3:
                if processes.command(one.pid)[-1:] == [os.fsencode(ground.home)]:
                    os.kill(one.pid, signal.SIGKILL)
    over = (RunState.EXITED, RunState.LOST)
    eventually(
        lambda: (
            (ground.runtime.changes() and False)
            or all(ground.runtime.observe(name).state in over for name in names)
        )
    )
    ran = Counter(tally.read_text().split())
    assert set(ran.values()) <= {1}
    for name in names:
        seen = ground.runtime.observe(name)
        killed = seen.exit is not None and seen.exit.signal == signal.SIGKILL  # between fork and exec
        assert ran[name] == 1 or killed or seen.state is RunState.LOST, (name, seen)
        ground.runtime.clear_lost(name)


def test_a_run_that_was_forgotten_stays_forgotten_when_the_rest_of_its_record_is_read(tmp_path):
    """Its start was read in the file, its end came on the line: the file holds it as well (spec 16)."""
    path = tmp_path / "7"
    taken = lines.line(lines.TAKEN, b"a", b"5 50 boot")
    rest = lines.line(lines.STARTED, b"a", b"6 60 1") + lines.line(lines.ENDED, b"a", b"0 0 0 0 1 0 0 0 ")
    path.write_bytes(lines.line(lines.HEADER, b"7", b"boot") + taken)
    file = RecordFile(str(path), 7)
    file.read()
    path.write_bytes(path.read_bytes() + rest)
    file.feed(taken + rest, on_line=True)
    assert file.runs["a"].exit is not None
    file.forget("a")
    file.read()
    assert not file.runs


def test_a_file_is_removed_when_nobody_needs_it(ground, monkeypatch):
    """Each number has so many runs, then another one; a file stays until all its ends are in the tables."""
    monkeypatch.setattr(supervisors, "MAX_RUNS", 3)
    names = [f"r{n}" for n in range(7)]
    for name in names:
        ground.launch(name, "true")
        ground.ended(name)
    files = [ground.record(name) for name in names]
    assert len(set(files)) == 3
    live: dict[str, int | None] = {name: ground.number(name) for name in names}
    eventually(lambda: RecordFile(str(files[0]), ground.number("r0")).holder() is None)
    ground.runtime.settle(live)
    assert all(path.exists() for path in files)
    for name in names[:3]:
        ground.runtime.forget(name)
        del live[name]
    ground.runtime.settle(live)
    assert not files[0].exists()
    assert all(path.exists() for path in files[3:])


def test_a_number_that_was_handed_out_for_nothing_is_used(ground):
    """As after a commit that failed."""
    first, second = ground.runtime.assign(), ground.runtime.assign()
    assert first != second
    ground.runtime.settle({"elsewhere": first})
    assert ground.runtime.assign() == second


def test_a_number_that_a_run_has_is_not_given_to_another(ground):
    """A commit failed that is there all the same: it gave a run the number of one that is over (spec 16)."""
    ground.launch("a", "true")
    ground.ended("a")
    eventually(lambda: ground.runtime.changes() or ground.runtime._supervisors.idle)
    ground.runtime.settle({"b": ground.number("a")})
    assert ground.runtime.assign() != ground.number("a")
    ground.runtime.settle({})
    assert ground.number("a") in {ground.runtime.assign(), ground.runtime.assign()}


def test_a_run_is_not_started_where_its_records_are_gone(ground):
    ground.number("a")
    ground.record("a").unlink()
    other = LocalRuntime(ground.home)
    other.launch(ground.request("a", "true"))
    assert other.observe("a").state is RunState.LOST
    other.close()


def test_a_run_whose_file_is_removed_after_it_was_assigned_is_lost_and_does_not_wait_forever(ground):
    """Another scheduler has taken over and removed what it did not know."""
    ground.number("a")
    ground.record("a").unlink()
    ground.launch("a", "true")

    def is_lost() -> bool:
        ground.runtime.changes()
        return ground.runtime.observe("a").state is RunState.LOST

    eventually(is_lost)
    assert ground.runtime.clear_lost("a") == ()
    ground.runtime.forget("a")


def test_a_run_of_another_boot_is_not_started(ground):
    """A power cut may have swallowed that it was taken."""
    number = ground.number("a")
    ground.record("a").write_bytes(lines.line(b"H", b"%d" % number, b"another"))
    other = LocalRuntime(ground.home)
    other.launch(ground.request("a", "true"))
    assert other.observe("a").state is RunState.LOST
    other.close()


def test_a_short_write_is_seen_and_the_next_line_is_whole(tmp_path):
    path = tmp_path / "7"
    path.write_bytes(lines.line(b"H", b"7", b"here") + b"T r1 1 1 he")
    writer = lines.Writer(os.fsencode(path))
    assert not writer.runs
    assert writer.take(b"r1", lines.line(b"T", b"r1", b"1 1 here"))
    assert not writer.take(b"r1", lines.line(b"T", b"r1", b"1 1 here"))
    held = RecordFile(str(path), 7)
    assert held.read() == {"r1"}
    assert held.boot == "here"
    assert "no record" in held.problem
    assert path.stat().st_blocks * 512 >= 4096 * 8  # space for the end of what was taken
    writer.close()


def test_records_of_a_build_before_the_first_release_are_left_alone(tmp_path):
    """Its runs are unknown here, and nothing of them is read, moved or removed."""
    kept = {"runs/a/lock": "1 2\n", "exits/a.start": "pid=1\n", "exits/a.exit": "exit_code=0\n"}
    for name, text in kept.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    runtime = LocalRuntime(tmp_path)
    runtime.prepare()
    assert runtime.known_runs() == []
    assert runtime.observe("a").state is RunState.NEVER_STARTED
    runtime.forget("a")
    runtime.settle({})
    runtime.drop_ended()
    runtime.close()
    assert {name: (tmp_path / name).read_text() for name in kept} == kept


def test_a_request_to_stop_that_nobody_will_read_is_removed(ground):
    """A scheduler that was suspended may ask for the end of what is over and forgotten (spec 16)."""
    ground.launch("unknown", "sleep", "60")
    ground.running("unknown")
    eventually(lambda: (ground.runtime.changes(), ground.runtime.due_s() > 1)[1], "heard that it was taken")
    records = ground.runtime._records
    for run_id in ("unknown", "assigned", "gone"):
        records.request_stop(run_id, 60.0, 15)
    ground.runtime.settle({"assigned": ground.number("assigned")})
    assert sorted(records.stop_requests()) == ["assigned", "unknown"]
    ground.runtime.stop("gone", grace_s=0)
    ground.runtime.changes()
    assert ground.runtime.due_s() < 1
    ground.runtime.settle({"assigned": ground.number("assigned")})
    assert ground.runtime.due_s() > 1, "nothing is left that it has to see to soon"
    ground.runtime.stop("unknown", grace_s=0)


def test_a_run_that_no_supervisor_takes_is_given_up_and_says_where_to_look(ground, monkeypatch):
    """Whoever waits for it would see a running job for ever, and no reason (spec 8)."""
    monkeypatch.setattr(supervisors, "MAX_TRIES", 3)
    monkeypatch.setattr(supervisors, "_FIRST_PAUSE_S", 0.001)
    number = ground.number("a")
    assert ground.runtime._supervisors.give(number, "a", b"no request")
    eventually(lambda: "a" in ground.runtime.changes())
    eventually(lambda: (ground.runtime.changes(), ground.runtime.observe("a").state is RunState.LOST)[1])
    assert ground.runtime.observe("a").problem == "3 supervisors ended before they took it: see launcher.log"
    assert ground.runtime.clear_lost("a") == ()
    ground.runtime.forget("a")
    assert ground.runtime.observe("a").state is RunState.NEVER_STARTED
    log = ground.home / "launcher.log"
    assert "a request was refused, and starts nothing: it is no JSON\n" in log.read_text()
    log.write_text("")


def test_a_file_to_which_lines_are_appended_may_lie_where_no_space_can_be_kept(mount):
    """ext2, ramfs: glibc would imitate it by writing, and refuses that with EBADF (spec 16)."""
    there = Ground(mount("-t", "ramfs", "-o", "mode=700", "ramfs"))
    there.launch("a", "echo", "here")
    assert there.ended("a").exit_code == 0
    assert there.log("a") == b"here\n"
    there.end()
