"""How a run starts and how it ends: codes, output, environment, what is inherited and what is not."""

from __future__ import annotations

import errno
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from tests.runtime.conftest import eventually, is_gone
from tests.specification import spec
from vctl.runtime import lines, spawning
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import RunState
from vctl.runtime.records import RecordFile

pytestmark = spec("16.local", "8.exit-codes")

ENDINGS = {
    "success": ("exit 0", 0, None),
    "its own code": ("exit 7", 7, None),
    "killed by a signal": ("kill -KILL $$", 137, signal.SIGKILL),
    "ended by SIGTERM from elsewhere": ("kill -TERM $$", 143, signal.SIGTERM),
    "a code that looks like a signal's": ("exit 143", 143, None),
}


@pytest.mark.parametrize(("script", "code", "signo"), ENDINGS.values(), ids=ENDINGS)
def test_the_exit_record_has_the_code(ground, script, code, signo):
    before = time.time_ns()
    ground.launch("a", "sh", "-c", script)
    ended = ground.ended("a")
    assert (ended.exit_code, ended.signal, ended.stopped, ended.launch_errno) == (code, signo, False, None)
    start = ground.runtime.observe("a").start
    assert before <= start.started_at <= ended.ended_at <= time.time_ns()


FAILURES = {
    "no such command": (("nonesuch",), {}, 127, errno.ENOENT, "nonesuch"),
    "no such file": (("/nonesuch/x",), {}, 127, errno.ENOENT, "/nonesuch/x"),
    "an empty command": (("",), {}, 127, errno.ENOENT, "No such file"),
    "not executable": (("./plain",), {}, 126, errno.EACCES, "./plain"),
    "not executable, on the PATH": (("plain",), {"own": {"PATH": "."}}, 126, errno.EACCES, "./plain"),
    "a directory": (("/usr",), {}, 126, errno.EACCES, "/usr"),
    "not a program": (("./garbage",), {}, 126, errno.ENOEXEC, "./garbage"),
    "no interpreter": (("./orphan",), {}, 127, errno.ENOENT, "interpreter of ./orphan"),
    "no such directory": (("true",), {"cwd": "/nonesuch"}, 126, errno.ENOENT, "/nonesuch"),
    "no such log": (("true",), {"log_path": "/nonesuch/log"}, 126, errno.ENOENT, "/nonesuch/log"),
    "arguments too long": (("true", "x" * 200_000), {}, 126, errno.E2BIG, "true"),
    "a zero byte": (("true", "a\0b"), {}, 126, errno.EINVAL, "null"),
    "no such CPU": (("true",), {"cpu_ids": (1023,)}, 126, errno.EINVAL, "CPUs (1023,)"),
}


@pytest.mark.parametrize(("argv", "fields", "code", "number", "words"), FAILURES.values(), ids=FAILURES)
def test_a_launch_that_cannot_work_says_why(ground, argv, fields, code, number, words):
    (ground.home / "plain").write_text("#!/bin/sh\n")
    for name, text in (("garbage", "\x01\x02\x03"), ("orphan", "#!/nonesuch/sh\n")):
        (ground.home / name).write_text(text)
        (ground.home / name).chmod(0o755)
    ground.launch("a", *argv, **fields)
    ended = ground.ended("a")
    assert (ended.exit_code, ended.launch_errno, ended.signal) == (code, number, None)
    assert words in ended.message
    if not fields.keys() & {"log_path", "cpu_ids"} and number in (errno.ENOENT, errno.EACCES) and argv[0]:
        env = {b"PATH": os.fsencode(fields.get("own", os.environ)["PATH"])}
        cwd = os.fsencode(fields.get("cwd", ground.home))
        foreseen = spawning.foreseen(tuple(map(os.fsencode, argv)), env, cwd)
        assert foreseen is not None
        assert (foreseen.exit_code, str(foreseen)) == (code, ended.message)
    assert ground.runtime.observe("a").start is None
    supervisors = ground.runtime._supervisors.slots.values()

    def are_known() -> bool:
        ground.runtime.changes()  # the end may have been read from its record before a supervisor said who it is
        return all(one.pid for one in supervisors)

    eventually(are_known, "its supervisor")
    assert [os.readlink(f"/proc/{one.pid}/cwd") for one in supervisors] == ["/"], (
        "it keeps no directory in use"
    )


