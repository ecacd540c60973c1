"""The state itself: rows that cannot be read, copies, schemas of other versions, and the order of the queue."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from tests.contents import spoil
from tests.integration.conftest import SPREAD_2X1, Place, eventually, is_gone
from tests.specification import spec
from vctl.ops import background
from vctl.store.schema import FIRST, VERSION

pytestmark = spec("12.odd-rows", "17.migration")

SPOILED = {
    "a node": ("UPDATE nodes SET amounts = 'junk' WHERE node_id = (SELECT max(node_id) FROM nodes)", "nodes"),
    "a cluster": ("UPDATE clusters SET spec = '{' WHERE job_id IS NOT NULL", "clusters"),
    "a virtual node": ("UPDATE vnodes SET cores = '[' WHERE rank = 1", "vnodes"),
    "a virtual node outside of its parent": (
        "UPDATE vnodes SET amounts = '{\"CPU\":990000}' WHERE rank = 1",
        "vnodes",
    ),
    "a run": ("UPDATE runs SET instances = 'x'", "runs"),
    "a waiting job": (("spec", "x", "status = 'PENDING'"), "jobs"),
    "the entry of a waiting job": (("entry", "[", "status = 'PENDING'"), "jobs"),
    "a virtual node of nobody": ("UPDATE vnodes SET cluster_id = 'gone' WHERE rank = 1", "vnodes"),
}


@pytest.mark.parametrize(("damage", "table"), SPOILED.values(), ids=list(SPOILED))
def test_a_row_that_cannot_be_read_is_set_aside(
    two: Place, damage: str | tuple[str, str, str], table: str
) -> None:
    """It is reported, it stops nobody, and what else is there goes on."""
    daemon = two.daemon()
    two.sleeper("--submission-id", "gang", "--virtual-cluster", SPREAD_2X1)
    two.running_process("gang")
    two.sleeper("--submission-id", "waits", "--num-cpus", "3.5", "--nodes", "2")
    two.kill(daemon)
    with two.sql() as db:
        if isinstance(damage, str):
            db.execute(damage)
        else:
            spoil(db, *damage)
    daemon = two.daemon()
    assert two.ok("job", "submit", "--num-cpus", "0.5", "--", "echo", "still works") == "still works\n"
    assert daemon.poll() is None
    for words in ("status", "job list -a", "nodes", "vc list", "vc tree", "events", "node list"):
        assert two.fork(*words.split()).code == 0, words
    doctor = two.run("doctor", "-o", "json")
    assert doctor.code == 1
    assert any(f"a row of {table}" in finding for finding in doctor.json["findings"]), doctor.out
    with two.sql() as db:
        rows = db.execute("SELECT source, content FROM set_aside").fetchall()
    assert table in {row[0] for row in rows}
    assert all(row[1].startswith("{") for row in rows)
    assert "Traceback" not in (two.folder / "daemon.log").read_text()
    two.term(daemon)
    again = two.read("replay")
    assert again["changes"] == 0, again


def test_a_row_spoiled_under_a_running_daemon(one: Place) -> None:
    daemon = one.daemon()
    one.sleeper("--submission-id", "holder", "--num-cpus", "4")
    one.reach("holder", "RUNNING")
    one.submit("--submission-id", "bad", "--num-cpus", "4", "--", "true")
    one.submit("--submission-id", "good", "--num-cpus", "4", "--", "true")
    with one.sql() as db:
        spoil(db, "spec", "x", "submission_id = 'bad'")
        db.execute("INSERT INTO changes (at) VALUES (1)")  # who follows reads the tables again
    one.ok("job", "stop", "holder")
    assert one.run("job", "wait", "good").code == 0
    assert daemon.poll() is None
    assert one.run("doctor").code == 1


def test_a_second_replay_changes_nothing(two: Place) -> None:
    daemon = two.daemon()
    two.sleeper("--submission-id", "gang", "--virtual-cluster", SPREAD_2X1)
    pid = two.running_process("gang")
    assert two.run("replay").code == 5
    assert two.read("replay", "--dry-run")["changes"] == 0
    two.kill(daemon)
    before = two.tables()
    assert two.read("replay")["changes"] == 0
    after = two.tables()
    assert {name: rows for name, rows in after.items() if name != "terms"} == {
        name: rows for name, rows in before.items() if name != "terms"
    }
    assert not is_gone(pid)


def test_backup_and_restore_while_jobs_run(one: Place) -> None:
    daemon = one.daemon()
    one.ok("job", "submit", "--submission-id", "done", "--", "true")
    one.sleeper("--submission-id", "stays")
    pid = one.running_process("stays")
    copy = one.folder / "copy.db"
    one.ok("backup", str(copy))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert one.run("backup", str(copy)).code == 5
    one.ok("job", "submit", "--submission-id", "later", "--", "true")
    one.sleeper("--submission-id", "late")
    late = one.running_process("late")
    refused = one.run("restore", str(copy))
    assert refused.code == 5
    assert "daemon" in refused.err
    one.term(daemon)
    assert f"the state before is kept in {one.home}/cluster.db.before-restore" in one.ok("restore", str(copy))
    assert set(one.jobs()) == {"done", "stays"}
    assert (one.home / "cluster.db.before-restore").exists()
    assert stat.S_IMODE((one.home / "cluster.db").stat().st_mode) == 0o600
    one.daemon()
    assert one.job("stays")["status"] == "RUNNING"
    assert one.running_process("stays") == pid
    assert not is_gone(pid)
    eventually(lambda: is_gone(late), "the process that no row knows to end", 15)
    one.ok("job", "stop", "stays")
    one.assert_sound()


def test_restore_into_an_empty_directory(one: Place, tmp_path: Path) -> None:
    one.ok("job", "submit", "--submission-id", "done", "--", "true")
    copy = one.folder / "copy.db"
    one.ok("backup", str(copy))
    other = Place(tmp_path / "other", tmp_path / "other-work")
    other.ok("restore", str(copy))
    assert set(other.jobs()) == {"done"}
    assert stat.S_IMODE(other.home.stat().st_mode) == 0o700
    assert other.ok("job", "submit", "--", "echo", "here") == "here\n"
    other.assert_sound()


def test_a_damaged_backup_is_refused(one: Place) -> None:
    one.ok("job", "submit", "--", "true")
    copy = one.folder / "copy.db"
    one.ok("backup", str(copy))
    whole = copy.read_bytes()
    background.stop(one.home)  # else it may leave, and write that, while we compare
    before = one.tables()
    for damaged in (b"", whole[:5000], b"x" * len(whole), whole[:4096] + b"\xff" * 8192 + whole[12288:]):
        copy.write_bytes(damaged)
        ran = one.run("restore", str(copy))
        assert ran.code == 1, ran
        assert str(copy) in ran.err
    assert one.tables() == before


def test_a_newer_schema_is_refused(one: Place) -> None:
    with one.sql() as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    for words in ("status", "job submit --no-wait -- true", "daemon", "doctor"):
        ran = one.fork(*words.split())
        assert ran.code == 5, (words, ran)
        assert "newer" in ran.err
        assert "Traceback" not in ran.err
    with one.sql() as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION + 1,)


def test_a_schema_of_another_build_is_not_touched_under_a_running_scheduler(one: Place) -> None:
    daemon = one.daemon()
    one.ok("job", "submit", "--submission-id", "j", "--", "true")
    for version, words in ((FIRST - 1, "that build"), (-1, "stop the running")):
        with one.sql() as db:
            db.execute(f"PRAGMA user_version = {version}")
        ran = one.run("status")
        assert ran.code == 5
        assert words in ran.err
    with one.sql() as db:
        db.execute(f"PRAGMA user_version = {VERSION}")
    one.kill(daemon)
    assert one.run("status").code == 0
    assert one.job("j")["status"] == "SUCCEEDED"


def test_a_file_that_is_no_database(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    (place.home / "cluster.db").write_bytes(b"not a database, and long enough to be looked at" * 100)
    ran = place.run("status")
    assert ran.code == 1
    assert "vctl restore" in ran.err
    assert "Traceback" not in ran.err


def test_nobody_else_may_look(one: Place) -> None:
    one.daemon()
    one.ok("job", "submit", "--", "true")
    assert stat.S_IMODE(one.home.stat().st_mode) == 0o700
    for path in one.home.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    one.home.chmod(0o755)
    ran = one.run("doctor")
    assert (ran.code, "mode 755" in ran.out) == (1, True)


def test_priority_order_and_arrival(one: Place) -> None:
    """One CPU at a time on one node: higher first, equals in the order of their arrival; positions say so."""
    one.sleeper("--submission-id", "holder", "--num-cpus", "4")
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 10), ("e", 5), ("f", -1)):
        one.submit("--submission-id", name, "--priority", str(priority), "--num-cpus", "4", "--",
                   "sh", "-c", f"echo {name} >> order")  # fmt: skip
    jobs = one.jobs()
    assert {name: jobs[name]["queue_position"] for name in "dbeacf"} == dict(
        zip("dbeacf", (1, 2, 3, 5, 6, 7), strict=True)
    )
    assert jobs["holder"]["queue_position"] == 4
    one.ok("job", "stop", "holder")
    one.daemon()
    one.run("job", "wait", "f")
    assert (one.folder / "order").read_text().split() == list("dbeacf")
    head = one.read("status")["queue"]["head"]
    assert head == []
    one.assert_sound()


def test_reasons_and_positions_of_those_who_wait(one: Place) -> None:
    one.daemon()
    one.sleeper("--submission-id", "holder", "--num-cpus", "3")
    one.reach("holder", "RUNNING")
    one.submit("--submission-id", "big", "--num-cpus", "4", "--", "true")
    one.submit("--submission-id", "bigger", "--num-cpus", "2", "--", "true")
    eventually(lambda: one.job("bigger")["state_reason"] == "InsufficientResources")
    big = one.job("big")
    assert (big["status"], big["state_reason"], big["queue_position"]) == (
        "PENDING",
        "InsufficientResources",
        1,
    )
    assert "4 CPU" in big["message"]
    assert one.job("bigger")["queue_position"] == 2
    # what fits passes those that do not (best effort)
    assert one.ok("job", "submit", "--num-cpus", "1", "--", "echo", "passed") == "passed\n"
    assert [job["submission_id"] for job in one.read("status")["queue"]["head"]] == ["big", "bigger"]
    # a node that joins is looked at again
    one.add_nodes(1)
    assert one.run("job", "wait", "big", "bigger").code == 0


def test_a_node_that_grows_takes_what_waited(one: Place) -> None:
    one.daemon()
    one.sleeper("--submission-id", "holder", "--num-cpus", "4")
    one.reach("holder", "RUNNING")
    one.submit("--submission-id", "j", "--num-cpus", "4", "--", "true")
    (node,) = one.read("node", "list")["items"]
    one.ok("node", "update", node["node_id"], "--resources", '{"CPU": 8}')
    assert one.run("job", "wait", "j").code == 0
    one.ok("node", "update", node["node_id"], "--resources", '{"CPU": 2}')  # below what is used
    doctor = one.run("doctor")
    one.submit("--submission-id", "k", "--num-cpus", "2", "--", "true")
    time.sleep(0.3)
    assert one.job("k")["status"] == "PENDING"
    one.ok("job", "stop", "holder")
    assert one.run("job", "wait", "k").code == 0
    assert doctor.code in (0, 1)  # held of less, while it lasts: a finding until the use has ended
    one.assert_sound()


def test_many_jobs_share_an_indivisible_cluster(two: Place) -> None:
    two.daemon()
    two.ok("vc", "create", "team", "--replica-sets", '{"4c8g": 1}')
    names = [
        two.submit("-c", "team", "--", "sh", "-c", "echo $VCTL_CLUSTER_ID $VCTL_VNODE_ID") for _ in range(6)
    ]
    assert two.run("job", "wait", *names).code == 0
    assert {two.ok("job", "logs", name) for name in names} == {"team team/0\n"}
    held = two.sleeper("-c", "team")
    two.reach(held, "RUNNING")
    refused = two.run("vc", "delete", "team")
    assert refused.code == 5
    assert held in refused.err
    assert two.read("cluster-resources")["CPU"] == 4.0
    two.ok("vc", "delete", "team", "--force")
    eventually(lambda: two.run("vc", "get", "team").code == 4, "the cluster to go", 20)
    assert two.read("cluster-resources")["CPU"] == 8.0
    two.assert_sound()


def test_the_proof_shares_no_code_with_what_it_proves(one: Place) -> None:
    """Damage by hand is found."""
    daemon = one.daemon()
    one.sleeper("--submission-id", "j", "--num-cpus", "2")
    one.running_process("j")
    one.kill(daemon)
    tables, saved = one.home / "cluster.db", one.folder / "saved.db"
    for damage in (
        "UPDATE vnodes SET amounts = '{\"CPU\": 50000}'",
        "UPDATE vnodes SET cores = '[0, 9]'",
        "UPDATE vnodes SET parent_vnode_id = 'nobody'",
        "DELETE FROM clusters",
        "DELETE FROM runs",
        "UPDATE jobs SET status = 'SUCCEEDED'",
        "DELETE FROM jobs",
    ):
        with one.sql() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(tables, saved)
        with one.sql() as db:
            db.execute(damage)
        ran = one.run("doctor", "--prove", "-o", "json")
        assert (ran.code, bool(ran.json["findings"])) == (1, True), damage
        for beside in ("-wal", "-shm"):
            Path(f"{tables}{beside}").unlink(missing_ok=True)
        shutil.copy(saved, tables)
    assert one.run("doctor").code == 0
    os.kill(one.running_process("j"), 9)


def test_a_job_that_writes_into_the_records_of_runs_ends_as_it_ends(one: Place) -> None:
    """Spec 17: an end counts only from the supervisor of a run; what cannot be read ends no scheduler."""
    daemon = one.daemon()
    sleeper = one.sleeper("--num-cpus", "1")
    one.running_process(sleeper)
    script = (
        f"cd {one.home}/records && for file in *; do head -c 400 /dev/urandom >> $file; head -n 1 $file >> $file;"
        " printf 'E %s 0 0 0 0 1 1 1 1 -\\n' $VCTL_RUN_ID >> $file; done;"
        " mkdir 99.exit; head -c 100 /dev/urandom > stray; exit 3"
    )
    forger = one.submit("--num-cpus", "1", "--", "sh", "-c", script)
    assert one.reach(forger, "SUCCEEDED", "FAILED")["exit_code"] == 3
    assert one.ok("job", "submit", "--num-cpus", "1", "--", "echo", "next") == "next\n"
    assert one.job(sleeper)["status"] == "RUNNING"
    assert daemon.poll() is None
    assert one.run("doctor").code == 0


@pytest.mark.parametrize("kind", ["--divisible", "--indivisible"])
def test_a_job_of_no_cpu_starts_in_an_empty_elastic_cluster(one: Place, kind: str) -> None:
    """Spec 9: a cluster without virtual nodes gets one for a job that needs nothing."""
    one.daemon()
    one.ok("vc", "create", "e", kind, "--spec", "{}")
    words = ("-c", "e", "--entrypoint-num-cpus", "0")
    assert one.ok("job", "submit", *words, "--", "echo", "here") == "here\n"
    if kind == "--divisible":
        flexible = ("--virtual-cluster", "{}")
        assert one.ok("job", "submit", *words, *flexible, "--", "echo", "there") == "there\n"
