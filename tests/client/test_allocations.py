"""spec 15: outside a job, `with VirtualCluster(...)` and `vctl.init(...)` hold a job of their own, and run in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from tests.client.conftest import PATIENCE_S, ROOT, START, Site
from tests.specification import spec

pytestmark = spec("15.with")

TWO = 'VirtualCluster(flexible_resource_min={"CPU": 2}, flexible_resource_max={"CPU": 2}, name="held")'


def start(site: Site, source: str, **env: str) -> subprocess.Popen[str]:
    """A program outside of all jobs."""
    around = {name: value for name, value in os.environ.items() if not name.startswith("VCTL_")}
    around |= {"VCTL_HOME": str(site.home), "VCTL_LOCAL_NODE": "0", "PYTHONPATH": str(ROOT), **env}
    return subprocess.Popen(
        [sys.executable, "-c", START + textwrap.dedent(source)], env=around, cwd=site.folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(site: Site, source: str, code: int = 0, **env: str) -> dict[str, Any]:
    """The same to its end; all that it told."""
    program = start(site, source, **env)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == code, err
    reported: dict[str, Any] = {}
    for line in out.splitlines():
        reported.update(json.loads(line))
    return {**reported, "err": err}


def until_over(site: Site, name: str = "held") -> dict[str, Any]:
    give_up = time.monotonic() + PATIENCE_S
    while (form := dict(site.client.jobs.get(name).info()))["status"] not in (
        "SUCCEEDED",
        "FAILED",
        "STOPPED",
    ):
        assert time.monotonic() < give_up, form
        time.sleep(0.02)
    return form


def test_a_block_outside_a_job_runs_in_a_job_of_its_own(daemon: Site) -> None:
    daemon.nodes(2)
    reported = run(
        daemon,
        f"""
        names = ("VCTL_SUBMISSION_ID", "VCTL_CLUSTER_ID", "VCTL_VNODE_ID")
        outside = [cluster_resources(), [name in os.environ for name in names]]
        with {TWO} as vc:
            context = get_runtime_context()
            tell(id=vc.cluster_id, env=os.environ["VCTL_CLUSTER_ID"], has=cluster_resources(),
                 job=context.submission_id, in_job=context.in_job,
                 parent=context.current_cluster().parent_cluster().cluster_id(),
                 node=context.current_node().total_resources(), jobs=[one["submission_id"] for one in list_jobs()])
            task = sh("echo $VCTL_CLUSTER_ID")
            task.wait()
            words = [sys.executable, "-m", "vctl", "cluster-resources", "-o", "json"]
            shell = subprocess.run(words, capture_output=True)
            with VirtualCluster(flexible_resource_min={{"CPU": 1}}, name="inner") as inner:
                tell(inner=inner.cluster_id)
            sh("sleep 0.3; touch waited", name="last")
        tell(task=task.logs().strip(), shell=json.loads(shell.stdout), outside=outside, waited=os.path.exists("waited"),
             after=[cluster_resources(), [name in os.environ for name in names]], free=available_resources())
        """,
    )
    top = "kPrimaryClusterID##held"
    assert (reported["id"], reported["env"], reported["task"], reported["inner"]) == (
        top,
        top,
        top,
        f"{top}##inner",
    )
    assert reported["has"] == reported["shell"] == reported["node"] == {"CPU": 2.0}
    assert (reported["job"], reported["in_job"], reported["parent"], reported["jobs"]) == (
        "held",
        True,
        "kPrimaryClusterID",
        ["held"],
    )
    assert reported["outside"] == reported["after"] == [{"CPU": 8.0}, [False] * 3]
    assert reported["free"] == {"CPU": 8.0}, "all is given back when the block is left"
    assert reported["waited"]
    assert until_over(daemon)["status"] == "SUCCEEDED"


def test_init_holds_until_the_program_ends(daemon: Site) -> None:
    daemon.nodes(1)
    reported = run(
        daemon,
        """
        import vctl
        held = vctl.init({"flexible_resource_min": {"CPU": 2}}, name="held")
        whole = connect(os.environ["VCTL_HOME"])
        tell(has=cluster_resources()["CPU"], id=held.cluster_id, free=whole.available_resources())
        try:
            vctl.init()
        except BadSpec as error:
            tell(twice=str(error))
        if sys.argv[0] == "never":
            vctl.shutdown()
        """,
    )
    assert (reported["has"], reported["id"], reported["free"]) == (
        2.0,
        "kPrimaryClusterID##held",
        {"CPU": 2.0},
    )
    assert "vctl.shutdown()" in reported["twice"]
    assert daemon.client.jobs.get("held").status() == "SUCCEEDED", "its end was waited for"
    reported = run(
        daemon,
        """
        import vctl
        vctl.init(VirtualCluster(fixed_size_nodes=[FixedSizeNodes(nodes=[FixedSizeNode(resources={"CPU": 3})])]))
        during = cluster_resources()
        vctl.shutdown()
        vctl.shutdown()
        tell(during=during, after=available_resources())
        """,
    )
    assert (reported["during"], reported["after"]) == ({"CPU": 3.0}, {"CPU": 4.0})


def test_a_program_that_fails_after_init_waits_for_no_task(daemon: Site) -> None:
    daemon.nodes(1)
    run(
        daemon,
        """
        import vctl
        vctl.init({"flexible_resource_min": {"CPU": 2}}, name="held")
        sh("sleep 1000")
        raise ValueError("this is the end")
        """,
        code=1,
    )
    assert daemon.client.jobs.get("held").status() == "FAILED"
    assert [one["state"] for one in daemon.client.tasks.list()] == ["FAILED"]
    assert daemon.client.available_resources() == {"CPU": 4.0}


def test_init_takes_the_time_that_it_is_given(daemon: Site) -> None:
    daemon.nodes(1)
    daemon.client.submit(["sleep", "1000"], num_cpus=4)
    reported = run(
        daemon,
        """
        import vctl
        wanted = VirtualCluster(flexible_resource_min={"CPU": 2}, timeout_s=1000)
        try:
            vctl.init(wanted, timeout_s=0)
        except TimedOut as error:
            tell(late=str(error))
        """,
    )
    assert "within 0 s" in reported["late"]


def test_init_inside_a_job_makes_a_sub_cluster(daemon: Site) -> None:
    daemon.nodes(1)
    reported = daemon.run("""
        import vctl
        tell(id=vctl.init({"flexible_resource_min": {"CPU": 1}}, name="part").cluster_id, has=cluster_resources())
        """, submission_id="outer", num_cpus=2)  # fmt: skip
    assert reported["id"] == "kPrimaryClusterID##outer##part"


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a fork that lives on"])
def test_a_program_that_is_killed_gives_everything_back(daemon: Site, forked: bool) -> None:
    daemon.nodes(1)
    program = start(
        daemon,
        f"""
        with {TWO}:
            sh("sleep 1000")
            if {forked} and os.fork() == 0:
                os.close(1)
                time.sleep(5)
                os._exit(0)
            tell(ready=True)
            time.sleep(1000)
        """,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline()
        program.send_signal(signal.SIGKILL)
    assert (until_over(daemon)["exit_code"], daemon.client.available_resources()) == (129, {"CPU": 4.0})
    assert [task["state"] for task in daemon.client.tasks.list()] == ["FAILED"]


def test_an_exception_fails_the_job_and_cancels_its_tasks(daemon: Site) -> None:
    daemon.nodes(1)
    reported = run(
        daemon,
        f"""
        with {TWO}:
            sh("sleep 1000")
            raise RuntimeError("mine")
        """,
        code=1,
    )
    assert "RuntimeError: mine" in reported["err"]
    assert until_over(daemon)["exit_code"] == 1
    assert list((daemon.home / "attach").iterdir()) == []


def test_waiting_and_refusals(daemon: Site) -> None:
    daemon.nodes(1)
    daemon.client.submit("sleep 1000", num_cpus=4, submission_id="blocker")
    reported = run(
        daemon,
        """
        found = []
        for amount, more in ((1, {"timeout_s": 0.5}), (100, {})):
            try:
                with VirtualCluster(flexible_resource_min={"CPU": amount}, **more):
                    pass
            except VctlError as error:
                found.append([error.exit_code, "Fix: " in str(error)])
        tell(found=found)
        connect().jobs.stop("blocker")
        with VirtualCluster(flexible_resource_min={"CPU": 1}):
            tell(has=cluster_resources()["CPU"] >= 1)
        """,
    )
    assert reported["found"] == [[7, True], [3, True]]
    assert reported["has"]
    assert sorted(job["status"] for job in daemon.client.jobs.list()) == ["STOPPED", "STOPPED", "SUCCEEDED"]


def test_an_allocation_that_was_taken_away_is_told(daemon: Site) -> None:
    daemon.nodes(1)
    reported = run(
        daemon,
        f"""
        try:
            with {TWO}:
                connect(os.environ["VCTL_HOME"]).jobs.get("held").stop()
        except Conflict as error:
            tell(problem=error.problem)
        """,
    )
    assert "STOPPED" in reported["problem"]


def test_devices_of_the_allocation_are_seen(daemon: Site) -> None:
    daemon.nodes(1, {"CPU": 4, "GPU": 2})
    busy = daemon.client.submit("sleep 1000", num_gpus=1)
    reported = run(
        daemon,
        """
        with VirtualCluster(fixed_size_nodes=[FixedSizeNodes(nodes=[FixedSizeNode(resources={"GPU": 1})])]):
            inside = os.environ["CUDA_VISIBLE_DEVICES"]
        tell(inside=inside, after=os.environ.get("CUDA_VISIBLE_DEVICES"))
        """,
        CUDA_VISIBLE_DEVICES="5",
    )
    busy.stop()
    assert (reported["inside"], reported["after"]) == ("1", "5")


def test_a_block_that_does_nothing_ends_well(daemon: Site) -> None:
    """Its job may be over before the program looks at it: it ended by the program's own word."""
    daemon.nodes(1)
    reported = run(
        daemon,
        """
        for _ in range(5):
            with VirtualCluster(flexible_resource_max={"CPU": 1}):
                pass
        tell(done=True)
        """,
    )
    assert reported["done"]
