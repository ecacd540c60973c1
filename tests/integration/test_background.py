"""The scheduler in the background: who starts it, what it outlives, what it is set to, and when it ends (spec 13)."""

from __future__ import annotations

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.conftest import VCTL, Place, eventually, interrupt, is_gone
from tests.specification import spec
from vctl.runtime import processes

pytestmark = spec("13.background")

LIMIT_S = 1.5
LATE_S = 2.0
"""How late an end or a limit may be on record."""


def of(place: Place) -> list[list[bytes]]:
    """The commands of all processes of vctl that work on a state directory."""
    commands = [processes.command(one.pid) for one in processes.all_processes()]
    return [words for words in commands if os.fsencode(place.home) in words]


def starts(place: Place) -> int:
    with place.sql() as db:
        return int(db.execute("SELECT count(*) FROM terms").fetchone()[0])


# ---- it is started, once ----


def test_a_submit_starts_it_and_it_ends_when_idle(one: Place) -> None:
    began = time.monotonic()
    ran = one.run(
        "job", "submit", "--no-wait", "--submission-id", "j", "--", "sleep", "0.5", VCTL_IDLE_EXIT="1"
    )
    assert (ran.code, ran.out, ran.err) == (0, "j\n", "")
    assert one.reach("j", "SUCCEEDED")["exit_code"] == 0
    found = one.read("daemon", "--status")
    assert (found["running"], found["kind"]) == (True, "background")
    assert Path(f"/proc/{found['pid']}/cwd").readlink() == Path("/")
    eventually(lambda: is_gone(found["pid"]), "the idle scheduler to end", 15)
    assert time.monotonic() - began > 1.4
    eventually(lambda: of(one) == [], "the last process of vctl to end", 5)
    assert one.fork("daemon", "--status").code == 6
    assert one.fork("status").err.startswith("No scheduler is running (last seen ")
    one.assert_sound()


def test_idle_time_begins_where_the_last_job_ends(one: Place) -> None:
    """Not at the scheduler's last look: while a job runs there may be none for longer than that."""
    one.ok("job", "submit", "--no-wait", "--", "bash", "-c", "sleep 3; touch ended", VCTL_IDLE_EXIT="1.5")
    pid = one.read("daemon", "--status")["pid"]
    eventually(lambda: is_gone(pid), "the idle scheduler to end", 15)  # no command asks it anything meanwhile
    assert time.time() - (one.folder / "ended").stat().st_mtime > 1.4


def test_one_that_starts_is_seen_at_once(one: Place) -> None:
    """`daemon --status` right behind the submit that starts it names it; it does not say that none runs."""
    one.ok("job", "submit", "--no-wait", "--", "true")
    assert one.read("daemon", "--status")["kind"] == "background"


def test_many_commands_at_once_start_one(one: Place) -> None:
    running = [one.start("job", "submit", "--", "echo", str(number)) for number in range(8)]
    assert [one.finish(each).stdout for each in running] == [b"%d\n" % number for number in range(8)]
    assert starts(one) == 1


def test_where_autostart_is_off_nobody_is_started(one: Place) -> None:
    """Waiting commands exit with 6 and the fix, ``--no-wait`` says so."""
    ran = one.run("job", "submit", "--submission-id", "j", "--", "true", VCTL_AUTOSTART="0")
    assert ran.code == 6
    assert "vctl daemon" in ran.err
    assert one.jobs() == {}
    (one.folder / ".vctl.toml").write_text("autostart = false\n")
    ran = one.run("job", "submit", "--no-wait", "--submission-id", "j", "--", "true")
    assert (ran.code, ran.out) == (0, "j\n")
    assert "No scheduler is running. Start one with `vctl daemon`." in ran.err
    for words in (("job", "wait", "j"), ("job", "logs", "--follow", "j")):
        ran = one.run(*words)
        assert ran.code == 6, ran
        assert "vctl daemon" in ran.err
    assert "Start one with `vctl daemon`." in one.run("daemon", "--status").out
    one.daemon()
    assert one.run("job", "wait", "j").code == 0


