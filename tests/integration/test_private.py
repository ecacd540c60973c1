"""What a job has for itself (--private): a /tmp that ends with it, and no processes but its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Place, eventually, is_gone
from tests.integration.service import ANA, BEN, running_service, users_of_the_host
from tests.specification import spec
from vctl.runtime import namespaces, own_tmp, processes

pytestmark = spec("19.private")

SCRIPT = (sys.executable, "-I", "-S", namespaces.SCRIPT)


def stores() -> set[Path]:
    """The directories of jobs in the public ones."""
    return {path for place in own_tmp.PLACES for path in Path(place).glob("vctl-tmp-*")}


@pytest.fixture
def here(place: Place) -> Iterator[Place]:
    """This machine as the only node. Nothing stays in /tmp."""
    before = stores()
    place.daemon(VCTL_LOCAL_NODE="1")
    yield place
    for path in stores() - before:
        shutil.rmtree(path)


def test_its_tmp_is_empty_at_its_start_and_gone_at_its_end(here: Place) -> None:
    name = f"/tmp/vctl-test-{uuid.uuid4().hex}"
    program = f"ls /tmp | grep -c vctl-test; mkdir -p /var/tmp/x && echo hers > {name}; cat {name}; df /tmp >/dev/null"
    Path(f"{name}.public").write_text("")
    try:
        ran = here.run("run", "--private", "tmp", "--", "sh", "-c", program)
    finally:
        os.unlink(f"{name}.public")
    assert (ran.code, ran.out) == (0, "0\nhers\n"), ran.err
    assert not os.path.exists(name)


def test_it_sees_no_processes_but_its_own(here: Place) -> None:
    """What one job did to all processes of a name reached every other job of that user. A child of process 1 takes
    itself for an orphan, as a driver of Ray did, which then ended with 1."""
    here.submit("--submission-id", "other", "--", "sleep", "1234")
    here.running_process("other")
    program = (
        "sleep 1234 & pgrep -x sleep | wc -l; pkill -KILL sleep; wait $! 2>/dev/null; echo $?; echo $$ $PPID"
    )
    ran = here.run("run", "--private", "pids", "--", "sh", "-c", program)
    said = [line for line in ran.out.splitlines() if line and "Killed" not in line]
    assert (ran.code, said) == (0, ["1", "137", "2 0"]), ran
    assert here.job("other")["status"] == "RUNNING"
    here.ok("job", "stop", "other")


ENDS = {
    "exit 0": 0,
    "exit 7": 7,
    "kill -SEGV $$": 139,
    "kill -KILL $$": 137,
    "kill -TERM $$": 143,
    "no-such": 127,
}


def test_it_ends_as_its_command_ends(here: Place) -> None:
    cases = {
        f"{number}{words}": (words, *case)
        for number, case in enumerate(ENDS.items())
        for words in ("tmp", "pids")
    }
    for name, (words, program, _) in cases.items():
        here.submit("--submission-id", name, "--private", words, "--", "sh", "-c", program)
    ended = {name: here.reach(name, "SUCCEEDED", "FAILED")["exit_code"] for name in cases}
    assert ended == {name: code for name, (_, _, code) in cases.items()}


def test_its_files_are_removed_with_it(here: Place) -> None:
    """And nothing else: what it sees of the real /tmp, such as its working directory, is mounted in there."""
    before = stores()
    (here.folder / "kept").write_text("")
    odd = "echo x >/tmp/a/b/x; chmod 0 /tmp/a; mkfifo /tmp/pipe; ln -s / /tmp/root; echo y >/tmp/y"
    fill = f"mkdir -p /tmp/a/b /var/tmp/c; {odd}; sleep 300"
    here.submit("--submission-id", "j", "--private", "tmp,pids", "--", "sh", "-c", fill)
    eventually(lambda: any((path / "tmp/y").exists() for path in stores() - before), "its files")
    made = stores() - before
    assert len(made) == 2
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in made)
    here.ok("job", "stop", "j")
    here.reach("j", "STOPPED")
    assert not made & stores()
    assert (here.folder / "kept").exists()


def test_files_of_a_killed_job_go_with_the_next_start(here: Place) -> None:
    before = stores()
    here.submit("--submission-id", "j", "--private", "tmp", "--", "sh", "-c", "echo x >/tmp/x; sleep 300")
    eventually(lambda: any((path / "tmp/x").exists() for path in stores() - before), "its files")
    made = stores() - before
    os.kill(here.running_process("j"), 9)
    here.reach("j", "FAILED")
    assert made <= stores()
    here.ok("run", "--private", "tmp", "--", "true")
    assert not made & stores()


def test_who_ends_first_leaves_the_tmp_to_the_others(here: Place) -> None:
    two = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 0.5}}, {"resources": {"CPU": 0.5}}]}]}
    first = "until [ -e /tmp/up ]; do sleep 0.05; done; touch /tmp/x"
    second = "touch /tmp/up; until [ -e /tmp/x ]; do sleep 0.05; done; sleep 1; ls /tmp/x"
    program = f'if [ "$RANK" = 0 ]; then {first}; else {second}; fi'
    ran = here.run(
        "run",
        "--private",
        "tmp,pids",
        "--per-node",
        "--virtual-cluster",
        json.dumps(two),
        "--",
        "sh",
        "-c",
        program,
    )
    assert (ran.code, ran.out) == (0, "/tmp/x\n"), ran


def test_a_command_that_cannot_be_started_fails_as_without(here: Place) -> None:
    for words in ((), ("--private", "tmp,pids")):
        ran = here.run("run", *words, "--", "no-such-command")
        assert ran.code == 127
        assert "LaunchFailed: cannot run no-such-command" in ran.err


WAITS = (
    'trap "echo USR1" USR1; trap "echo INT" INT; trap "echo TERM; exit 3" TERM; echo up;'
    " while :; do sleep 0.05; done"
)


def log(place: Place, ref: str) -> list[str]:
    return [line for line in place.ok("job", "logs", ref).splitlines() if line != "Terminated"]


def test_signals_reach_the_command_once(here: Place) -> None:
    here.submit("--submission-id", "j", "--private", "tmp,pids", "--", "sh", "-c", WAITS)
    main = here.running_process("j")
    eventually(lambda: log(here, "j") == ["up"], "its start")
    os.kill(main, 10)  # as the warning before a time limit: to the main process alone
    eventually(lambda: log(here, "j") == ["up", "USR1"], "the signal")
    here.ok("job", "stop", "--grace", "30s", "j")
    assert here.reach("j", "STOPPED")
    assert log(here, "j") == ["up", "USR1", "TERM"]


def test_what_it_leaves_has_its_grace_and_is_ended(here: Place) -> None:
    late = "(trap 'sleep 0.3; echo late; exit' TERM; while :; do sleep 0.05; done)"
    left = f"(trap '' TERM; setsid sleep 4321) & {late} & sleep 0.3; exit 6"
    ran = here.run(
        "run", "--submission-id", "j", "--private", "pids", "--grace", "1s", "--", "bash", "-c", left
    )
    assert ran.code == 6
    assert "late" in ran.out
    assert not [one for one in processes.all_processes() if processes.command(one.pid) == [b"sleep", b"4321"]]


def test_memory_is_watched_inside(here: Place) -> None:
    fill = "import time; kept = b'x' * (200 << 20); time.sleep(60)"
    ran = here.run(
        "run", "--submission-id", "j", "--private", "tmp,pids", "-n", "1", "--memory", "64MiB", "--",
        sys.executable, "-I", "-S", "-c", fill,
    )  # fmt: skip
    assert ran.code == 137
    assert here.job("j")["state_reason"] == "OutOfMemory"


def test_tasks_and_attached_commands_share_the_tmp_of_their_job(here: Place) -> None:
    here.submit(
        "--submission-id",
        "j",
        "--private",
        "tmp,pids",
        "--",
        "sh",
        "-c",
        "mkdir /tmp/in; echo a >/tmp/in/a; sleep 1111",
    )
    here.running_process("j")
    eventually(lambda: here.fork("attach", "j", "--", "test", "-f", "/tmp/in/a").code == 0, "its file")
    ran = here.run(
        "task",
        "run",
        "--job",
        "j",
        "--num-cpus",
        "0",
        "--",
        "sh",
        "-c",
        "cat /tmp/in/a; echo b >/tmp/in/b; pgrep sleep",
    )
    assert (ran.code, ran.out) == (1, "a\n"), "it has processes of its own"
    ran = here.run(
        "attach", "j", "--", "sh", "-c", "cat /tmp/in/b; pgrep -x sleep; echo $VCTL_PRIVATE; ls -d /proc/1"
    )
    assert ran.code == 0
    assert ran.out.splitlines()[0::2] == ["b", "tmp,pids"], "it sees the processes of the job"
    here.ok("job", "stop", "j")


def test_a_job_inside_a_tmp_of_its_own_uses_vctl(here: Place) -> None:
    """A command server took `@/tmp/file` from another /tmp, and a command saw no scheduler at work."""
    program = (
        'echo \'{"flexible_resource_min": {"CPU": 1}}\' >/tmp/spec; mkdir /tmp/deep; cd /tmp/deep;'
        " vctl status | grep Scheduler; vctl job submit --dry-run --virtual-cluster @/tmp/spec -- true;"
        " vctl task run --num-cpus 0 -- sh -c 'pwd; cat /tmp/spec'"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = here.run("run", "--private", "tmp,pids", "-n", "1", "--", "sh", "-c", program, PATH=path)
    assert ran.code == 0, ran
    assert "/tmp/deep\n{" in ran.out
    assert "running" in ran.out and "not running" not in ran.out and "Error" not in ran.out, ran.out


def test_lines_are_labelled_and_a_terminal_is_there(here: Place) -> None:
    ran = here.run(
        "run", "--private", "tmp,pids", "--per-node", "--label", "--", "sh", "-c", "echo a; echo b; exit 4"
    )
    assert (ran.code, ran.out) == (4, "0: a\n0: b\n")
    ran = here.run("run", "--private", "tmp,pids", "--stdin", "--", "cat", stdin=b"words")
    assert (ran.code, ran.out) == (0, "words")


def test_a_cluster_demands_it_for_all_in_it(here: Place) -> None:
    here.ok("vc", "create", "lab", "--divisible", "--min", "CPU=1", "--private", "tmp")
    here.ok("vc", "create", "inner", "--parent", "lab", "--spec", "{}", "--private", "pids")
    assert here.read("vc", "get", "inner")["private"] == ["pids"]
    say = ("--", "sh", "-c", "echo $VCTL_PRIVATE")
    assert here.run("run", "-c", "inner", "--private", "none", *say).out == "tmp,pids\n"
    assert here.run("run", "-c", "lab", *say).out == "tmp\n"
    assert here.run("run", *say).out == "\n"
    here.ok("vc", "update", "inner", "--private", "none")
    assert here.read("vc", "get", "inner")["private"] == []
    assert here.run("run", "-c", "inner", *say).out == "tmp\n"


@pytest.mark.parametrize(
    ("words", "problem", "fix"),
    [
        ("tmp,pid", 'unknown word "pid"', "write one or more of tmp, pids, none"),
        ("none,tmp", "none is given beside others", "write none alone, or leave it out"),
    ],
)
def test_unknown_words_are_refused_with_the_list(place: Place, words: str, problem: str, fix: str) -> None:
    for command in (
        ("job", "submit", "--private", words, "--", "true"),
        ("vc", "create", "x", "--private", words),
    ):
        ran = place.fork(*command)
        assert ran.code == 2
        assert ran.err == f"Error: --private: {problem}\nFix: {fix}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes the user")
def test_a_user_has_it_without_root(tmp_path: Path) -> None:
    """In a user namespace, with the own uid; processes of the user outside are as they were."""
    user = "vctlt-private"
    subprocess.run(["useradd", "--no-create-home", "--uid", "20990", user], check=True)
    folder = Path("/tmp", f"vctl-test-{uuid.uuid4().hex}")
    try:
        shutil.copytree(Path(namespaces.SCRIPT).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
        script = ("python3", "-I", "-S", f"{folder}/namespaces.py")
        as_user = {
            "user": 20990,
            "group": 20990,
            "extra_groups": [],
            "cwd": "/",
            "env": {"PATH": "/usr/bin:/bin"},
        }
        problems = subprocess.run(script, capture_output=True, text=True, check=True, **as_user).stdout  # type: ignore[call-overload]
        if problems.strip():
            pytest.skip(f"the kernel does not let users: {problems}")
        words = (
            *script,
            "tmp,pids",
            "vctl-tmp-of-a-test",
            "/",
            "0",
            "--",
            "sh",
            "-c",
            "id -u; ls /tmp; echo x >/tmp/x; kill -KILL -1 2>/dev/null; ls -d /proc/[0-9]* | wc -l; exit 9",
        )
        with subprocess.Popen(["sleep", "100"], **as_user) as outside:  # type: ignore[call-overload]
            ran = subprocess.run(words, capture_output=True, text=True, check=False, **as_user)  # type: ignore[call-overload]
            assert ran.returncode == 9, ran
            uid, *_, number = ran.stdout.splitlines()
            assert (uid, number) == ("20990", "4"), ran.stdout
            assert not is_gone(outside.pid)
            outside.kill()
        for place in own_tmp.PLACES:
            assert not os.path.exists(f"{place}/vctl-tmp-of-a-test")
            os.mkdir(f"{place}/vctl-tmp-of-a-test", 0o700)
            os.chown(f"{place}/vctl-tmp-of-a-test", 20990, 20990)
        refused = subprocess.run(
            ("python3", "-I", "-S", f"{folder}/namespaces.py", "tmp", "vctl-tmp-of-a-test", "/", "0", "--", "true"),
            capture_output=True, text=True, check=False, cwd="/", env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert refused.returncode == 126, "what another user has made is not taken"
        assert "is of another user" in refused.stderr
    finally:
        subprocess.run(["userdel", user], check=True)
        shutil.rmtree(folder)
        for place in own_tmp.PLACES:
            shutil.rmtree(f"{place}/vctl-tmp-of-a-test", ignore_errors=True)


def test_doctor_says_what_is_in_force(place: Place) -> None:
    assert "jobs can have for themselves (--private): tmp, pids" in place.read("doctor")["notes"]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes users of the machine, so it has to be root")
def test_users_of_a_shared_service_have_it() -> None:
    """In user namespaces of their own, with their own files, which nobody has to remove for them."""
    before = stores()
    with users_of_the_host(), running_service() as service:
        for user in (ANA, BEN):
            say = "id -un; ls /tmp /var/tmp; echo x >/tmp/x; ls -d /proc/[0-9]* | wc -l; echo $VCTL_PRIVATE"
            name = service.ok(user, "run", "-d", "--private", "tmp,pids", "--", "sh", "-c", say).strip()
            ended = eventually(
                lambda user=user, name=name: (
                    (job := service.read(user, "job", "status", name))["exit_code"] is not None and job
                ),
                "its end",
            )
            said = service.ok(user, "logs", name)
            assert ended["exit_code"] == 0, said
            assert said.splitlines()[0] == user
            assert said.splitlines()[-2:] == ["4", "tmp,pids"]
    assert stores() <= before
