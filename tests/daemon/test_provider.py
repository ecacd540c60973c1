"""Node providers make nodes when something waits for them and let go of those that are idle."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import Life
from tests.specification import spec
from tests.world import Killed, MortalStore
from vctl.daemon import provider as provider_module
from vctl.errors import BadSpec, Infeasible
from vctl.ops import nodes, overview, views
from vctl.ops.why import why
from vctl.spec.provider_spec import ProviderSpec, parse_provider
from vctl.store.store import Store

pytestmark = spec("9.provider")

TEMPLATES = {"2c": {"resources": {"CPU": 2}, "max": 2}, "8c": {"resources": {"CPU": 8}, "max": 1}}
FOUR = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}, {"resources": {"CPU": 2}}]}]}
EIGHT = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 8}}]}]}


def begin(life: Life, store: Store | None = None, **setting: object) -> None:
    document = {"kind": "simulated", "templates": TEMPLATES, **setting}
    if document["kind"] != "ray":
        document.setdefault("idle_timeout", 0.2)
    spec = parse_provider(json.dumps(document))
    scheduler = life.start(store)
    scheduler.provider.spec = spec
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


def test_the_node_that_why_offers_belongs_to_its_user(life: Life) -> None:
    """With the label of the provider's node it would count as one, and the provider would delete it."""
    begin(life)
    life.run("big", spec=EIGHT)
    life.submit("second", spec=EIGHT)
    life.turn()
    (offer,) = (one for one in why(life.store, "second")["changes"] if "node" in one["change"])
    assert "vctl node add --template 8c --resources '{\"CPU\":8}'" in offer["command"]
    assert "--labels" not in offer["command"]


def test_nodes_take_their_time_to_boot(life: Life) -> None:
    begin(life, boot_time=0.3)
    life.submit("train", spec=EIGHT)
    life.turn()
    assert made(life) == []
    assert life.scheduler is not None
    assert 0 < life.scheduler.sleep_s() <= 0.3
    assert "; the node provider was asked for 1 node of 8c at " in str(why(life.store, "train")["message"])
    life.submit("held", hold=True)
    assert "provider" not in str(why(life.store, "held")["message"])
    life.until(lambda: life.job("train")["status"] == "RUNNING")
    assert "provider" not in str(why(life.store, "train")["message"])


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
import glob, json, os, signal, sys, time
cloud = {cloud!r}
scheduler = os.getppid()
ask = json.loads(sys.stdin.read())
with open(cloud + "/calls", "a") as log:
    print(json.dumps(ask), file=log)

def at(stage):
    if os.getppid() == scheduler and os.path.exists(cloud + "/kill-" + stage):
        os.unlink(cloud + "/kill-" + stage)
        os.kill(scheduler, signal.SIGKILL)
        time.sleep(1)

at(ask["action"] + "-before")
if ask["action"] == "up":
    made = []
    for n in range(ask["count"]):
        there = glob.glob(cloud + "/machines/%s-%d-*" % (ask["request_id"], n))
        if not there:
            time.sleep({pause})  # two at a time would both make one
            there = [cloud + "/machines/%s-%d-%d" % (ask["request_id"], n, os.getpid())]
            os.mkdir(there[0])
        made.append(os.path.basename(there[0]))
    at("up-after")
    print(json.dumps({{"nodes": [{{"node_id": name}} for name in made]}}))
else:
    for name in ask["nodes"]:
        if os.path.isdir(cloud + "/machines/" + name):
            os.rename(cloud + "/machines/" + name, cloud + "/ended/" + name)
    at("down-after")