@pytest.mark.parametrize("how", ["--drain", "--force"])
@spec("7.delete")
def test_where_autostart_is_off_a_refused_deletion_changes_nothing(one: Place, how: str) -> None:
    """The cluster stayed closed for jobs, and the next scheduler deleted it."""
    (one.folder / ".vctl.toml").write_text("autostart = false\n")
    for name in ("outer", "used", "empty"):
        parent = "outer" if name == "used" else "primary"
        one.ok("vc", "create", name, "--divisible", "--spec", "{}", "--parent", parent)
    assert one.run("daemon", "--background").code == 0
    one.ok("job", "submit", "--no-wait", "--submission-id", "j", "-c", "used", "--", "sleep", "60")
    one.reach("j", "RUNNING")
    one.ok("daemon", "--stop")
    for name in ("used", "outer"):  # the users of the outer one are clusters
        ran = one.run("vc", "delete", name, how)
        assert (ran.code, "vctl daemon" in ran.err) == (6, True)
        assert one.read("vc", "get", name)["state"] == "ACTIVE"
    assert [event for event in one.read("events")["items"] if event["kind"] == "job.stop_requested"] == []
    assert "The logical cluster nosuch does not exist." in one.run("vc", "delete", "nosuch", how).err
    assert one.run("vc", "delete", "empty", how).code == 0
    assert one.run("vc", "delete", "used", how, "--no-wait").code == 0
    assert one.run("daemon", "--background").code == 0
    assert one.run("job", "stop", "j").code in (0, 4)


def test_where_autostart_is_off_a_refused_stop_stops_nothing(one: Place) -> None:
    """The refused stop was carried out by the next scheduler. Who asks for a scheduler by name gets one."""
    (one.folder / ".vctl.toml").write_text("autostart = false\n")
    assert one.run("daemon", "--background").code == 0
    one.ok("job", "submit", "--no-wait", "--submission-id", "j", "--", "sleep", "60")
    one.reach("j", "RUNNING")
    one.ok("daemon", "--stop")
    ran = one.run("job", "stop", "j")
    assert ran.code == 6
    assert "vctl daemon" in ran.err
    assert [event for event in one.read("events")["items"] if event["kind"] == "job.stop_requested"] == []
    assert one.run("job", "stop", "--no-wait", "j").code == 0
    assert one.run("daemon", "--background").code == 0
    assert one.reach("j", "STOPPED")


def test_what_changes_nothing_that_waits_starts_nobody(one: Place) -> None:
    """Looking, adding nodes, holding a job and a refusal."""
    one.ok("job", "submit", "--no-wait", "--hold", "--submission-id", "held", "--", "true")
    for words in (
        "status", "job list", "job submit --dry-run -- true", "vc create t --num-cpus 1", "vc delete t",
        "job submit --num-cpus 99 -- true", "why held",
    ):  # fmt: skip
        one.fork(*words.split())
    assert "Start one with `vctl daemon`." in one.fork("status").err
    assert one.fork("daemon", "--status").code == 6
    one.ok("job", "release", "held")
    assert one.reach("held", "SUCCEEDED")


def test_a_scheduler_whose_record_is_lost_is_not_stopped(one: Place) -> None:
    one.daemon()
    (one.home / "scheduler.lock").write_text("")
    ran = one.run("daemon", "--stop")
    assert (ran.code, ran.out) == (6, "")
    assert "scheduler.lock does not say which process it is" in ran.err


