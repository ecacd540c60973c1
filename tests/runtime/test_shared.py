"""A supervisor of a shared service is root, and each process that it starts is a user's, for ever (decision 0031)."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accounts import as_root, needs_root
from tests.runtime.conftest import STUBBORN, eventually, is_gone
from tests.runtime.shared_ground import SharedGround
from tests.specification import spec
from vctl.runtime import processes
from vctl.runtime.protocol import RunState

pytestmark = [needs_root, spec("19.start")]


PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
"""One that every user can run; that of the tests may lie in a directory of root."""


def python(code: str) -> tuple[str, ...]:
    return (PYTHON, "-I", "-S", "-c", code)


def test_a_process_has_the_ids_and_all_groups_of_its_user(shared: SharedGround) -> None:
    """A second way to start that lost the groups is a known bug of others."""
    shared.launch("a", "sh", "-c", "id -u; id -g; id -G; pwd; umask; echo $HOME $USER $LOGNAME")
    assert shared.ended("a").exit_code == 0
    ana = shared.ana
    groups = os.getgrouplist(ana.pw_name, ana.pw_gid)
    uid, gid, seen, cwd, umask, variables = shared.log("a").decode().splitlines()
    assert (uid, gid) == (str(ana.pw_uid), str(ana.pw_gid))
    assert sorted(map(int, seen.split())) == sorted(groups)
    assert len(groups) == 3
    assert (cwd, umask) == (ana.pw_dir, "0022")
    assert variables.split() == [ana.pw_dir, ana.pw_name, ana.pw_name]


def test_nothing_leads_back_to_root(shared: SharedGround) -> None:
    code = """
import os
print(os.getresuid(), os.getresgid())
above = os.getppid()
for back in (lambda: os.setuid(0), lambda: os.seteuid(0), lambda: os.setresuid(-1, 0, -1), lambda: os.setgid(0),
             lambda: os.setgroups([0]), lambda: os.kill(above, 9), lambda: os.listdir("/proc/%d/fd" % above)):
    try:
        back()
    except PermissionError:
        continue
    print("it works")
print(sorted(os.listdir("/proc/self/fd")), open("/proc/self/status").read().split("CapEff:")[1].split()[0])
"""
    shared.launch("a", *python(code))
    assert shared.ended("a").exit_code == 0
    uid, gid = shared.ana.pw_uid, shared.ana.pw_gid
    expected = (
        f"{(uid,) * 3} {(gid,) * 3}\n['0', '1', '2', '3'] 0000000000000000\n"  # 3 is the listing itself
    )
    assert shared.log("a").decode() == expected


def test_a_log_is_the_users_and_readable_by_the_service(shared: SharedGround) -> None:
    shared.launch("a", "echo", "hello")
    shared.ended("a")
    info = os.stat(shared.top / "logs" / "a")
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (
        shared.ana.pw_uid,
        shared.account.pw_gid,
        0o640,
    )
    assert (shared.runtime.logs / "a").read_text() == "hello\n"  # as the service reads it


def closed(shared: SharedGround) -> Path:
    """A directory of ben's with a program, which ana cannot enter, and root could."""
    with as_root():
        folder = shared.top / "closed"
        folder.mkdir(exist_ok=True)
        (folder / "run").write_text("#!/bin/sh\nid -u\n")
        (folder / "run").chmod(0o755)
        os.chown(folder, shared.ben.pw_uid, shared.ben.pw_gid)
        folder.chmod(0o700)
    return folder