"""
"""A cloud in a directory: a machine is a directory named after its request. It can kill the scheduler that asks."""


class Cloud:
    """What the script has done."""

    def __init__(self, folder: Path, *, pause: float = 0.0) -> None:
        self.folder = folder
        for name in ("machines", "ended"):
            (folder / name).mkdir(parents=True)
        text = SCRIPT.format(python=sys.executable, cloud=str(folder), pause=pause)
        self.script = executable(folder / "cloud", text)
        self.setting = {"kind": "command", "up": [self.script], "down": [self.script]}

    def calls(self, action: str) -> list[dict[str, Any]]:
        log = self.folder / "calls"
        asked = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [ask for ask in asked if ask["action"] == action]

    def machines(self) -> list[str]:
        return sorted(os.listdir(self.folder / "machines"))

    def ended(self) -> list[str]:
        return sorted(os.listdir(self.folder / "ended"))


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def open_requests(life: Life) -> int:
    return int(life.store.value("SELECT count(*) FROM provider_requests"))


def test_a_command_provider_is_asked_up_and_down(life: Life, tmp_path: Path) -> None:
    """Spec 9: JSON with a ``request_id``."""
    cloud = Cloud(tmp_path / "cloud")
    begin(life, **cloud.setting)
    life.run("train", spec=FOUR)
    assert sorted(node["node_id"] for node in nodes.list_nodes(life.store)) == cloud.machines()
    assert len(cloud.machines()) == 2
    life.end("train")
    life.until(lambda: not nodes.list_nodes(life.store))
    (up,) = cloud.calls("up")
    assert up == {
        "action": "up", "request_id": up["request_id"], "template": "2c", "count": 2, "nodes": ["2c-p1", "2c-p2"],
    }  # fmt: skip
    down = cloud.calls("down")
    assert sorted(ask["nodes"] for ask in down) == [[name] for name in cloud.ended()]
    assert len({ask["request_id"] for ask in (up, *down)}) == 3
    assert cloud.machines() == []
    assert open_requests(life) == 0


def test_a_command_that_answers_nothing_made_what_it_was_offered(life: Life, tmp_path: Path) -> None:
    """Spec 9."""
    script = executable(tmp_path / "cloud", "#!/bin/sh\nexec cat > /dev/null\n")
    begin(life, kind="command", up=[script], down=[script])
    life.run("train", spec=FOUR)
    assert sorted(node["node_id"] for node in nodes.list_nodes(life.store)) == ["2c-p1", "2c-p2"]


def test_a_command_that_fails_is_called_again_for_the_same_request(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 9: whether a failed call made a machine is not known, so nothing new is asked for in its place."""
    monkeypatch.setattr(provider_module, "RETRY_S", 0.05)
    log = tmp_path / "log"
    script = executable(tmp_path / "cloud", f"#!/bin/sh\ncat >> {log}\nexit 3\n")
    only = {"2c": TEMPLATES["2c"]}
    begin(life, kind="command", up=[script], down=[script], templates=only)
    life.submit("train", spec=FOUR)
    life.until(lambda: log.exists() and len(log.read_text().splitlines()) >= 3)
    asked = {json.loads(line)["request_id"] for line in log.read_text().splitlines()}
    assert len(asked) == 1
    assert made(life) == []
    assert life.store.value("SELECT message FROM provider_requests").startswith(
        "up: exit code 3; next try in "
    )
    assert str(why(life.store, "train")["message"]).endswith(" (the last try failed: up: exit code 3)")
    life.node("n1", "4c", cpus=4)
    life.until(lambda: life.job("train")["status"] == "RUNNING")
    assert "provider" not in str(why(life.store, "train")["message"])