@pytest.mark.parametrize("how", ["stop", "drain", "wait"])
def test_whatever_needs_it_starts_it(one: Place, how: str) -> None:
    one.ok("vc", "create", "team", "--divisible", "--spec", '{"flexible_resource_min": {"CPU": 2}}')
    job = one.sleeper("-c", "team")
    daemon = one.daemon()
    pid = one.running_process(job)
    one.kill(daemon)
    if how == "stop":
        one.ok("job", "stop", job)
    elif how == "drain":
        draining = one.start("vc", "delete", "team", "--drain")
        eventually(lambda: one.scheduler()["kind"] == "background", "a scheduler")
        os.kill(pid, signal.SIGTERM)
        assert one.finish(draining).code == 0
    else:
        waiting = one.start("job", "wait", job)
        eventually(lambda: one.scheduler()["kind"] == "background", "a scheduler")
        os.kill(pid, signal.SIGTERM)
        assert one.finish(waiting).code == 143
    assert is_gone(pid)


def test_by_hand(one: Place) -> None:
    """``vctl daemon --background`` returns when it is at work; ``--stop`` ends either kind."""
    first = one.run("daemon", "--background", "-o", "json")
    assert (first.code, first.json["kind"]) == (0, "background")
    again = one.run("daemon", "--background", "-o", "json")
    assert again.json == first.json == one.read("daemon", "--status")
    assert one.run("daemon", "--stop", "-o", "json").json["pid"] == first.json["pid"]
    assert is_gone(first.json["pid"])
    assert one.run("daemon", "--stop").code == 0
    daemon = one.daemon()
    assert one.run("daemon", "--background", "-o", "json").json["kind"] == "foreground"
    one.ok("daemon", "--stop")
    assert one.finish(daemon).code == 0
    assert one.run("daemon", "--status", "--stop").code == 2


# ---- nothing is lost when it leaves ----


def test_a_submit_while_it_decides_to_leave_is_not_lost(one: Place) -> None:
    """It leaves after 20 ms without work here: submits meet every moment of its leaving."""
    chance = random.Random(7)
    names = []
    for number in range(25):
        names.append(f"j{number}")
        one.ok(
            "job", "submit", "--no-wait", "--submission-id", names[-1], "--", "true", VCTL_IDLE_EXIT="0.02"
        )  # fmt: skip
        time.sleep(chance.uniform(0, 0.25))
    for name in names:
        one.reach(name, "SUCCEEDED", within_s=20)
    one.assert_sound()


# ---- what it is set to ----


def test_it_has_the_settings_of_its_starter_and_nothing_else_of_it(one: Place) -> None:
    (one.folder / ".vctl.toml").write_text("maintenance_interval = 7\nkill_grace = 0.5\n")
    secret = {"MY_SECRET": "x", "VCTL_CLUSTER": "primary", "PYTHONSTARTUP": "/x"}
    one.ok("job", "submit", "--submission-id", "first", "--", "true", **secret)
    environment = dict(
        line.split("=", 1)
        for line in Path(f"/proc/{one.scheduler()['pid']}/environ").read_text().split("\0")
        if "=" in line
    )
    ours = {name: value for name, value in environment.items() if name.startswith("VCTL_")}
    assert ours == {
        "VCTL_LOCAL_NODE": "0", "VCTL_IDLE_EXIT": "10", "VCTL_MAINTENANCE_INTERVAL": "7", "VCTL_KILL_GRACE": "0.5",
    }  # fmt: skip
    assert not environment.keys() & {"MY_SECRET", "PYTHONSTARTUP", "PWD", "VCTL_CLUSTER"}
    reported = one.ok("job", "submit", "--", "sh", "-c", "env; pwd", SECOND="mine")
    assert "SECOND=mine" in reported
    assert "MY_SECRET" not in reported
    assert reported.rstrip().endswith(str(one.folder))


def test_one_that_cannot_live_is_reported_and_not_started_for_ever(one: Place) -> None:
    """Its last words are in the error of the command that waits."""
    if (one.home / "logs").exists():
        (one.home / "logs").rmdir()
    (one.home / "logs").touch()
    one.submit("--submission-id", "j", "--", "true")
    ran = one.run("job", "wait", "j", "-o", "json")
    assert ran.code == 6, ran
    assert "logs" in ran.json["error"]["message"]
    assert "daemon.log" in ran.json["error"]["hint"]
    assert ran.seconds < 15
    (one.home / "logs").unlink()
    missing = one.run("job", "wait", "j", VCTL_PROVIDER="@/no/such/file")
    assert "ended at its start: provider: cannot read /no/such/file: No such file" in missing.err, missing
    assert one.run("job", "wait", "j").code == 0