REMEDIES = {
    "a Python program": ("./train.py", 0o644, "Permission denied; write python ./train.py"),
    "one in the directory": ("train.py", 0o644, "Permission denied; write python train.py"),
    "a script of a shell": ("./go.sh", 0o644, "Permission denied; write sh ./go.sh"),
    "one that does not say which": ("./go.sh", 0o755, "Exec format error; write sh ./go.sh"),
    "another file": ("./go", 0o644, "Permission denied; make it executable: chmod +x ./go"),
    "a directory": ("./logs", None, "Permission denied; it is a directory"),
    "a variable": ("A=1", None, "No such file or directory; to set a variable, write env A=1 before the command"),
    "a value without quotes": (
        "job", None, "No such file or directory; it stands before --: put a value with blanks in quotes",
    ),
    "nothing that is known": ("nonesuch", None, "No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "mode", "words"), REMEDIES.values(), ids=REMEDIES)
def test_a_launch_that_cannot_work_says_what_to_write(ground, name, mode, words):
    """spec 8: `vctl run train.py` without `python` is what people type first."""
    if mode is not None:
        (ground.home / name).write_text("echo hi\n")
        (ground.home / name).chmod(mode)
    ground.launch("a", name, *(["--", "true"] if name == "job" else ["more"]))
    assert ground.ended("a").message == f"cannot run {name}: {words}"


@pytest.mark.parametrize("name", ["true", "/bin/true", "./own", "sub/own", "script"])
def test_nothing_is_foreseen_of_what_starts(ground, name):
    """Programs on the PATH, in the directory, and scripts; a start that works is never said to fail."""
    for path in ("own", "sub/own", "script"):
        (ground.home / path).parent.mkdir(exist_ok=True)
        (ground.home / path).write_text("#!/bin/sh\n")
        (ground.home / path).chmod(0o755)
    env = {b"PATH": b"relative:" + os.fsencode(os.environ["PATH"]) + b":."}
    assert spawning.foreseen((name.encode(),), env, os.fsencode(ground.home)) is None
    ground.launch("a", name, own={"PATH": env[b"PATH"].decode()})
    assert ground.ended("a").exit_code == 0


def test_output_keeps_its_order_and_its_bytes(ground):
    code = "import os\nfor n in range(500): os.write(1 + n % 2, b'%d\\xff\\r\\n\\0' % n)"
    ground.python("a", code)
    ground.ended("a")
    assert ground.log("a") == b"".join(b"%d\xff\r\n\0" % n for n in range(500))
    assert stat.S_IMODE((ground.runtime.logs / "a").stat().st_mode) == 0o600


def test_a_log_is_appended_to(ground):
    (ground.runtime.logs / "a").write_bytes(b"first\n")
    ground.launch("a", "echo", "second")
    ground.ended("a")
    assert ground.log("a") == b"first\nsecond\n"


def test_the_environment_is_exactly_what_was_asked_for(ground):
    env = {"A": "b=c", "EMPTY": "", "LINES": "1\n2", "BYTES": os.fsdecode(b"\xff\xfe"), "Ä": "ö"}
    ground.launch("a", "/bin/cat", "/proc/self/environ", own=env)
    ground.ended("a")
    got = sorted(ground.log("a").split(b"\0")[:-1])
    want = {**env, "VCTL_RUN_ID": "a", "VCTL_HOME": str(ground.home)}
    assert got == sorted(os.fsencode(f"{name}={value}") for name, value in want.items())


def test_a_large_environment_arrives_and_one_too_large_fails(ground):
    fits = {f"V{n}": "x" * 100_000 for n in range(15)}
    ground.launch("fits", "/bin/sh", "-c", 'echo "${#V0} ${#V14}"', own=fits)
    ground.launch("too-large", "/bin/true", own={f"V{n}": "x" * 100_000 for n in range(40)})
    ground.launch("next", "/bin/echo", "next")
    assert ground.ended("fits").exit_code == 0
    assert ground.log("fits") == b"100000 100000\n"
    assert (ground.ended("too-large").exit_code, ground.ended("too-large").launch_errno) == (126, errno.E2BIG)
    assert ground.ended("next").exit_code == 0


def test_a_process_gets_three_files_its_own_session_and_default_signals(ground):
    code = """
import os
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1], os.readlink("/proc/self/fd/0"))
print(os.getsid(0) == os.getpgrp() == os.getpid(), os.getcwd())
for line in open("/proc/self/status"):
    if line.startswith(("SigBlk", "ShdPnd")): print(line.split()[1])
"""
    ground.python("a", code)
    ground.ended("a")
    files, session, pending, blocked = ground.log("a").decode().splitlines()
    assert files == "[0, 1, 2] /dev/null"
    assert session == f"True {ground.home}"
    assert int(pending, 16) == int(blocked, 16) == 0


def test_a_signal_ignored_by_the_scheduler_is_not_ignored_by_the_job(ground):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ground.launch("a", "/bin/sh", "-c", "grep SigIgn /proc/self/status")
        ground.ended("a")
    finally:
        signal.signal(signal.SIGINT, before)
    ignored = int(ground.log("a").split()[1], 16)
    assert not ignored & 1 << (signal.SIGINT - 1)


def test_cpus_are_set(ground):
    last = max(os.sched_getaffinity(0))
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    ground.python("a", code, cpu_ids=(last,))
    ground.ended("a")
    assert ground.log("a").decode().split() == [f"[{last}]"]


def test_use_of_cpu_and_memory_is_recorded(ground):
    code = "x = bytearray(60_000_000)\nfor i in range(300_000): pass"
    ground.python("a", code)
    ended = ground.ended("a")
    assert ended.max_rss_kib > 58_000
    assert ended.user_us + ended.system_us > 1000


def test_a_run_is_forgotten_but_not_its_log(ground):
    ground.launch("a", "echo", "hello")
    ground.ended("a")
    ground.runtime.stop("a", grace_s=0)
    ground.runtime.forget("a")
    assert ground.runtime.observe("a").state is RunState.NEVER_STARTED
    record = ground.record("a").name
    assert {path.name for path in ground.home.rglob("*") if path.is_file()} == {"launcher.log", record, "a"}
    ground.runtime.close()
    eventually(lambda: ground.runtime.settle({}) or not ground.record("a").exists())
    assert ground.log("a") == b"hello\n"


def test_a_running_run_is_not_forgotten(ground):
    ground.launch("a", "sleep", "1000")
    ground.running("a")
    with pytest.raises(AssertionError, match="running"):
        ground.runtime.forget("a")


@pytest.mark.parametrize("run_id", ["", ".a", "a/b", "../a", "a\0b", "x" * 201])
def test_an_id_that_cannot_be_a_file_name_is_refused(ground, run_id):
    with pytest.raises(AssertionError, match="not a run id"):
        ground.launch(run_id, "true")


def spoil(record: Path, how: str) -> None:
    """Put something in the place of a record file, or into it, as a job may do."""
    whole = record.read_bytes().splitlines(keepends=True)
    if how in ("a directory", "a link", "a pipe", "nothing"):
        record.unlink()
    match how:
        case "a directory":
            (record / "within").mkdir(parents=True)
        case "a link":
            record.symlink_to("/etc/passwd")
        case "a pipe":
            os.mkfifo(record)
        case "large":
            os.truncate(record, 10**10)
        case "cut":
            record.write_bytes(b"")
        case "a line less":
            record.write_bytes(whole[0] + b"".join(whole[2:]))
        case "an odd number":
            record.write_bytes(whole[0] + whole[1] + lines.line(b"E", b"a", b"-1 0 0 0 1 1 1 1 "))
        case "half of it":
            record.write_bytes(b"".join(whole)[:-1])
        case "garbage":
            record.write_bytes(os.urandom(500))


SPOILS = [
    "a directory",
    "a link",
    "a pipe",
    "nothing",
    "large",
    "cut",
    "a line less",
    "an odd number",
    "half of it",
    "garbage",
]


@pytest.mark.parametrize("how", SPOILS)
def test_a_record_that_is_none_is_skipped_and_the_run_is_lost(ground, how):
    """Spec 12: what cannot be read never stops the daemon. Who has heard of the end is not misled."""
    ground.launch("a", "true")
    ground.ended("a")
    number = ground.number("a")
    ground.runtime.close()
    eventually(lambda: RecordFile(str(ground.record("a")), number).holder() is None)
    spoil(ground.record("a"), how)
    assert ground.runtime.observe("a").state is RunState.EXITED
    other = LocalRuntime(ground.home)
    other.launch(ground.request("a", "false"))  # as a scheduler does that finds a run that nobody started
    wanted = RunState.EXITED if how in ("large", "a line less") else RunState.LOST
    eventually(lambda: other.observe("a").state is wanted)
    assert other.clear_lost("a") == ()
    other.forget("a")
    other.close()


@pytest.mark.parametrize("how", SPOILS)
def test_what_a_job_does_to_a_record_file_does_not_hide_its_end(ground, how):
    """Spec 12: the supervisor tells how the run ended whatever became of its file."""
    mark = ground.home / "mark"
    ground.launch("a", "sh", "-c", f"while [ ! -e {mark} ]; do sleep 0.01; done; exit 5")
    ground.running("a")
    spoil(ground.record("a"), how)
    assert ground.runtime.observe("a").state is RunState.RUNNING
    mark.touch()
    assert ground.ended("a").exit_code == 5


def forge(record: Path, run_id: bytes) -> None:
    """What a job may write to look as if it had ended well."""
    with record.open("ab") as file:
        file.write(lines.line(b"E", run_id, b"0 0 0 0 1 1 1 1 "))


@pytest.mark.parametrize("also", ["", "place", "restart", "restart and place"])
def test_an_end_that_the_supervisor_has_not_written_does_not_count(ground, also):
    """Spec 8: devices are given back only when every process is gone, whatever a job writes of itself or another."""
    ground.launch("a", "sleep", "1000")
    ground.running("a")
    forge(ground.record("a"), b"a")
    runtime = ground.runtime
    if "restart" in also:
        runtime.close()
        runtime = LocalRuntime(ground.home)
        runtime.observe("a")
    if "place" in also:
        ground.record("a").unlink()
    for _ in range(3):
        assert runtime.observe("a").state in (RunState.RUNNING, RunState.STARTING)
    runtime.stop("a", grace_s=0)
    if "place" not in also:
        eventually(lambda: (seen := runtime.observe("a")).exit is not None and seen.exit.stopped)
    else:
        eventually(lambda: runtime.observe("a").state in (RunState.EXITED, RunState.LOST))


def test_an_end_that_was_written_beside_a_killed_supervisor_does_not_count(ground):
    """Spec 8: a job that kills its supervisor and writes its own end is lost, and its processes end first."""
    ground.launch("a", "sleep", "1000")
    start = ground.running("a")
    os.kill(start.supervisor, signal.SIGKILL)
    forge(ground.record("a"), b"a")
    ground.reach("a", RunState.LOST)
    assert ground.runtime.clear_lost("a") == ()
    assert is_gone(start.pid)


def test_many_launches_at_once_all_run(ground):
    names = [f"r{n}" for n in range(200)]
    for n, name in enumerate(names):
        ground.launch(name, "/bin/sh", "-c", f"exit {n % 100}", own={})
    assert [ground.ended(name).exit_code for name in names] == [n % 100 for n in range(200)]
    assert ground.runtime.known_runs() == sorted(names)


def test_what_a_look_has_heard_is_due_at_once(ground):
    """Spec 16: no line tells of it again, so whoever waits for the lines alone would miss the end of a run."""
    ground.launch("a", "true")
    ground.ended("a")
    assert ground.runtime.due_s() == 0
    assert "a" in ground.runtime.changes()
    assert ground.runtime.due_s() > 0
