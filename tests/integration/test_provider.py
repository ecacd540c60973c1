"""A provider's commands under a real daemon: killed while they work, and a machine is neither lost nor made twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.daemon.test_provider import Cloud
from tests.integration.conftest import ROOT, Place, eventually
from tests.specification import spec

pytestmark = spec("9.provider")

STAGES = ("up-before", "up-after", "down-before", "down-after")


def test_a_daemon_that_is_killed_while_its_provider_works_neither_leaks_nor_doubles_a_machine(
    place: Place, tmp_path: Path
) -> None:
    """Spec 9: the command itself kills the daemon (-9) before and after each thing it does, and works on for a while.

    The same ``request_id`` is asked again, never two at a time: the command makes a machine where it sees none, slowly.
    """
    cloud = Cloud(tmp_path / "cloud", pause=0.3)
    for stage in STAGES:
        (cloud.folder / f"kill-{stage}").touch()
    setting = {**cloud.setting, "templates": {"2c": {"resources": {"CPU": 2}, "max": 3}}, "idle_timeout": 0.2}
    env = {"VCTL_PROVIDER": json.dumps(setting)}
    daemon = place.daemon(**env)
    place.submit("--submission-id", "j", "--num-cpus", "2", "--", "true")
    for _ in STAGES:
        assert daemon.wait(60) == -signal.SIGKILL
        daemon = place.start("daemon", **env)
    eventually(lambda: place.job("j")["status"] == "SUCCEEDED")
    eventually(lambda: not place.read("node", "list")["items"])
    assert cloud.machines() == []
    assert len(cloud.ended()) == 1
    up, down = ({call["request_id"] for call in cloud.calls(action)} for action in ("up", "down"))
    assert (len(up), len(down)) == (1, 1)
    assert len(cloud.calls("up")) == len(cloud.calls("down")) == 3
    place.assert_sound()
    assert (
        str(ROOT / "vctl") not in (place.folder / "daemon.log").read_text()
    )  # no traceback but the command's own


def test_a_command_that_leaves_a_child_on_its_output_does_not_stop_the_scheduler(
    place: Place, tmp_path: Path
) -> None:
    """Spec 9: other jobs start while a background child of ``up`` holds its standard output."""
    up = tmp_path / "up"
    up.write_text("#!/bin/sh\nsleep 20 &\n")
    up.chmod(0o755)
    setting = {
        "kind": "command", "up": [str(up)], "down": ["/bin/true"],
        "templates": {"2c": {"resources": {"CPU": 2}, "max": 1}},
    }  # fmt: skip
    place.add_nodes(1, '{"CPU": 1}')
    place.daemon(VCTL_PROVIDER=json.dumps(setting))
    place.submit("--submission-id", "big", "--num-cpus", "2", "--", "true")
    place.reach("big", "SUCCEEDED", within_s=15)
    place.submit("--submission-id", "small", "--", "true")
    place.reach("small", "SUCCEEDED", within_s=15)