def test_a_provider_is_asked_whether_or_not_a_scheduler_ran_before(place: Place) -> None:
    """spec 9: the first submit is judged by what could be made, by the settings of the scheduler that it starts."""
    templates = {"8c": {"resources": {"CPU": 8}, "max": 1}}
    place.more["VCTL_PROVIDER"] = json.dumps(
        {"kind": "simulated", "idle_timeout": 0.5, "templates": templates}
    )
    refused = place.run("job", "submit", "--num-cpus", "9", "--", "true")
    assert refused.code == 3, refused
    first = place.run("job", "submit", "--num-cpus", "8", "--", "echo", "first")
    assert (first.code, first.out) == (0, "first\n"), first
    assert place.run("job", "submit", "--num-cpus", "9", "--", "true").err == refused.err
    assert place.run("job", "submit", "--num-cpus", "8", "--", "echo", "second").out == "second\n"


# ---- what it outlives ----


def hang_up(place: Place, moment: float) -> None:
    """A submit on a terminal that is closed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.folder)
        os.execve(VCTL[0], [*VCTL, *SUBMIT], place.environment({}))
    time.sleep(moment)
    os.close(terminal)
    os.waitpid(pid, 0)


def control_c(place: Place, moment: float) -> None:
    running = place.start(*SUBMIT)
    time.sleep(moment)
    interrupt(running)
    place.finish(running)


def kill(place: Place, moment: float) -> None:
    running = place.start(*SUBMIT)
    time.sleep(moment)
    place.kill(running)


SUBMIT = ("job", "submit", "--submission-id", "j", "--time-limit", str(LIMIT_S), "--", "sleep", "1000")
WAYS = {"Ctrl-C": control_c, "kill -9": kill, "a closed terminal": hang_up}
MOMENTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.3)


def check_whatever_happens_to_the_submit(place: Place, way: str, moment: float) -> None:
    WAYS[way](place, moment)
    if "j" not in place.jobs():
        return  # it had not been submitted yet, and nothing was promised
    job = place.reach("j", "FAILED", within_s=LIMIT_S + LATE_S + 10)
    assert (job["state_reason"], job["exit_code"]) == ("TimeLimit", 124)
    with place.sql() as db:
        began, ended = db.execute("SELECT started_at, ended_at FROM jobs").fetchone()
    assert LIMIT_S <= (ended - began) / 1e9 <= LIMIT_S + LATE_S
    place.assert_sound()


@pytest.mark.parametrize(("way", "moment"), [("Ctrl-C", 0.4), ("kill -9", 0.2), ("a closed terminal", 0.7)])
def test_the_limit_holds_whatever_happens_to_the_submit(one: Place, way: str, moment: float) -> None:
    """spec 13: ends are recorded and limits enforced whatever happens to the terminal. All moments: below, slow."""
    check_whatever_happens_to_the_submit(one, way, moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", WAYS)
def test_at_every_moment(one: Place, way: str, moment: float) -> None:
    """spec 13; and after the idle time nothing of vctl is left."""
    one.more["VCTL_IDLE_EXIT"] = "1"
    check_whatever_happens_to_the_submit(one, way, moment)
    eventually(lambda: of(one) == [], "the last process of vctl to end", 15)


def test_it_is_no_part_of_the_job_that_started_it(one: Place) -> None:
    """A job whose scheduler was killed submits another one and ends; what it started for that goes on."""
    script = (
        "while [ -e wait ]; do sleep 0.05; done; "
        f"{' '.join(VCTL)} job submit --no-wait --submission-id inner -- sleep 1; echo submitted"
    )
    (one.folder / "wait").touch()
    daemon = one.daemon()
    one.ok(
        "job", "submit", "--no-wait", "--submission-id", "outer", "--num-cpus", "1", "--", "sh", "-c", script
    )  # fmt: skip
    one.running_process("outer")
    one.kill(daemon)
    (one.folder / "wait").unlink()
    assert one.reach("outer", "SUCCEEDED")["exit_code"] == 0
    scheduler = one.scheduler()
    assert scheduler["kind"] == "background"
    assert one.reach("inner", "SUCCEEDED")
    assert one.scheduler() == scheduler
    assert starts(one) == 2
    one.assert_sound()


def test_a_program_does_not_get_a_child_it_does_not_know(one: Place) -> None:
    """The Python API starts one too (spec 13), and the program's children are its own."""
    code = (
        "import os, vctl\n"
        "job = vctl.connect().submit(['sh', '-c', 'exit 4'])\n"
        "print(job.wait(timeout_s=40))\n"
        "try:\n    os.wait()\nexcept ChildProcessError:\n    print('no child')\n"
    )
    done = subprocess.run(
        [VCTL[0], "-c", code], env=one.environment({}), cwd=one.folder, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "4\nno child\n", done
    assert one.scheduler()["kind"] == "background"


# ---- the directory under it ----


@pytest.mark.parametrize("kind", ["background", "foreground"])
def test_it_ends_when_its_directory_is_gone(one: Place, kind: str) -> None:
    """spec 13: within ten seconds."""
    daemon = one.daemon() if kind == "foreground" else None
    one.ok("job", "submit", "--", "true")
    pid = one.scheduler()["pid"]
    shutil.rmtree(one.home)
    eventually(lambda: is_gone(pid), "the scheduler without a directory to end", 10)
    eventually(lambda: of(one) == [], "the last process of vctl to end", 5)
    assert not one.home.exists()
    if daemon is not None:
        assert one.finish(daemon).code == 1
        assert "was removed" in (one.folder / "daemon.log").read_text()


def test_a_new_directory_in_its_place_gets_a_new_one(one: Place) -> None:
    one.ok("job", "submit", "--", "true")
    pid = one.scheduler()["pid"]
    shutil.rmtree(one.home)
    one.add_nodes(1)
    assert one.ok("job", "submit", "--", "echo", "here") == "here\n"
    assert one.scheduler()["pid"] != pid
    eventually(lambda: is_gone(pid), "the scheduler without a directory to end", 10)
    one.assert_sound()


@pytest.mark.parametrize("name", ["records", "logs", "stops", "changes", "scheduler.beat"])
def test_what_is_removed_under_it_is_made_again(one: Place, name: str) -> None:
    """Jobs submitted afterwards run, within ten seconds."""
    one.daemon()
    one.ok("job", "submit", "--", "true")
    path = one.home / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    ran = one.run("job", "submit", "--submission-id", "j", "--", "echo", "again")
    assert (ran.code, ran.out) == (0, "again\n")
    assert ran.seconds < 12
    eventually(path.exists, f"{name} to be there again", 10)
    one.ok("job", "stop", one.sleeper())


@pytest.mark.parametrize("name", ["cluster.db", "scheduler.lock"])
def test_without_its_database_or_lock_it_ends_and_says_so(one: Place, name: str) -> None:
    daemon = one.daemon()
    one.ok("job", "submit", "--", "true")
    (one.home / name).unlink()
    ran = one.finish(daemon, within_s=10)
    assert ran.code == 1
    assert "was removed" in (one.folder / "daemon.log").read_text()


def test_a_file_where_logs_should_be_is_named(one: Place) -> None:
    daemon = one.daemon()
    shutil.rmtree(one.home / "logs")
    (one.home / "logs").touch()
    assert one.finish(daemon, within_s=10).code != 0
    said = (one.folder / "daemon.log").read_text()
    assert "logs" in said
    assert "Traceback" not in said
    ran = one.run("job", "submit", "--", "true")
    assert ran.code == 1
    assert ran.err.startswith(f"Error: {one.home / 'logs'} is a file\n"), ran
    (one.home / "logs").unlink()