def test_another_template_helps_while_one_fails(life: Life, tmp_path: Path) -> None:
    """Spec 9."""
    text = '#!/bin/sh\nread -r ask\ncase "$ask" in *\\"2c\\"*) exit 1;; esac\n'
    script = executable(tmp_path / "cloud", text)
    begin(life, kind="command", up=[script], down=[script])
    life.run("train", spec=FOUR)
    assert made(life) == ["8c"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('{"nodes": [{"node_id": null}]}', "has a bad node id: 'None'"),
        ('{"nodes": [{"node_id": 5}]}', "has a bad node id: '5'"),
        ('{"nodes": [{"node_id": "n1"}]}', "names no new node: n1 is there already"),
        ('{"nodes": "n2"}', 'is not {"nodes": [{"node_id": …}]}'),
        ("nonsense", 'is not {"nodes": [{"node_id": …}]}'),
    ],
)
def test_an_answer_that_names_no_new_node_is_a_failure(
    life: Life, tmp_path: Path, answer: str, problem: str
) -> None:
    """Spec 9: it is asked again later with the same id, not at once and without end for more machines."""
    life.node("n1", "1c", cpus=1)
    script = executable(tmp_path / "cloud", f"#!/bin/sh\ncat >> {tmp_path}/log\necho '{answer}'\n")
    begin(life, kind="command", up=[script], down=[script], templates={"2c": TEMPLATES["2c"]})
    life.submit("train", spec=FOUR)
    life.until(lambda: life.store.value("SELECT message FROM provider_requests") is not None)
    message = life.store.value("SELECT message FROM provider_requests")
    assert message == f"up: its answer {problem}; next try in 10 s"
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert [node["node_id"] for node in nodes.list_nodes(life.store)] == ["n1"]


def test_a_command_that_does_not_exist_harms_nothing(life: Life) -> None:
    begin(life, kind="command", up=["/no/such/command"], down=["/no/such/command"])
    life.submit("train", spec=FOUR)
    life.turn()
    assert made(life) == []
    assert life.job("train")["state_reason"] == "InsufficientResources"


def test_a_machine_that_is_being_released_stays_a_row_until_its_end_has_succeeded(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 9: no machine is forgotten. It counts as nothing and takes no work meanwhile."""
    monkeypatch.setattr(provider_module, "RETRY_S", 0.05)
    ok = tmp_path / "ok"
    down = executable(tmp_path / "down", f"#!/bin/sh\ntest -e {ok}\n")
    begin(life, kind="command", up=["/bin/true"], down=[down])
    life.run("train", spec=EIGHT)
    life.end("train")
    life.until(lambda: len(life.events("provider.failed")) >= 2)
    (node,) = nodes.list_nodes(life.store)
    assert (node["state"], node["node_id"]) == ("RELEASING", "8c-p1")
    assert views.cluster_resources(life.store, "primary") == {}
    assert overview.status(life.store)["resources"] == {}
    life.submit("again", spec=EIGHT)  # there may be one machine of that kind at most, and there still is
    life.until(lambda: life.job("again")["state_reason"] == "InsufficientResources")
    ok.touch()
    life.until(lambda: life.job("again")["status"] == "RUNNING")


def test_a_machine_that_is_removed_by_hand_is_ended_too(life: Life, tmp_path: Path) -> None:
    """Spec 9: ``vctl node remove`` of a provider's machine releases it; the second time it is given up."""
    cloud = Cloud(tmp_path / "cloud")
    begin(life, **cloud.setting, idle_timeout=3600)
    life.run("train", spec=EIGHT)
    life.end("train")
    (name,) = cloud.machines()
    nodes.remove(life.store, name)
    assert nodes.get_node(life.store, name)["state"] == "RELEASING"
    life.until(lambda: not nodes.list_nodes(life.store))
    assert cloud.ended() == [name]
    life.run("more", spec=EIGHT)
    life.end("more")
    (name,) = cloud.machines()
    life.die()
    nodes.remove(life.store, name)
    nodes.remove(life.store, name)
    assert nodes.list_nodes(life.store) == []
    assert open_requests(life) == 0


def test_a_machine_that_died_is_ended_at_once(life: Life, tmp_path: Path) -> None:
    """Spec 9: it may cost something still."""
    cloud = Cloud(tmp_path / "cloud")
    begin(life, **cloud.setting, idle_timeout=3600)
    life.run("train", spec=EIGHT)
    (name,) = cloud.machines()
    life.kill(name)
    life.until(lambda: cloud.ended() == [name])


def story(life: Life) -> None:
    """A job gets its machines, runs, ends; then they go. Goes on wherever it was."""
    life.until(lambda: life.job("train")["status"] != "PENDING")
    life.end("train")
    life.until(lambda: not nodes.list_nodes(life.store) and not open_requests(life))


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(False, id="before the commit", marks=pytest.mark.slow),
        pytest.param(True, id="after the commit"),
    ],
)
def test_no_machine_leaks_or_doubles_whichever_commit_the_scheduler_dies_at(
    life: Life, tmp_path: Path, after: bool
) -> None:
    """Spec 9 and 12: the scheduler dies before or after each commit of the whole story, once."""
    for dies_at in range(60):
        home = Life(tmp_path / f"state-{dies_at}")
        cloud = Cloud(tmp_path / f"cloud-{dies_at}")
        begin(home, **cloud.setting, idle_timeout=0)
        home.submit("train", spec=FOUR)
        assert home.scheduler is not None
        home.die()
        store = MortalStore.open(home.home)
        store.dies_at, store.after_it = dies_at, after
        died = False
        try:
            begin(home, store, **cloud.setting, idle_timeout=0)
            story(home)
        except Killed:
            died = True
            home.die()
            begin(home, **cloud.setting, idle_timeout=0)
            story(home)
        assert cloud.machines() == []
        assert len(cloud.ended()) == 2, (dies_at, cloud.calls("up"))
        home.die()
        home.store.close()
        if not died:
            return
    raise AssertionError("the story has more commits than were tried")


