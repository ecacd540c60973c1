"""``vctl gpus``: devices with who has booked them, beside what is measured there. The figures are recorded ones."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, python
from tests.specification import spec

pytestmark = spec("19.devices")

GIB = 1 << 30
Record = Callable[..., None]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Write the processes of each device, as ``(pid, bytes)``: two devices of 80 GiB."""
    file = tmp_path / "devices.json"
    monkeypatch.setenv("VCTL_DEVICES_FILE", str(file))
    monkeypatch.setenv("VCTL_LOCAL_NODE", "1")

    def write(*held: list[tuple[int, int]], **more: object) -> None:
        devices = [
            {
                "uuid": f"GPU-{at}", "name": "NVIDIA H100 80GB HBM3", "memory_total": 80 * GIB, "utilization": 10 * at,
                "processes": [{"pid": pid, "memory": memory, **more} for pid, memory in some],
            }
            for at, some in enumerate(held)
        ]  # fmt: skip
        file.write_text(json.dumps({"devices": devices}))

    write([], [])
    return write


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that nobody booked a device for."""
    child = subprocess.Popen(["sleep", "60"])
    yield child.pid
    child.kill()
    child.wait()


def test_a_stale_process_that_nobody_booked_is_seen(cli: Cli, record: Record, stranger: int) -> None:
    """gflow#207: a process of 642 MiB at 0 % pinned one of two devices for two days, because nobody saw it."""
    record([(stranger, 642 << 20)], [])
    one, two = cli("gpus -o json").json["items"]
    assert (one["state"], one["memory_used"], one["booked"]) == ("FOREIGN", 642 << 20, 0)
    (process,) = one["processes"]
    me = pwd.getpwuid(os.getuid()).pw_name
    assert (process["pid"], process["kind"], process["user"], process["command"]) == (
        stranger, "foreign", me, "sleep 60",
    )  # fmt: skip
    assert process["started_at"] is not None
    assert (two["state"], two["processes"]) == ("FREE", [])
    shown = cli("gpus").out
    assert f"pid {stranger}" in shown
    assert "not booked: sleep 60" in shown
    assert "recorded" in shown  # it never looks as if it were measured


def test_devices_show_jobs_with_their_processes(cli: Cli, record: Record) -> None:
    names = {"whole": "1", "half": "0.5", "quarter": "0.25"}
    for name, share in names.items():
        line = ["run", "-d", "-g", share, "--submission-id", name, "--", "sleep", "60"]
        ran = python("-m", "vctl", *line, home=cli.home)
        assert ran.returncode == 0, ran.stderr
    try:
        give_up, of = time.monotonic() + 40, dict[str, int]()
        while of.keys() != names.keys():
            assert time.monotonic() < give_up
            time.sleep(0.05)
            with closing(sqlite3.connect(cli.home / "cluster.db")) as db:
                of = dict(
                    db.execute(
                        "SELECT submission_id, pid FROM runs JOIN jobs USING (job_id) WHERE pid IS NOT NULL"
                    )
                )
        record([(of["whole"], 60 * GIB)], [(of["half"], 5 * GIB), (of["quarter"], GIB)])
        one, two = cli("gpus -o json").json["items"]
        assert (one["state"], one["booked"], one["holders"][0]["submission_id"]) == ("BOOKED", 1, "whole")
        assert (one["processes"][0]["kind"], one["processes"][0]["job_id"]) == ("job", 1)
        assert two["booked"] == 0.75
        assert [(h["submission_id"], h["share"]) for h in two["holders"]] == [
            ("half", 0.5),
            ("quarter", 0.25),
        ]
        assert [process["job_id"] for process in two["processes"]] == [2, 3]
        assert one["holders"][0]["user"] == pwd.getpwuid(os.getuid()).pw_name
        lines = cli("gpus --no-header").out.splitlines()
        assert "whole in primary" in lines[0]
        assert f"pid {of['whole']}" in lines[1]
    finally:
        for name in names:
            python("-m", "vctl", "stop", name, home=cli.home)
        assert cli("daemon --stop").code in (0, 6)


def test_what_lies_in_a_cluster_names_the_cluster(cli: Cli) -> None:
    cli("node", "add", "box", "--simulated", "--resources", '{"CPU": 4, "GPU": 2}')
    cli(
        "vc",
        "create",
        "lab",
        "--divisible",
        "--spec",
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1}}]}]}',
    )
    cli("vc", "create", "team", "--parent", "lab", "--spec",
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1}}]}]}')  # fmt: skip
    one, two = cli("gpus -o json").json["items"]
    assert (one["cluster_id"], one["state"], one["holders"][0]["cluster_id"]) == ("team", "FREE", "team")
    assert (two["cluster_id"], two["holders"], two["measured"], two["memory_used"]) == (None, [], None, None)
    assert "in team, not used by a job" in cli("gpus").out


def test_a_list_like_any_other(cli: Cli) -> None:
    cli("node", "add", "box", "--simulated", "--resources", '{"CPU": 4, "GPU": 3}')
    assert cli("gpus -o name").out.split() == ["box/0", "box/1", "box/2"]
    assert cli("gpus -o name --sort index:desc --limit 1").out == "box/2\n"
    assert "GPU_ID" in cli("gpus --columns gpu_id,state").out
    assert cli("gpus --sort booked").code == 0
    assert cli("gpus -f state=foreign").out == "no GPU matches the filters\n"
    ran = cli("gpus -f stat=FREE")
    assert (ran.code, "state" in ran.err) == (2, True)


def test_without_devices_the_command_says_where_to_look(cli: Cli) -> None:
    cli("node", "add", "box", "--simulated", "--resources", '{"CPU": 4}')
    ran = cli("gpus")
    assert (ran.code, "vctl doctor" in ran.out) == (0, True)


def test_a_recording_that_cannot_be_read_is_told(
    cli: Cli, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run --no-wait -g 1 -- true")  # registers this machine
    monkeypatch.setenv("VCTL_DEVICES_FILE", "/nowhere/devices.json")
    ran = cli("gpus")
    assert "cannot be measured: /nowhere/devices.json: No such file" in ran.out
    assert [gpu["state"] for gpu in cli("gpus -o json").json["items"]] == ["FREE", "FREE"]


def test_of_a_shared_service_only_the_own_command_lines_are_shown(
    cli: Cli, record: Record, stranger: int
) -> None:
    """Everybody sees who uses what; what it does, only its user and admins see."""
    from vctl.core.identity import Identity
    from vctl.ops import gpus
    from vctl.store.store import Store

    cli("run --no-wait -g 1 -- true")  # registers this machine
    record([(stranger, GIB)], [])
    with Store.open(cli.home) as store:
        for identity, shown in (
            (None, "sleep 60"),
            (Identity(os.getuid(), "me"), "sleep 60"),
            (Identity(os.getuid() + 1, "other"), None),
            (Identity(os.getuid() + 1, "admin", is_admin=True), "sleep 60"),
        ):
            store.identity = identity
            (process,) = gpus.list_gpus(store)[0]["processes"]
            assert (process["pid"], process["command"]) == (stranger, shown)
            assert process["user"] is not None
