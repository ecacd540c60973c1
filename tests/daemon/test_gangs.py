"""``--per-node``: one member in every virtual node, told about the others, ending whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_holding import submit
from tests.specification import spec
from vctl.engine.changes import JobStarted, RunEnded, RunStopping
from vctl.engine.codec import decode
from vctl.errors import BadSpec
from vctl.ops import logs
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.store import feed

pytestmark = spec("8.per-node")

SHOW = (
    "/usr/bin/env", "python3", "-S", "-c",
    ("import os, json; e = os.environ; print(json.dumps({**e, 'hosts': open(e['VCTL_HOSTFILE']).read(),"
    " 'nodes': open(e['VCTL_NODEFILE']).read()}), flush=True)"),
)  # fmt: skip


def gang(*cpus: int, policy: str = "PACK", **more: int) -> Any:
    nodes = [{"resources": {"CPU": count, **more}} for count in cpus]
    return parse_cluster_spec({"fixed_size_nodes": [{"nodes": nodes, "scheduling_policy": policy}]})


@pytest.fixture
def here(life: Life) -> Life:
    life.nodes(2, "t")
    return life


def lines(life: Life, name: str) -> list[str]:
    path = logs.log_of(life.home, name)
    return path.read_text().splitlines() if path.exists() else []


def over(life: Life, name: str) -> dict[str, Any]:
    life.until(lambda: life.job(name)["status"] not in ("PENDING", "RUNNING"))
    return life.job(name)


def test_every_member_knows_its_place(here: Life) -> None:
    submit(here, "g", *SHOW, entry=None, spec=gang(2, 2, 3), per_node=True)
    assert over(here, "g")["status"] == "SUCCEEDED"
    members = sorted((json.loads(line) for line in lines(here, "g")), key=lambda m: int(m["RANK"]))
    assert [m["RANK"] for m in members] == ["0", "1", "2"]
    assert {m["WORLD_SIZE"] for m in members} == {"3"}
    assert len({m["MASTER_PORT"] for m in members}) == 1
    assert {m["MASTER_ADDR"] for m in members} == {"127.0.0.1"}
    assert [m["VCTL_VNODE_ID"] for m in members] == [f"kPrimaryClusterID##g/{n}" for n in range(3)]
    places = [m["VCTL_NODE_ID"] for m in members]
    first_node = places[0]
    assert [m["NODE_RANK"] for m in members] == ["0" if p == first_node else "1" for p in places]
    for index, member in enumerate(members):
        assert member["LOCAL_RANK"] == str(places[:index].count(places[index]))
        assert member["LOCAL_WORLD_SIZE"] == str(places.count(places[index]))
    assert sorted(json.loads(m["VCTL_RESOURCES"])["CPU"] for m in members) == [2, 2, 3]
    assert {m["hosts"] for m in members} == {"127.0.0.1 slots=3\n"}
    assert {m["nodes"] for m in members} == {"127.0.0.1\n" * 3}
    assert list((here.home / "gangs").iterdir()) == []


def test_the_first_bad_member_ends_the_gang(here: Life) -> None:
    shell = "echo up; if [ $RANK = 1 ]; then exit 5; fi; sleep 60"
    submit(here, "g", "sh", "-c", shell, entry=None, spec=gang(1, 1, 1), per_node=True)
    job = over(here, "g")
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("FAILED", "NonZeroExit", 5)
    changes = [decode(row["change"]) for row in feed.journal(here.store, 0)]
    rank = {
        one.run_id: one.rank for change in changes if isinstance(change, JobStarted) for one in change.runs
    }
    stopped = {rank[one.run_id]: one.reason for one in changes if isinstance(one, RunStopping)}
    assert stopped == {0: "GangEnded", 2: "GangEnded"}
    assert {rank[one.run_id] for one in changes if isinstance(one, RunEnded)} == {0, 1, 2}
    assert here.store.value("SELECT count(*) FROM runs") == 0
    assert here.store.value("SELECT count(*) FROM clusters") == 0


def test_a_member_that_ends_well_leaves_the_others(here: Life) -> None:
    shell = "[ $RANK = 0 ] || sleep 0.3; echo done $RANK"
    submit(here, "g", "sh", "-c", shell, entry=None, spec=gang(1, 1), per_node=True)
    assert over(here, "g")["exit_code"] == 0
    assert lines(here, "g") == ["done 0", "done 1"]


def test_stop_and_time_limit_end_all(here: Life) -> None:
    for name, limit in (("s", None), ("t", 0.2)):
        submit(here, name, "sleep", "60", entry=None, spec=gang(1, 1), per_node=True, time_limit_s=limit)
    here.until(lambda: here.job("s")["status"] == "RUNNING")
    here.end("s")
    assert (here.job("s")["status"], here.job("s")["exit_code"]) == ("STOPPED", 143)
    assert over(here, "t")["exit_code"] == 124


def test_a_dead_node_ends_the_gang_and_a_retry_places_it_anew(here: Life) -> None:
    here.nodes(1, "t")
    submit(
        here, "g", "sleep", "60", entry=None, spec=gang(1, 1, policy="STRICT_SPREAD"), per_node=True,
        max_retries=1, backoff_s=0,
    )  # fmt: skip
    here.until(lambda: here.store.value("SELECT count(*) FROM runs WHERE state = 'RUNNING'") == 2)
    victim = here.job("g")["node_ids"][0]
    here.kill(victim)
    here.until(lambda: here.job("g")["attempt"] == 2, maintain=True)
    assert victim not in here.job("g")["node_ids"]
    assert len(here.job("g")["node_ids"]) == 2


def test_a_daemon_killed_while_a_gang_ends(here: Life) -> None:
    shell = "if [ $RANK = 1 ]; then exit 5; fi; sleep 60"
    submit(here, "g", "sh", "-c", shell, entry=None, spec=gang(1, 1), per_node=True)
    here.until(lambda: here.store.value("SELECT outcome FROM jobs"))
    here.die()
    assert over(here, "g")["exit_code"] == 5


def test_host_files_that_a_killed_daemon_left_are_removed(here: Life) -> None:
    """It died after it had recorded an end and before it forgot the files; those of a gang that runs stay."""
    submit(here, "g", "/bin/sleep", "60", entry=None, spec=gang(1, 1), per_node=True)
    here.until(lambda: here.store.value("SELECT count(*) FROM runs WHERE state = 'RUNNING'") == 2)
    folder = here.home / "gangs"
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 2
    here.die()
    for name in ("98.1.hosts", "98.1.nodes", "99.2.hosts.17"):
        (folder / name).touch()
    here.start()
    here.turn()
    assert {path.name for path in folder.iterdir()} == names
    here.end("g")
    assert list(folder.iterdir()) == []


def test_a_gang_of_one(here: Life) -> None:
    submit(here, "g", "sh", "-c", "echo $RANK of $WORLD_SIZE", entry=None, per_node=True)
    assert over(here, "g")["exit_code"] == 0
    assert lines(here, "g") == ["0 of 1"]


def test_refused(here: Life) -> None:
    with pytest.raises(BadSpec, match="per_node"):
        submit(here, "g", "true", per_node=True, entry={"CPU": 10_000})
    here.logical("shared", {"t": 1})
    with pytest.raises(BadSpec, match="indivisible"):
        submit(here, "g", "true", per_node=True, entry=None, cluster="shared")