def test_ray_is_asked_for_what_still_waits(life: Life) -> None:
    """At each moment for the nodes that let the rest start, whichever nodes join; for none when nothing waits."""
    begin(life, kind="ray", templates={"2c": {"resources": {"CPU": 2}, "max": 4}})
    scheduler = life.scheduler
    assert scheduler is not None

    def wanted() -> list[str]:
        life.turn()
        assert scheduler.state is not None
        return [one.template for one in scheduler.state.node_requests.values()]

    life.submit("train", spec=FOUR)
    life.submit("more", spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]})
    assert wanted() == ["2c"] * 3
    assert scheduler.is_needed()
    life.nodes(2, "joined", cpus=2)
    assert wanted() == ["2c"]
    assert life.job("train")["status"] == "RUNNING"
    life.nodes(1, "joined", cpus=2)
    assert wanted() == []
    assert life.job("more")["status"] == "RUNNING"
    life.submit("late", spec=FOUR)
    assert wanted() == ["2c"] * 2
    life.die()
    begin(life, kind="ray", templates={"2c": {"resources": {"CPU": 2}, "max": 4}})
    scheduler = life.scheduler
    assert wanted() == ["2c"] * 2
    life.end("late")
    assert wanted() == []
    assert not life.store.rows("SELECT * FROM provider_requests")


BAD = {
    "an unknown kind": ({"kind": "magic"}, "provider.kind"),
    "an unknown field": ({"kind": "simulated", "template": {}}, "provider.template"),
    "a command without down": ({"kind": "command", "up": ["x"]}, "provider"),
    "a ray without templates": ({"kind": "ray"}, "provider"),
    "what Ray's autoscaler decides": ({"kind": "ray", "idle_timeout": 5}, "provider.idle_timeout"),
    "nothing": ({}, "provider"),
    "templates of no kind": ({"templates": {"a": {"resources": {"CPU": 1}}}}, "provider"),
    "nothing that could be made": ({"kind": "simulated", "idle_timeout": 5}, "provider"),
    "what only a command has": (
        {"kind": "simulated", "up": ["x"], "templates": {"a": {"resources": {"CPU": 1}}}},
        "provider.up",
    ),
    "what only simulated nodes have": ({"kind": "command", "boot_time": 5}, "provider.boot_time"),
    "an unknown field of a template": (
        {"kind": "simulated", "templates": {"a": {"resources": {"CPU": 1}, "maximum": 3}}},
        "provider.templates.a.maximum",
    ),
    "amounts beside the resources": (
        {"kind": "simulated", "templates": {"a": {"CPU": 1}}},
        "provider.templates.a.CPU",
    ),
    "a template of nothing": (
        {"kind": "simulated", "templates": {"a": {"resources": {"CPU": 0}}}},
        "provider.templates.a",
    ),
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
