"""``vctl attach``: a shell or a command beside a running job, with what the job has, until either ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.integration.conftest import VCTL, Place, eventually, is_gone
from tests.integration.test_attached import Typist
from tests.specification import spec

pytestmark = spec("13.attach")


@pytest.fixture
def site(place: Place) -> Place:
    place.ok(
        "node", "add", "--simulated", "--resources", '{"CPU": 4, "GPU": 2, "memory": "8GiB"}', "--count", "2"
    )
    place.daemon()
    return place


def sleeper(site: Place, name: str, *words: str, **env: str) -> None:
    ran = site.run("run", "-d", "--submission-id", name, *words, "--", "sleep", "1000", **env)
    assert ran.code == 0, ran
    site.running_process(name)


def test_a_command_has_the_cluster_the_directory_the_variables_and_the_devices_of_the_job(
    site: Place,
) -> None:
    sleeper(site, "other", "-g", "1")
    sleeper(site, "a", "-n", "2", "-g", "1", MINE="words")
    script = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    ran = site.run("attach", "a", "--", sys.executable, "-c", script, MINE="others", OURS="x")
    assert (ran.code, ran.err) == (0, "")
    folder, seen = ran.json
    pid = site.running_process("a")
    with open(f"/proc/{pid}/environ", "rb") as file:
        jobs = dict(pair.decode().split("=", 1) for pair in file.read().split(b"\0") if pair)
    assert folder == os.fspath(site.folder)
    own = {"VCTL_RUN_ID", "VCTL_TASK_ID", "VCTL_OBJECT_DIR"}
    assert {k: v for k, v in seen.items() if k not in own | {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}} == {
        k: v for k, v in jobs.items() if k not in own | {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    }
    assert seen["MINE"] == "words"
    assert seen["CUDA_VISIBLE_DEVICES"] == jobs["CUDA_VISIBLE_DEVICES"] != ""
    assert seen["VCTL_TASK_ID"].startswith("task-")


def test_output_errors_input_and_the_exit_code_are_those_of_the_command(site: Place) -> None:
    sleeper(site, "a")
    ran = site.run("attach", "a", "--", "sh", "-c", "cat; echo err >&2; exit 7", stdin=b"in\0\xff\n" * 50_000)
    assert (ran.code, ran.stdout, ran.err) == (7, b"in\0\xff\n" * 50_000, "err\n")
    assert site.run("attach", "a", "sh", "-c", "exit 3").code == 3
    assert site.run("attach", "a", stdin=b"exit 5\n", SHELL="/bin/sh").code == 5
    assert site.run("attach", "a", "--", "sh", "-c", "kill -9 $$").code == 137
    ran = site.run("attach", "a", "--", "nonesuch")
    assert (ran.code, ran.err) == (127, "vctl: nonesuch: No such file or directory\n")
    assert site.job("a")["status"] == "RUNNING"
    assert list((site.home / "attach").iterdir()) == []


def test_it_needs_no_room(site: Place) -> None:
    """Nor does it wait for tasks that wait."""
    sleeper(site, "a", "-n", "4")
    for _ in range(3):
        assert site.run("task", "run", "--no-wait", "--job", "a", "-n", "4", "--", "sleep", "1000").code == 0
    began = time.monotonic()
    assert site.run("attach", "a", "--", "true").code == 0
    assert time.monotonic() - began < 5
    assert site.job("a")["resources"] == {"CPU": 4.0}


def test_a_member_of_a_gang_and_of_an_array(site: Place) -> None:
    sleeper(site, "gang", "--nodes", "2", "-n", "1", "--per-node")
    ran = site.run("attach", "gang", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE on $VCTL_NODE_ID")
    assert ran.out.startswith("0 of 2 on ")
    site.ok("run", "-d", "--submission-id", "s", "--array", "3-5:2", "--", "sleep", "1000")
    site.running_process("s_5")
    assert site.run("attach", "s_5", "--", "sh", "-c", "echo $VCTL_ARRAY_INDEX").out == "5\n"
    ran = site.run("attach", "s", "--", "true")
    assert (ran.code, ran.err) == (4, "Error: s is an array of jobs\nFix: name one of them, such as s_3\n")


def test_it_ends_with_the_job(site: Place) -> None:
    sleeper(site, "a")
    words = [*VCTL, "attach", "a", "--", "sh", "-c", "echo $$; sleep 1000"]
    with subprocess.Popen(
        words,
        env=site.environment({}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None
        pid = int(command.stdout.readline())
        site.ok("stop", "a")
        _, err = command.communicate(timeout=30)
    assert command.returncode in (143, -15)
    assert err == b"job a has ended, and with it this command\n"
    assert is_gone(pid)
    assert site.reach("a", "STOPPED")["message"] != ""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
def test_it_ends_with_who_attached_and_the_job_goes_on(site: Place, how: signal.Signals) -> None:
    sleeper(site, "a")
    words = [*VCTL, "attach", "a", "--", "sh", "-c", "trap '' INT; echo $$; sleep 1000"]
    with subprocess.Popen(
        words, env=site.environment({}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0
    ) as command:
        assert command.stdout is not None
        pid = int(command.stdout.readline())
        os.kill(command.pid, how)
        command.wait(30)
        eventually(lambda: is_gone(pid), "the command to end", 15)
    assert site.job("a")["status"] == "RUNNING"
    assert [task["state"] for task in site.read("task", "list", "-a")["items"]] == ["FAILED"]


def test_a_shell_has_a_terminal(site: Place) -> None:
    sleeper(site, "a", SHELL="/bin/sh", PS1="$ ", TERM="of-the-job")
    site.more["TERM"] = "of-the-typist"
    typist = Typist(site, "attach", "a")
    try:
        typist.sees("$ ")
        typist.type("stty size; echo term=$TERM; echo in=$VCTL_SUBMISSION_ID\r")
        typist.sees("33 101")
        typist.sees("term=of-the-typist")
        typist.sees("in=a")
        typist.type("sleep 1000\r")
        time.sleep(0.3)
        typist.type("\x03")
        typist.type("echo code=$?\r")
        typist.sees("code=130")
        typist.type("exit 7\r")
        assert typist.code() == 7
        assert site.job("a")["status"] == "RUNNING"
    finally:
        typist.close()


def test_a_shell_ends_with_the_job_and_gives_the_terminal_back(site: Place) -> None:
    sleeper(site, "a", SHELL="/bin/sh", PS1="$ ")
    typist = Typist(site, "attach", "a")
    try:
        typist.sees("$ ")
        site.ok("stop", "a")
        assert typist.code() != 0
        assert b"job a has ended, and with it this command" in typist.shown
    finally:
        typist.close()


def test_what_does_not_run_takes_nobody(site: Place) -> None:
    site.ok("run", "-d", "--hold", "--submission-id", "h", "--", "true")
    site.ok("run", "--submission-id", "over", "--", "true")
    for name, code, fix in (("h", 5, "vctl why h"), ("over", 5, "vctl ps"), ("nope", 4, "vctl job list")):
        ran = site.run("attach", name, "--", "true")
        assert ran.code == code
        assert fix in ran.err
    assert site.run("attach", "h", VCTL_ADDRESS="http://127.0.0.1:1").code == 8
    assert json.loads(site.ok("task", "list", "-a", "-o", "json"))["items"] == []
