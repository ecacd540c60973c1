"""Node providers make nodes when something waits for them and let go of those that are idle."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from tests.daemon.conftest import Life
from vctl.daemon.provider import Provider, ProviderSpec, parse_provider
from vctl.errors import BadSpec, Infeasible
from vctl.ops import nodes

TEMPLATES = {"2c": {"resources": {"CPU": 2}, "max": 2}, "8c": {"resources": {"CPU": 8}, "max": 1}}
FOUR = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}, {"resources": {"CPU": 2}}]}]}
EIGHT = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 8}}]}]}


def begin(life: Life, **setting: object) -> None:
    document = {"kind": "simulated", "templates": TEMPLATES, "idle_timeout": 0.2, **setting}
    spec = parse_provider(json.dumps(document))
    scheduler = life.start()
    scheduler.provider = Provider(scheduler.store, spec)
    scheduler.provider.announce()


def made(life: Life) -> list[str]:
    return sorted(node["template_id"] for node in nodes.list_nodes(life.store))


def test_a_gang_gets_the_fewest_nodes_of_the_smallest_template_that_fits_it(life: Life) -> None:
    begin(life)
    life.run("train", spec=FOUR)
    assert made(life) == ["2c", "2c"]
    assert life.job("train")["status"] == "RUNNING"


def test_a_job_that_only_the_larger_template_fits_gets_that(life: Life) -> None:
    begin(life)
    life.run("train", spec=EIGHT)
    assert made(life) == ["8c"]


def test_idle_nodes_are_released_and_used_ones_kept(life: Life) -> None:
    begin(life)
    life.run("train", spec=FOUR)
    life.run("big", spec=EIGHT)
    life.end("train")
    life.until(lambda: made(life) == ["8c"])
    assert life.job("big")["status"] == "RUNNING"


def test_nodes_take_their_time_to_boot(life: Life) -> None:
    begin(life, boot_time=0.3)
    life.submit("train", spec=EIGHT)
    life.turn()
    assert made(life) == []
    assert life.scheduler is not None
    assert 0 < life.scheduler.sleep_s() <= 0.3
    life.until(lambda: life.job("train")["status"] == "RUNNING")


def test_a_job_is_refused_only_when_the_provider_could_not_make_room_at_its_maximum(life: Life) -> None:
    begin(life)
    with pytest.raises(Infeasible):
        life.submit("huge", spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 9}}]}]})
    life.submit("possible", spec=EIGHT)


def test_nothing_is_made_beyond_the_maximum(life: Life) -> None:
    begin(life)
    life.run("one", spec=EIGHT)
    life.submit("two", spec=EIGHT)
    life.turn()
    assert made(life) == ["8c"]
    assert life.job("two")["state_reason"] == "InsufficientResources"


SCRIPT = """#!{python} -S
import json, sys
ask = json.loads(sys.stdin.read())
with open({log!r}, "a") as log:
    print(json.dumps(ask), file=log)
if ask["action"] == "up":
    print(json.dumps({{"nodes": [{{"node_id": "cloud-%d" % n}} for n in range(ask["count"])]}}))
"""


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_provider_is_asked_up_and_down(life: Life, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    script = executable(tmp_path / "cloud", SCRIPT.format(python=sys.executable, log=str(log)))
    begin(life, kind="command", up=[script], down=[script])
    life.run("train", spec=FOUR)
    assert sorted(node["node_id"] for node in nodes.list_nodes(life.store)) == ["cloud-0", "cloud-1"]
    life.end("train")
    life.until(lambda: not nodes.list_nodes(life.store))
    life.until(lambda: len(log.read_text().splitlines()) == 3)
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    assert asked[0] == {"action": "up", "template": "2c", "count": 2}
    assert sorted(ask["nodes"] for ask in asked[1:]) == [["cloud-0"], ["cloud-1"]]


def test_a_command_that_fails_is_tried_again_later_and_harms_nothing(life: Life, tmp_path: Path) -> None:
    script = executable(tmp_path / "cloud", "#!/bin/sh\nexit 3\n")
    begin(life, kind="command", up=[script], down=[script])
    life.submit("train", spec=FOUR)
    assert life.scheduler is not None
    provider = life.scheduler.provider
    life.until(lambda: provider._retry_at > 0)
    assert made(life) == []
    life.node("n1", "4c", cpus=4)
    life.until(lambda: life.job("train")["status"] == "RUNNING")


def test_a_command_that_does_not_exist_harms_nothing(life: Life) -> None:
    begin(life, kind="command", up=["/no/such/command"], down=["/no/such/command"])
    life.submit("train", spec=FOUR)
    life.turn()
    assert made(life) == []
    assert life.job("train")["state_reason"] == "InsufficientResources"


BAD = {
    "an unknown kind": ({"kind": "magic"}, "provider.kind"),
    "an unknown field": ({"kind": "simulated", "template": {}}, "provider.template"),
    "a command without down": ({"kind": "command", "up": ["x"]}, "provider"),
    "a resource below zero": (
        {"kind": "simulated", "templates": {"a": {"resources": {"CPU": -1}}}},
        "provider.templates.a.resources.CPU",
    ),
    "a maximum that is no number": (
        {"kind": "simulated", "templates": {"a": {"resources": {"CPU": 1}, "max": "many"}}},
        "provider.templates.a.max",
    ),
}


@pytest.mark.parametrize(("document", "path"), BAD.values(), ids=BAD)
def test_a_bad_setting_names_the_field(document: object, path: str) -> None:
    with pytest.raises(BadSpec) as refused:
        parse_provider(json.dumps(document))
    assert refused.value.details["path"] == path
    assert refused.value.fix


def test_no_setting_is_no_provider() -> None:
    assert parse_provider(None) == ProviderSpec()
