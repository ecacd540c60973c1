"""The first thing a stranger does, without a daemon: submit, see, end, detach."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from tests.integration.conftest import SPREAD_2X1, Place, eventually, interrupt, is_gone
from tests.specification import spec

pytestmark = spec("13.submit", "8.submit")

PACK_2X1 = SPREAD_2X1.replace("STRICT_SPREAD", "PACK")


def test_a_job_is_told_its_cluster(one: Place) -> None:
    ran = one.run(
        "job", "submit", "--submission-id", "mine", f"--virtual-cluster={PACK_2X1}", "--",
        sys.executable, "-c", "import os; print(os.environ['VCTL_CLUSTER_ID'])",
    )  # fmt: skip
    assert (ran.code, ran.out) == (0, "kPrimaryClusterID##mine\n"), ran
    assert ran.err == ""
    one.assert_sound()


def test_on_this_machine_too(place: Place) -> None:
    """Registered by the first submit; core ids are real ones, and no GPU was asked for."""
    code = (
        "import os; print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'],"
        " repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    )
    words = ("job", "submit", "--num-cpus", "1", "--", sys.executable, "-c", code)
    ran = place.run(*words, VCTL_LOCAL_NODE="1")
    assert (ran.code, ran.out) == (0, "1 1 ''\n"), ran
    (node,) = place.read("node", "list")["items"]
    assert node["source"] == "local"


def test_the_environment_of_a_job(one: Place) -> None:
    words = ("job", "submit", "--submission-id", "e", "--num-cpus", "2", "--", sys.executable, "-c")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    env = json.loads(one.ok(*words, code, MINE="captured"))
    job = one.job("e")
    assert env["VCTL_JOB_ID"] == str(job["job_id"])
    assert env["VCTL_SUBMISSION_ID"] == "e"
    assert env["VCTL_ATTEMPT"] == "1"
    assert env["VCTL_CLUSTER_ID"] == env["VIRTUAL_CLUSTER_ID"] == "kPrimaryClusterID##e"
    assert env["VCTL_CLUSTER_PATH"] == "kPrimaryClusterID/kPrimaryClusterID##e"
    assert env["VCTL_NODE_ID"] == one.read("node", "list")["items"][0]["node_id"]
    assert env["VCTL_VNODE_ID"].startswith("kPrimaryClusterID##e")
    assert json.loads(env["VCTL_RESOURCES"]) == {"CPU": 2.0}
    assert env["VCTL_HOME"] == str(one.home)
    assert env["MINE"] == "captured"
    assert env["OMP_NUM_THREADS"] == "2"


ENDS = {
    "well": (["true"], 0, "SUCCEEDED", None),
    "its own code": (["sh", "-c", "exit 7"], 7, "FAILED", "NonZeroExit"),
    "the highest code": (["sh", "-c", "exit 255"], 255, "FAILED", "NonZeroExit"),
    "a signal": (["sh", "-c", "kill -SEGV $$"], 139, "FAILED", "NonZeroExit"),
    "SIGKILL from outside of vctl": (["sh", "-c", "kill -KILL $$"], 137, "FAILED", "NonZeroExit"),
    "no such program": (["no-such-program"], 127, "FAILED", "LaunchFailed"),
    "no such file": (["/no/such/file"], 127, "FAILED", "LaunchFailed"),
    "not executable": (["/etc/passwd"], 126, "FAILED", "LaunchFailed"),
    "a directory": (["/tmp"], 126, "FAILED", "LaunchFailed"),
    "an interpreter that is missing": (["./bad-script"], 127, "FAILED", "LaunchFailed"),
}


@pytest.mark.parametrize(("argv", "code", "status", "reason"), ENDS.values(), ids=list(ENDS))
def test_the_exit_code_travels(
    one: Place, argv: list[str], code: int, status: str, reason: str | None
) -> None:
    script = one.folder / "bad-script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    ran = one.run("job", "submit", "--submission-id", "j", "--", *argv)
    job = one.job("j")
    assert (ran.code, job["status"], job["state_reason"], job["exit_code"]) == (code, status, reason, code)
    if reason == "LaunchFailed":
        assert "LaunchFailed: cannot " in ran.err
        assert argv[0] in ran.err
        with one.sql() as db:
            ((took_ns,),) = db.execute(
                "SELECT ended_at - max(submitted_at, (SELECT started_at FROM terms)) FROM jobs"
            )
        assert (
            took_ns < 1e9
        )  # the figure that is promised, on the machine's own clock, once a scheduler is at work
    one.assert_sound()


@spec("16.ray")
@pytest.mark.parametrize("what", [name for name, end in ENDS.items() if end[3] == "LaunchFailed"])
def test_with_a_ray_a_start_fails_alike_and_as_foretold(one: Place, what: str) -> None:
    """It was NonZeroExit in other words, or a Ray started first. The Ray here could not start."""
    argv, code, *_ = ENDS[what]
    for name, text in (("bad-script", "#!/no/such/interpreter\n"), ("ray", "#!/bin/sh\nexit 1\n")):
        (file := one.folder / name).write_text(text)
        file.chmod(0o755)
    one.more["PATH"] = f"{one.folder}:{os.environ['PATH']}"
    foretold = json.loads(one.run("job", "submit", "--ray", "--dry-run", "-o", "json", "--", *argv).out)
    ran = one.run("job", "submit", "--ray", "--submission-id", "j", "--", *argv)
    job = one.job("j")
    assert (ran.code, job["state_reason"], job["exit_code"]) == (code, "LaunchFailed", code)
    assert foretold["launch_failure"] == {"exit_code": code, "message": job["message"]}
    assert one.run("job", "logs", "j").out == ""
    one.assert_sound()


@pytest.mark.parametrize(
    ("argv", "line"), [(["echo hi; exit 3"], "'echo hi; exit 3'"), (["cd", "/tmp"], "'cd /tmp'")]
)
@pytest.mark.parametrize("typed", ["job submit", "run"])
def test_a_shell_line_is_recognised(one: Place, typed: str, argv: list[str], line: str) -> None:
    ran = one.run(*typed.split(), "--", *argv)
    assert ran.code == 127
    assert f"Fix: run the line in a shell: vctl {typed} -- sh -c {line}\n" in ran.err


@pytest.mark.parametrize("folder", ["no-such", "/etc/passwd"], ids=["missing", "a file"])
def test_a_bad_directory_is_126(one: Place, folder: str) -> None:
    """spec 8: a launch that cannot work is recorded with the error of the system, also for a bad directory."""
    ran = one.run("job", "submit", "--submission-id", "j", "--cwd", folder, "--", "true")
    job = one.job("j")
    assert (ran.code, job["status"], job["state_reason"], job["exit_code"]) == (
        126,
        "FAILED",
        "LaunchFailed",
        126,
    )
    assert folder in job["message"]
    assert ("No such file or directory" if folder == "no-such" else "Not a directory") in job["message"]


def test_a_directory_that_went_away_is_126(one: Place) -> None:
    gone = one.folder / "gone"
    gone.mkdir()
    one.submit("--submission-id", "j", "--working-dir", str(gone), "--", "true")
    gone.rmdir()
    ran = one.run("job", "wait", "j")
    job = one.job("j")
    assert (ran.code, job["state_reason"], job["exit_code"]) == (126, "LaunchFailed", 126)
    assert "gone" in job["message"]


def test_what_a_job_writes_reaches_stdout_byte_for_byte(one: Place) -> None:
    """All bytes, more than any buffer, stdout and stderr in order, no newline at the end."""
    code = (
        "import os\n"
        "block = bytes(range(256)) * 1024\n"
        "for turn in range(8):\n"
        "    rest = block\n"
        "    while rest: rest = rest[os.write(1 + turn % 2, rest):]\n"
        "os.write(2, b'end')\n"
    )
    ran = one.run("job", "submit", "--submission-id", "j", "--", sys.executable, "-c", code)
    expected = bytes(range(256)) * 1024 * 8 + b"end"
    assert ran.stdout == expected
    assert ran.stderr == b""
    assert one.run("job", "logs", "j").stdout == expected
    assert one.run("job", "logs", "--follow", "j").stdout == expected


def test_standard_input_is_empty(one: Place) -> None:
    assert one.run("job", "submit", "--", "cat", stdin=b"not for the job").stdout == b""


def test_ctrl_c_detaches(one: Place) -> None:
    waiting = one.start("job", "submit", "--submission-id", "j", "--", "sleep", "1000")
    pid = one.running_process("j")
    interrupt(waiting)
    ran = one.finish(waiting, within_s=10)
    assert ran.code == 130
    assert ran.stdout == b""
    assert "job j goes on" in ran.err
    assert "vctl job stop j" in ran.err
    assert not is_gone(pid)
    assert one.job("j")["status"] == "RUNNING"
    stopped = one.run("job", "stop", "j")
    assert (stopped.code, is_gone(pid), one.job("j")["exit_code"]) == (0, True, 143)
    one.assert_sound()


def test_ctrl_c_while_it_still_waits(one: Place) -> None:
    one.sleeper("--num-cpus", "4", "--submission-id", "first")
    waiting = one.start("job", "submit", "--submission-id", "j", "--num-cpus", "4", "--", "true")
    eventually(lambda: one.jobs().get("j", {}).get("state_reason") == "InsufficientResources")
    interrupt(waiting)
    assert one.finish(waiting).code == 130
    assert one.job("j")["status"] == "PENDING"
    one.ok("job", "stop", "first")
    assert one.run("job", "wait", "j").code == 0


def test_ctrl_c_detaches_where_the_job_is_shown_as_data_too(one: Place) -> None:
    """spec 13: its id and the stop command are printed; with ``-o json`` on stderr, beside the object."""
    waiting = one.start("job", "submit", "--submission-id", "j", "-o", "json", "--", "sleep", "1000")
    one.running_process("j")
    interrupt(waiting)
    ran = one.finish(waiting)
    assert (ran.code, ran.json["status"]) == (130, "RUNNING")
    assert ran.err == "Detached: job j goes on. Stop it with: vctl job stop j\n"


def test_a_submit_whose_reader_ends_says_that_the_job_goes_on(one: Place) -> None:
    """``vctl run -- … | head -1`` leaves a job behind, of which only the submit knows the id."""
    waiting = one.start(
        "job", "submit", "--submission-id", "j", "--", "sh", "-c", "while echo y; do sleep 0.1; done"
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == b"y\n"
    waiting.stdout.close()
    assert waiting.stderr is not None
    assert waiting.stderr.read() == b"Detached: job j goes on. Stop it with: vctl job stop j\n"
    assert waiting.wait(10) == 141
    assert one.job("j")["status"] == "RUNNING"


@pytest.mark.parametrize("output", [(), ("-o", "json")], ids=["table", "json"])
def test_stop_on_interrupt(one: Place, output: tuple[str, ...]) -> None:
    words = ("--submission-id", "j", "--stop-on-interrupt", *output)
    waiting = one.start("job", "submit", *words, "--", "sleep", "1000")
    pid = one.running_process("j")
    interrupt(waiting)
    ran = one.finish(waiting, within_s=15)
    assert (ran.code, is_gone(pid)) == (143, True)
    job = one.job("j")
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("STOPPED", "StoppedByUser", 143)
    one.assert_sound()


def test_no_wait_prints_the_id_and_says_that_nothing_schedules(one: Place) -> None:
    """spec 13, with `autostart` off"""
    ran = one.run("job", "submit", "--no-wait", "--submission-id", "j", "--", "true", VCTL_AUTOSTART="0")
    assert (ran.code, ran.out) == (0, "j\n")
    assert "vctl daemon" in ran.err
    job = one.job("j")
    assert (job["status"], job["state_reason"], job["queue_position"]) == ("PENDING", "PendingEvaluation", 1)
    assert job["message"]


def test_the_walk_through_on_two_nodes(two: Place) -> None:
    """Proposal, first walk-through: 3 left on each parent node, vnodes apart with their labels, then 4 and 4."""
    spec = ("--virtual-cluster", SPREAD_2X1)
    waiting = two.start("job", "submit", "--submission-id", "j", *spec, "--", "sh", "-c", "sleep 1000 & wait")
    two.running_process("j")
    assert sorted(two.free().values()) == [3.0, 3.0]
    cluster = "kPrimaryClusterID##j"
    inside = two.read("nodes", "--cluster", cluster)["items"]
    assert len({node["ParentNodeID"] for node in inside}) == 2
    assert set(two.free()) == {node["ParentNodeID"] for node in inside}
    for node in inside:
        assert node["Kind"] == "fixed"
        assert node["Resources"] == {"CPU": 1.0}
        assert node["Labels"]["ray.io/vnode_id"] == node["NodeID"]
        assert node["Labels"]["ray.io/vcluster_id"] == cluster
    assert two.read("cluster-resources", "--cluster", cluster) == {"CPU": 2.0}
    assert two.read("cluster-resources")["CPU"] == 8.0
    assert two.read("available-resources")["CPU"] == 6.0
    job = two.job("j")
    assert sorted(job["node_ids"]) == sorted(two.free())
    two.ok("job", "stop", "j")
    assert two.finish(waiting).code == 143
    assert sorted(two.free().values()) == [4.0, 4.0]
    two.assert_sound()


def test_what_can_never_run_is_refused(one: Place) -> None:
    before = one.tables()
    ran = one.run("job", "submit", "--virtual-cluster", SPREAD_2X1, "--", "true")
    assert ran.code == 3
    assert "never" in ran.err
    assert "STRICT_SPREAD" in ran.err or "node" in ran.err
    assert one.tables() == before
    big = one.run("job", "submit", "-o", "json", "--num-cpus", "5", "--", "true")
    error = big.json["error"]
    assert (big.code, error["code"], error["exit_code"]) == (3, "Infeasible", 3)
    assert (error["details"]["resource"], error["details"]["largest"]) == ("CPU", 4.0)
    assert one.tables() == before


def test_with_both_nodes_full_it_waits_and_starts_by_itself(two: Place) -> None:
    two.daemon()
    for name in ("a", "b"):
        two.sleeper("--num-cpus", "4", "--submission-id", name)
        two.reach(name, "RUNNING")
    waiting = two.start(
        "job", "submit", "--submission-id", "j", "--virtual-cluster", SPREAD_2X1, "--", "echo", "ran"
    )
    eventually(lambda: two.jobs().get("j", {}).get("state_reason") == "InsufficientResources")
    assert two.job("j")["queue_position"] == 1
    assert two.job("j")["message"]
    two.ok("job", "stop", "a")
    time.sleep(0.3)
    assert two.job("j")["status"] == "PENDING"  # one node is not enough
    two.ok("job", "stop", "b")
    assert two.finish(waiting).stdout == b"ran\n"
    assert waiting.returncode == 0
    two.assert_sound()