REFUSED: dict[str, tuple[dict[str, object], str, int, int, str]] = {
    "a directory that the user cannot enter": (
        {"cwd": "{}"}, "true", 126, errno.EACCES, "cannot enter directory {}: Permission denied",
    ),
    "a directory that is not there": (
        {"cwd": "{}x"}, "true", 126, errno.ENOENT, "cannot enter directory {}x: No such file or directory",
    ),
    "a program that the user cannot reach": (
        {}, "{}/run", 126, errno.EACCES, "cannot run {}/run: Permission denied",
    ),
    "a program that is not there": ({}, "no-such", 127, errno.ENOENT, "cannot run no-such: No such file"),
    "no command": ({}, "", 127, errno.ENOENT, "cannot run an empty command in /home/"),
    "a name that no program can have": ({}, "tr\0ue", 126, errno.EINVAL, "cannot run tr\0ue: access: embedded null"),
    "a variable that no program can have": (
        {"own": {"A=B": "1", "PATH": "/bin"}}, "true", 126, errno.EINVAL, "cannot run /bin/true: illegal",
    ),
    "a CPU that no machine has": (
        {"cpu_ids": (9999,)}, "true", 126, errno.EINVAL, "cannot set CPUs (9999,) for true: ",
    ),
    "root": ({"uid": 0}, "true", 126, errno.EINVAL, "cannot start a process of uid 0: no job runs as root"),
    "the system's account": (
        {"uid": 1}, "true", 126, errno.EINVAL,
        "cannot start a process of uid 1: it is an account of the system: UID_MIN in",
    ),
    "nobody's account": ({"uid": 65534}, "true", 126, errno.EINVAL, "cannot start a process of uid 65534: it is"),
    "no account": (
        {"uid": 31999}, "true", 126, errno.EINVAL,
        "cannot start a process of uid 31999: there is no account with this uid",
    ),
    "a log elsewhere": (
        {"log_path": "/etc/passwd"}, "true", 126, errno.EPERM, "cannot open log /etc/passwd: Operation not permitted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_start_fails_as_it_would_for_the_user(shared: SharedGround, what: str) -> None:
    """Also what root could do, and what the scheduler may not ask for; the supervisor lives on."""
    fields, program, code, number, message = REFUSED[what]
    folder = str(closed(shared))
    fields = {
        name: text.replace("{}", folder) if isinstance(text, str) else text for name, text in fields.items()
    }
    shared.launch("a", program.replace("{}", folder), **fields)
    ended = shared.ended("a")
    assert (ended.exit_code, ended.launch_errno) == (code, number)
    assert ended.message.startswith(message.replace("{}", folder))
    assert shared.runtime.observe("a").start is None
    shared.launch("b", "true")
    assert shared.ended("b").exit_code == 0


def test_the_account_itself_is_none_that_a_process_is_started_as(shared: SharedGround) -> None:
    shared.launch("a", "true", uid=shared.account.pw_uid, cwd="/")
    assert shared.ended("a").message.endswith("it is the account of the service itself")


def test_a_stop_reaches_the_processes_of_a_user(shared: SharedGround) -> None:
    there = Path(shared.ana.pw_dir, "pid")
    shared.launch("a", *python(STUBBORN), str(there))
    start = shared.running("a")
    with as_root():
        eventually(lambda: there.exists() and there.read_text())
        child = int(there.read_text())
    assert processes.uids(child) == (shared.ana.pw_uid,) * 4
    shared.runtime.stop("a", grace_s=0.2)
    assert shared.ended("a").stopped
    assert is_gone(child)
    assert is_gone(start.pid)


def test_a_signal_reaches_the_process_of_a_user(shared: SharedGround) -> None:
    shared.launch("a", "sh", "-c", "trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.01; done")
    shared.running("a")
    eventually(lambda: shared.log("a") == b"ready\n")
    assert shared.runtime.signal_run("a", signal.SIGUSR1)
    assert shared.ended("a").exit_code == 3
    assert shared.log("a") == b"ready\nheard\n"


def test_root_signals_nothing_but_processes_of_users(shared: SharedGround) -> None:
    """The scheduler asks by pid: what is root's, the system's or the account's stays."""
    shared.launch("a", "sleep", "1000")
    shared.running("a")
    with as_root():
        victims = [subprocess.Popen(["sleep", "1000"], user=uid) for uid in (0, 1, shared.account.pw_uid)]
        user = subprocess.Popen(["sleep", "1000"], user=shared.ben.pw_uid)
    try:
        for one in (*victims, shared.starter.pids[0]):
            pid = one if isinstance(one, int) else one.pid
            assert not shared.runtime._send_signal(pid, processes.start_time(pid) or 0, signal.SIGKILL)
            assert processes.process(pid) is not None
        assert not shared.runtime._send_signal(user.pid, 1, signal.SIGKILL)  # another one that had its pid
        assert shared.runtime._send_signal(user.pid, processes.start_time(user.pid) or 0, signal.SIGKILL)
        assert user.wait() == -signal.SIGKILL
    finally:
        with as_root():
            for one in victims:
                one.kill()
                one.wait()


def test_what_a_killed_supervisor_leaves_is_found_and_ended(shared: SharedGround) -> None:
    """Its user has changed its session and its tag: the marks in its environment are read by root."""
    there = Path(shared.ana.pw_dir, "stray")
    code = """
import os, resource, sys, time
if os.fork() == 0:
    os.setsid()
    resource.setrlimit(10, (5, resource.getrlimit(10)[1]))
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)
"""
    shared.launch("a", *python(code), str(there))
    start = shared.running("a")
    with as_root():
        eventually(lambda: there.exists() and there.read_text())
        child = int(there.read_text())
        os.kill(start.supervisor, signal.SIGKILL)
    shared.reach("a", RunState.LOST)
    assert shared.runtime.clear_lost("a") == ()
    assert is_gone(child)
    assert is_gone(start.pid)


def test_a_launcher_that_was_killed_is_replaced(shared: SharedGround) -> None:
    shared.launch("a", "sleep", "1000")
    start = shared.running("a")
    with as_root():
        os.kill(shared.starter.pids[0], signal.SIGKILL)
    shared.runtime.stop("a", grace_s=5)  # by way of the next one
    assert shared.ended("a").stopped
    shared.launch("b", "echo", "hello")
    assert shared.ended("b").exit_code == 0
    assert len(shared.starter.pids) == 2
    assert is_gone(start.pid)


def objects_of(shared: SharedGround, name: str) -> Path:
    """A directory for the objects of a job, as the scheduler makes it."""
    folder = shared.top / "jobs" / "objects" / name
    folder.mkdir(mode=0o700)
    return folder


def test_the_directory_of_objects_is_given_to_the_user_and_emptied_with_his_rights(
    shared: SharedGround,
) -> None:
    folder = objects_of(shared, "7.1.n")
    command = "cd $VCTL_OBJECT_DIR; mkdir -p a/b; echo x > a/b/c; ln -s /etc; echo y > d; chmod 0 a/b; stat -c %U:%a ."
    shared.launch("a", "sh", "-c", command, own={"PATH": "/bin:/usr/bin", "VCTL_OBJECT_DIR": str(folder)})
    assert shared.ended("a").exit_code == 0
    assert shared.log("a").decode() == f"{shared.ana.pw_name}:2770\n"
    assert (folder / "d").read_text() == "y\n"  # the service reads what the user makes
    shared.launch("b", "sh", "-c", "cat d", cwd=str(folder), own={"VCTL_OBJECT_DIR": str(folder)})
    assert shared.log("b") == b"y\n" if shared.ended("b").exit_code == 0 else False
    shared.launch("c", "cat", str(folder / "d"), uid=shared.ben.pw_uid, cwd="/")
    assert shared.ended("c").exit_code == 1  # nobody else
    shared.launch("d", "true", uid=shared.ben.pw_uid, cwd="/", own={"VCTL_OBJECT_DIR": str(folder)})
    assert shared.ended("d").message.startswith("cannot give the user his directory ")
    shared.runtime.empty_objects(str(folder))
    eventually(lambda: not os.listdir(folder))
    assert os.path.exists("/etc/passwd")
    folder.rmdir()


@pytest.mark.parametrize("what", ["root's", "the account's elsewhere", "a link", "not there"])
def test_no_other_directory_is_given_to_a_user(shared: SharedGround, what: str) -> None:
    folder = shared.top / "jobs" / "objects" / "7.1.n"
    if what == "root's":
        with as_root():
            folder.mkdir(mode=0o755)
    elif what == "the account's elsewhere":
        folder = shared.home / "mine"
        folder.mkdir()
    elif what == "a link":
        (shared.home / "mine").mkdir()
        folder.symlink_to(shared.home / "mine")
    shared.launch("a", "true", own={"VCTL_OBJECT_DIR": str(folder)})
    ended = shared.ended("a")
    assert (ended.exit_code, ended.message[:36]) == (126, "cannot give the user his directory /")
    with as_root():
        assert not folder.exists() or folder.stat().st_uid != shared.ana.pw_uid
