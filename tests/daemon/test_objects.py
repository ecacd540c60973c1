"""Objects between tasks, with real processes: the sequence of states, loss, crashes, and what is left at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.daemon.test_elastic import Elastic
from tests.specification import spec
from vctl.errors import BadSpec, Conflict, NotFound
from vctl.ops import health, objects, submitting, tasks, views
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops

pytestmark = spec("10.objects")

JOB = "kPrimaryClusterID##j"
TWO = {
    "fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}] * 2, "scheduling_policy": "STRICT_SPREAD"}],
}


def leaves(*names: str, size: int = 1) -> dict[str, Any]:
    """A task that writes its outputs."""
    line = "; ".join(f'head -c {size} /dev/zero > "$VCTL_OBJECT_DIR/{name}"' for name in names)
    return {"argv": ("sh", "-c", line), "outputs": names, "running": False}


def uses(*names: str) -> dict[str, Any]:
    """A task that shows the sizes of its inputs."""
    line = 'cd "$VCTL_OBJECT_DIR" && wc -c ' + " ".join(names)
    return {"argv": ("sh", "-c", line), "inputs": names, "running": False}


class Site(Elastic):
    """A job on two nodes of 2 CPUs; its entrypoint sleeps on the first."""

    def __init__(self, life: Life, spec: Mapping[str, Any] = TWO) -> None:
        super().__init__(life)
        for node_id in ("n1", "n2"):
            life.node(node_id, "2c", cpus=2)
        life.run("j", spec=spec)

    def over(self, *task_ids: str) -> list[tuple[str, str | None, int | None]]:
        """(state, reason, exit code) of tasks once all of them are over."""
        self.life.until(lambda: all(self.state(one) in ("FINISHED", "FAILED") for one in task_ids))
        forms = [tasks.get_task(self.store, one) for one in task_ids]
        return [(form["state"], form["state_reason"], form["exit_code"]) for form in forms]

    def message(self, task_id: str) -> str:
        return str(tasks.get_task(self.store, task_id)["message"])

    def log(self, task_id: str) -> str:
        return b"".join(tasks.log(self.store, task_id).read()).decode()

    def place(self, node_id: str, attempt: int = 1) -> Path:
        return self.life.home / "objects" / f"1.{attempt}.{node_id}"

    def put(self, name: str, text: str = "x", node_id: str = "n1", **inside: str) -> dict[str, Any]:
        """What the entrypoint does."""
        (self.place(node_id) / name).write_text(text)
        around = {"VCTL_SUBMISSION_ID": "j", "VCTL_NODE_ID": node_id, **inside}
        return objects.put(self.store, name, environment=around)

    def where(self, name: str) -> list[str]:
        found: list[str] = objects.get_object(self.store, f"j/{name}")["node_ids"]
        return found

    def used(self, cluster_id: str = JOB) -> float:
        found: float = views.current_cluster(self.store, cluster_id)["used_object_store_memory"]
        return found

    def tidy(self) -> None:
        assert self.life.scheduler is not None
        self.life.scheduler.observer.processes_at = 0
        self.life.turn()

    def states(self, task_id: str) -> list[str]:
        """What the history says of a task."""
        sql = "SELECT kind FROM events WHERE object_id = ? ORDER BY seq"
        return [row[0].removeprefix("task.") for row in self.store.rows(sql, task_id)]


@pytest.fixture
def site(life: Life) -> Site:
    return Site(life)


FINISHED = ("FINISHED", None, 0)


def failed(reason: str, code: int | None = None) -> tuple[str, str, int | None]:
    return ("FAILED", reason, code)


# ---- the sequence of states ----


def test_the_states_of_a_task_one_after_the_other(site: Site) -> None:
    user = site.task("j", 1, **uses("a"))
    site.life.turn()
    assert (site.state(user), site.reason(user)) == ("PENDING_ARGS_AVAIL", "AwaitingInputs")
    assert site.message(user) == "waits for a, which no task produces yet"
    blocker = site.task("j", 2, strategy="NODE:n1")
    maker = site.task("j", 2, strategy="NODE:n2", **leaves("a"))
    assert site.message(user) == f"waits for a from {maker}"
    site.life.until(lambda: site.state(maker) == "FINISHED")
    assert site.over(user) == [FINISHED]
    site.cancel(blocker)
    assert site.states(user) == ["submitted", "awaits_inputs", "awaits_inputs", "ready", "started", "ended"]
    assert site.log(user).split() == ["1", "a"]


def test_it_waits_for_a_place_once_its_inputs_are_there(site: Site) -> None:
    maker = site.task("j", 1, **leaves("a"))
    assert site.over(maker) == [FINISHED]
    blockers = [site.task("j", 2, strategy=f"NODE:{node_id}") for node_id in ("n1", "n2")]
    user = site.task("j", 1, **uses("a"))
    site.life.until(lambda: site.reason(user) == "InsufficientResources")
    assert site.state(user) == "PENDING_NODE_ASSIGNMENT"
    site.cancel(blockers[1])
    assert site.over(user) == [FINISHED]


def test_an_input_pulls_its_user_over_and_is_counted_where_it_lies(site: Site) -> None:
    made = site.task("j", 1, strategy="NODE:n2", **leaves("big", size=5000))
    assert site.over(made) == [FINISHED]
    site.put("small", "123")
    user = site.task("j", 1, **uses("big", "small"))
    assert site.over(user) == [FINISHED]
    assert tasks.get_task(site.store, user)["node_id"] == "n2"
    assert site.log(user).split() == ["5000", "big", "3", "small", "5003", "total"]
    assert (site.where("big"), site.where("small")) == (["n2"], ["n1", "n2"])
    assert site.used() == 5006
    assert site.used("primary") == 5006
    form = objects.get_object(site.store, "big")
    assert (form["object_id"], form["task_id"], form["size"]) == ("j/big", made, 5000)
    assert Path(form["path"]).stat().st_size == 5000
    assert [one["name"] for one in objects.list_objects(site.store, filters=["node_id=n2"])[0]] == ["big"]
    site.life.end("j")
    assert (site.used("primary"), objects.list_objects(site.store)) == (0, ([], 0))


def test_a_tree_that_takes_long_to_measure(site: Site) -> None:
    """Spec 10: the end of a task is recorded when the sizes are known; what waits for them waits as long."""
    script = "mkdir -p $VCTL_OBJECT_DIR/many && cd $VCTL_OBJECT_DIR/many && seq 1 9000 | xargs touch && echo 12 > a"
    maker = site.task("j", 1, argv=("sh", "-c", script), outputs=("many",), running=False)
    reader = site.task(
        "j", 1, argv=("sh", "-c", "ls $VCTL_OBJECT_DIR/many | wc -l"), inputs=("many",), running=False
    )
    assert site.over(maker, reader) == [FINISHED] * 2
    assert site.log(reader).strip() == "9001"
    assert [one["size"] for one in objects.list_objects(site.store)[0]] == [3]


def test_a_chain_and_a_tree_of_files(site: Site) -> None:
    first = site.task(
        "j", 1, argv=("sh", "-c", 'mkdir "$VCTL_OBJECT_DIR/t" && echo hi > "$VCTL_OBJECT_DIR/t/f"'),
        outputs=("t",), strategy="NODE:n1", running=False,
    )  # fmt: skip
    copy = ("sh", "-c", 'cp -r "$VCTL_OBJECT_DIR/t" "$VCTL_OBJECT_DIR/u"')
    second = site.task("j", 1, argv=copy, inputs=("t",), outputs=("u",), strategy="NODE:n2", running=False)
    third = site.task("j", 1, argv=("sh", "-c", 'cat "$VCTL_OBJECT_DIR/u/f"'), inputs=("u",), running=False)
    assert site.over(first, second, third) == [FINISHED] * 3
    assert site.log(third) == "hi\n"


# ---- what does not come ----


def test_an_output_that_is_missing(site: Site) -> None:
    link = ("sh", "-c", 'ln -s /etc/passwd "$VCTL_OBJECT_DIR/a"')
    forgetful, linking = (
        site.task("j", 1, argv=argv, outputs=(name,), running=False)
        for name, argv in (("b", ("true",)), ("a", link))
    )
    assert site.over(forgetful, linking) == [failed("OutputMissing", 1)] * 2
    assert "without its output in $VCTL_OBJECT_DIR: there is no b" in site.message(forgetful)
    assert "a symbolic link" in site.message(linking)
    assert objects.list_objects(site.store) == ([], 0)


def test_one_that_fails_takes_its_users_with_it(site: Site) -> None:
    maker = site.task("j", 1, argv=("sh", "-c", "sleep 0.3; exit 3"), outputs=("a",), running=False)
    user = site.task("j", 1, inputs=("a",), outputs=("b",), running=False)
    last = site.task("j", 1, inputs=("b",), running=False)
    assert site.over(maker, user, last) == [
        failed("NonZeroExit", 3), failed("InputFailed"), failed("InputFailed"),
    ]  # fmt: skip
    assert site.message(user) == f"input a cannot be produced: {maker} FAILED (NonZeroExit)"
    assert site.message(last) == f"input b cannot be produced: {user} FAILED (InputFailed)"
    late = site.task("j", 1, inputs=("a",), running=False)  # no matter who came first
    assert (site.state(late), site.reason(late)) == ("FAILED", "InputFailed")
    again = site.task("j", 1, **leaves("a"))
    assert site.over(again, site.task("j", 1, **uses("a"))) == [FINISHED] * 2


def test_one_that_is_tried_again_is_waited_for(site: Site) -> None:
    line = 'test $VCTL_ATTEMPT = 2 && echo good > "$VCTL_OBJECT_DIR/a" || { echo bad > "$VCTL_OBJECT_DIR/a"; exit 1; }'
    maker = site.task("j", 1, argv=("sh", "-c", line), outputs=("a",), max_retries=1, running=False)
    user = site.task("j", 1, argv=("sh", "-c", 'cat "$VCTL_OBJECT_DIR/a"'), inputs=("a",), running=False)
    assert site.over(maker, user) == [FINISHED] * 2
    assert site.log(user) == "good\n"


def test_what_a_failed_try_left_is_no_output_of_the_next(site: Site) -> None:
    line = 'test $VCTL_ATTEMPT = 1 && echo bad > "$VCTL_OBJECT_DIR/a" && exit 1; exit 0'
    maker = site.task(
        "j", 1, argv=("sh", "-c", line), outputs=("a",), max_retries=1, strategy="NODE:n1", running=False
    )
    assert site.over(maker) == [failed("OutputMissing", 1)]


def test_cancelled_makers(site: Site) -> None:
    running = site.task("j", 1, argv=SLEEP, outputs=("a",))
    waiting = site.task("j", 9, outputs=("b",), running=False)
    users = [site.task("j", 1, inputs=(name,), running=False) for name in "ab"]
    tasks.cancel(site.store, waiting)
    assert site.reason(users[1]) == "InputFailed"  # no scheduler is needed for that
    site.cancel(running)
    assert site.over(*users) == [failed("InputFailed")] * 2


def test_the_owner_ends(site: Site) -> None:
    """What is detached goes on waiting for what another detached one makes, and for nothing else."""
    attached = site.task("j", 1, inputs=("x",), running=False)
    go = site.store.home / "go"
    make = f'until [ -e "{go}" ]; do sleep 0.05; done; echo 1 > "$VCTL_OBJECT_DIR/a"'
    maker = site.task("j", 1, argv=("sh", "-c", make), outputs=("a",), detach=True)
    user = site.task("j", 1, detach=True, **uses("a"))
    hopeless = site.task("j", 1, detach=True, **uses("x"))
    site.life.end("j")
    assert site.over(attached, hopeless) == [failed("OwnerEnded"), failed("InputFailed")]
    assert site.message(hopeless) == "no task produces input x, and the job has ended"
    assert (site.state(user), site.place("n1").exists()) == ("PENDING_ARGS_AVAIL", True)
    go.touch()
    assert site.over(maker, user) == [FINISHED] * 2
    assert site.log(user).split() == ["2", "a"]
    assert not site.exists(JOB)
    site.tidy()
    assert not site.place("n1").exists()


# ---- names ----


def test_a_name_has_one_maker_and_one_object(site: Site) -> None:
    maker = site.task("j", 9, outputs=("a",), running=False)
    with pytest.raises(Conflict, match=f"{maker} produces a already"):
        site.task("j", 1, outputs=("a",), running=False)
    with pytest.raises(Conflict, match="produces a already"):
        site.put("a")
    tasks.cancel(site.store, maker)
    site.put("a")
    for again in (lambda: site.put("a"), lambda: site.task("j", 1, outputs=("a",), running=False)):
        with pytest.raises(Conflict, match="the job has an object a already"):
            again()
    assert site.store.value("SELECT count(*) FROM tasks") == 1


def test_putting(site: Site) -> None:
    waiting = site.task("j", 1, **uses("a"))
    with pytest.raises(BadSpec, match="only inside a job"):
        objects.put(site.store, "a", environment={})
    inside = {"VCTL_SUBMISSION_ID": "j", "VCTL_NODE_ID": "n1"}
    with pytest.raises(NotFound, match="there is no a"):
        objects.put(site.store, "a", environment=inside)
    for bad in ("../a", ".a", "a/b", "", "-a", "a" * 129):
        with pytest.raises(BadSpec, match="not a name of an object"):
            objects.put(site.store, bad, environment=inside)
    for nowhere in ("../..", "n9"):
        with pytest.raises(NotFound):
            objects.put(site.store, "a", environment={**inside, "VCTL_NODE_ID": nowhere})
    form = site.put("a", VCTL_CLUSTER_ID="another")
    assert (form["task_id"], form["cluster_id"], form["size"]) == (None, JOB, 1)
    assert site.over(waiting) == [FINISHED]
    (site.place("n1") / "late").write_text("x")
    site.life.end("j")
    with pytest.raises(Conflict, match="job j is STOPPED"):
        objects.put(site.store, "late", environment=inside)


def test_equal_names_in_two_jobs(site: Site) -> None:
    site.put("a")
    site.life.node("n3", "1c", cpus=1)
    site.life.run("k", spec={"flexible_resource_min": {"CPU": 1}})
    (site.life.home / "objects" / "2.1.n3" / "a").write_text("other")
    objects.put(site.store, "a", environment={"VCTL_SUBMISSION_ID": "k", "VCTL_NODE_ID": "n3"})
    with pytest.raises(BadSpec, match="several jobs have an object 'a': j/a, k/a"):
        objects.get_object(site.store, "a")
    assert objects.get_object(site.store, "a", job="k")["object_id"] == "k/a"
    assert [one["object_id"] for one in objects.list_objects(site.store, job="k")[0]] == ["k/a"]
    assert (site.used("kPrimaryClusterID##k"), site.used("primary")) == (5, 6)
    with pytest.raises(NotFound):
        objects.get_object(site.store, "j/b")


# ---- nodes that die ----


def test_what_lay_on_a_dead_node_is_lost(site: Site) -> None:
    maker = site.task("j", 1, strategy="NODE:n2", **leaves("a"))
    assert site.over(maker) == [FINISHED]
    blocker = site.task("j", 2, strategy="NODE:n1")
    user = site.task("j", 2, inputs=("a",), strategy="NODE:n1", running=False)
    site.life.turn()
    node_ops.kill(site.store, "n2")
    site.life.until(lambda: site.state(user) == "FAILED")
    assert site.reason(user) in (
        "InputFailed",
        "OwnerEnded",
    )  # the gang had a part there, so the job ends, too
    assert blocker
    assert objects.list_objects(site.store) == ([], 0)


def elsewhere(life: Life) -> Site:
    """A job whose gang is on n1 alone; it can grow to n2."""
    return Site(life, {"flexible_resource_min": {"CPU": 2}})


def test_a_lost_object_fails_its_users_and_may_be_made_again(life: Life) -> None:
    site = elsewhere(life)
    full = site.task("j", 2)
    maker = site.task("j", 1, **leaves("a"))
    assert site.over(maker) == [FINISHED]
    assert site.where("a") == ["n2"]
    user = site.task("j", 2, inputs=("a",), strategy="NODE:n1", running=False)
    life.until(lambda: site.reason(user) == "InsufficientResources")
    life.kill("n2")
    assert site.over(user) == [failed("InputFailed")]
    assert site.message(user) == f"input a of {maker} is lost: n2, where it lay, is gone"
    assert life.events("object.lost") == ["a"]
    assert not site.place("n2").exists()
    site.cancel(full)
    again = site.task("j", 1, **leaves("a"))
    assert site.over(again, site.task("j", 1, **uses("a"))) == [FINISHED] * 2


def test_a_copy_keeps_it_alive(life: Life) -> None:
    site = elsewhere(life)
    full = site.task("j", 2)
    maker = site.task("j", 1, **leaves("a"))
    assert site.over(maker) == [FINISHED]
    site.cancel(full)
    assert site.over(site.task("j", 1, strategy="NODE:n1", **uses("a"))) == [FINISHED]
    assert site.where("a") == ["n2", "n1"]
    life.kill("n2")
    life.until(lambda: site.where("a") == ["n1"])
    assert site.over(site.task("j", 1, **uses("a"))) == [FINISHED]
    assert life.events("object.lost") == []


def test_files_that_somebody_removed(site: Site) -> None:
    """The tables say that it is there, the disk does not: found out when it is needed."""
    maker = site.task("j", 1, strategy="NODE:n2", **leaves("a"))
    assert site.over(maker) == [FINISHED]
    (site.place("n2") / "a").unlink()
    users = [site.task("j", 1, strategy=f"NODE:{node_id}", **uses("a")) for node_id in ("n1", "n2")]
    assert [end[:2] for end in site.over(*users)] == [("FAILED", "InputFailed")] * 2
    assert objects.list_objects(site.store) == ([], 0)


# ---- attempts, crashes, what is left ----


def test_an_attempt_of_a_job_starts_with_nothing(life: Life) -> None:
    site = Elastic(life)
    life.node("n1", "2c", cpus=2)
    line = 'ls -A "$VCTL_OBJECT_DIR"; echo x > "$VCTL_OBJECT_DIR/a"; test $VCTL_ATTEMPT = 2'
    from vctl.spec.job_request import JobRequest

    request = JobRequest(
        argv=("sh", "-c", line), submission_id="j", max_retries=1, retry_on=("ExitCode",), backoff_s=0.0
    )
    submitting.submit(site.store, request, environment={"PATH": "/usr/bin:/bin"})
    life.until(lambda: life.job("j")["status"] == "SUCCEEDED")
    assert b"".join(job_ops.log(site.store, "j").read()) == b""
    assert life.scheduler is not None
    life.scheduler.observer.processes_at = life.scheduler.carrier.objects._next = 0
    life.turn()
    assert list((life.home / "objects").iterdir()) == []


def test_kill_9_between_any_two_steps(site: Site) -> None:
    maker = site.task("j", 1, strategy="NODE:n2", **leaves("a", size=7))
    user = site.task("j", 1, strategy="NODE:n1", **uses("a"))
    site.life.die()
    while tasks.get_task(site.store, user)["state"] not in ("FINISHED", "FAILED"):
        site.start()
        site.life.turn()
        site.life.die()
    site.start()
    assert site.over(maker, user) == [FINISHED] * 2
    assert site.log(user).split() == ["7", "a"]
    rows = [tuple(row) for row in site.store.rows("SELECT name, node_id, size FROM objects ORDER BY 2")]
    assert rows == [("a", "n1", 7), ("a", "n2", 7)]
    assert len(site.life.events("object.created")) == 1
    assert site.life.replay(dry_run=True) == [[]] * 6


def test_what_a_crash_left_is_removed(site: Site) -> None:
    site.put("a")
    left = site.life.home / "objects" / "99.1.n1"
    left.mkdir(parents=True)
    (left / "x").write_text("x")
    with site.store.transaction():
        site.store.db.execute(
            "INSERT INTO objects VALUES (99, 'x', 'n1', 'kPrimaryClusterID##gone', 1, NULL, 1)"
        )
    notes = health.doctor(site.store)["notes"]
    assert [one for one in notes if "objects" in one] == [
        "files of objects that no job needs any more: 99.1.n1; the scheduler removes them"
    ]
    site.die_and_start()
    site.life.turn()
    assert (left.exists(), site.place("n1").exists()) == (False, True)
    assert [row[0] for row in site.store.rows("SELECT name FROM objects")] == ["a"]


def test_doctor_finds_objects_without_files(site: Site) -> None:
    site.put("a")
    assert health.doctor(site.store)["findings"] == []
    (site.place("n1") / "a").unlink()
    assert health.doctor(site.store)["findings"] == ["object j/a is not on n1, where it should be"]


def test_a_row_that_cannot_be_read_is_set_aside(site: Site) -> None:
    user = site.task("j", 1, inputs=("a",), running=False)
    with site.store.transaction():
        site.store.db.execute("UPDATE tasks SET inputs = '[1' WHERE task_id = ?", (user,))
    site.die_and_start()
    site.life.turn()
    [row] = site.store.rows("SELECT * FROM set_aside")
    assert json.loads(row["content"])["task_id"] == user


def test_a_node_with_objects_of_a_running_job_is_not_removed(life: Life) -> None:
    site = elsewhere(life)
    full = site.task("j", 2)
    maker = site.task("j", 1, **leaves("a"))
    assert site.over(maker) == [FINISHED]
    site.cancel(full)
    life.until(lambda: site.node("n2") == (2, 2))  # given back, as nothing runs there
    with pytest.raises(Conflict, match="node n2 keeps objects of running jobs: j/a"):
        node_ops.remove(site.store, "n2")
    life.end("j")
    node_ops.remove(site.store, "n2")


def test_names_of_inputs_and_outputs() -> None:
    from vctl.spec.task_request import TaskRequest

    bad: dict[str, Mapping[str, Any]] = {
        "not a name": {"inputs": ("a/b",)},
        "named twice": {"outputs": ("a", "a")},
        "is an input, too": {"inputs": ("a",), "outputs": ("a",)},
        "too many": {"inputs": tuple(f"x{n}" for n in range(257))},
    }
    for words, given in bad.items():
        with pytest.raises(BadSpec, match=words):
            TaskRequest(argv=("true",), **given)
