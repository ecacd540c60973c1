"""Programs that use the API inside their job: the proposal's examples, and what each of them can see."""

from __future__ import annotations

from tests.client.conftest import Site
from tests.specification import spec
from vctl import PACK, SPREAD, STRICT_SPREAD, FixedSizeNode, FixedSizeNodes, VirtualCluster

pytestmark = spec("15.with")


def test_a_gang_of_two_actors(daemon: Site) -> None:
    """Each member is started on the virtual node of its bundle."""
    daemon.nodes(2, {"CPU": 4, "GPU": 2})
    reported = daemon.run(
        """
        where = {}
        for index in ("0", "1"):
            task = sh("echo $VCTL_VNODE_ID $CUDA_VISIBLE_DEVICES", num_cpus=0, num_gpus=1,
                      label_selector={"bundle_index": In(index)})
            assert task.wait() == 0
            where[index] = task.info()["node_id"], task.info()["vnode_id"], task.logs().split()
        bundles = {node["Labels"]["bundle_index"]: node["NodeID"] for node in nodes()}
        here = get_runtime_context().current_cluster()
        tell(where=where, bundles=bundles, total=cluster_resources(), max=here.max_resources())
        """,
        virtual_cluster=VirtualCluster(
            fixed_size_nodes=[
                FixedSizeNodes(
                    [FixedSizeNode({"GPU": 1}, labels={"bundle_index": str(index)}) for index in range(2)],
                    scheduling_policy=STRICT_SPREAD,
                )
            ]
        ),
    )
    (node0, vnode0, said0), (node1, vnode1, _) = reported["where"]["0"], reported["where"]["1"]
    assert node0 != node1
    assert (vnode0, vnode1) == (reported["bundles"]["0"], reported["bundles"]["1"])
    assert said0[0] == vnode0
    assert len(said0) == 2  # one device
    assert reported["total"] == reported["max"] == {"GPU": 2.0}


def test_tune_and_dataset(daemon: Site) -> None:
    """Two trials with a packed group each, and data tasks in the flexible part, which grows to 10 CPU at most."""
    daemon.nodes(2, {"CPU": 16, "GPU": 4})
    trial = FixedSizeNodes([FixedSizeNode({"CPU": 1, "GPU": 1})] * 2, scheduling_policy=PACK)
    reported = daemon.run(
        """
        here = get_runtime_context().current_cluster()
        trials = [sh("sleep 1", num_gpus=1) for _ in range(4)]
        data = [sh("sleep 1", num_cpus=2) for _ in range(6)]
        most = 0
        while summarize_tasks()["counts"].get("FINISHED", 0) < 10:
            most = max(most, here.total_resources()["CPU"])
            time.sleep(0.02)
        kinds = {node["NodeID"]: node["Kind"] for node in nodes()}
        tell(most=most, limit=here.max_resources(), spec=here.spec().as_dict(),
             trials=[kinds[task.info()["vnode_id"]] for task in trials],
             data=[task.info()["vnode_id"] for task in data], kinds=kinds, codes=[t.wait() for t in data])
        """,
        virtual_cluster=VirtualCluster(
            fixed_size_nodes=[trial, trial],
            flexible_resource_min={"CPU": 1},
            flexible_resource_max={"CPU": 10},
        ),
    )
    assert reported["trials"] == ["fixed"] * 4
    assert all(reported["kinds"].get(vnode, "flexible") == "flexible" for vnode in reported["data"])
    assert reported["most"] == 14  # four in the trials, ten for the data
    assert reported["limit"] == {"CPU": 14.0, "GPU": 4.0}
    assert reported["spec"]["flexible_resource_max"] == {"CPU": 10}
    assert reported["codes"] == [0] * 6


def test_two_datasets(daemon: Site) -> None:
    """A job of 100 CPU gives 80 to one data set and 20 to the other; threads are in clusters of their own."""
    daemon.nodes(4, {"CPU": 25})
    reported = daemon.run(
        """
        found, meet = {}, threading.Barrier(2)

        def read(name, cpus):
            with VirtualCluster(flexible_resource_min={"CPU": cpus}, flexible_resource_max={"CPU": cpus}, name=name):
                meet.wait()
                tasks = [sh("sleep 0.2", num_cpus=10) for _ in range(2)]
                assert connect().tasks.wait(*[task.task_id for task in tasks]) == 0
                found[name] = (cluster_resources(), {task.info()["cluster_id"] for task in tasks},
                               summarize_tasks()["total"], len(list_clusters()))
                meet.wait()

        threads = [threading.Thread(target=read, args=one) for one in (("train", 80), ("test", 20))]
        [one.start() for one in threads]
        [one.join() for one in threads]
        here = get_runtime_context().current_cluster()
        tell(left=[str(one) for one in here.child_clusters()], total=cluster_resources(), free=available_resources(),
             here=here.cluster_id(), **{name: [one[0], sorted(one[1]), *one[2:]] for name, one in found.items()})
        """,
        virtual_cluster={"flexible_resource_min": {"CPU": 100}, "flexible_resource_max": {"CPU": 100}},
    )
    here = reported["here"]
    assert reported["train"] == [{"CPU": 80.0}, [f"{here}##train"], 2, 1]
    assert reported["test"] == [{"CPU": 20.0}, [f"{here}##test"], 2, 1]
    assert reported["left"] == []
    assert reported["total"] == reported["free"] == {"CPU": 100.0}


def test_placement_groups(daemon: Site) -> None:
    """What a placement group does: fixed nodes with a policy, and tasks that select a bundle by label."""
    daemon.nodes(3)
    reported = daemon.run(
        """
        def group(policy):
            return VirtualCluster(fixed_size_nodes=[FixedSizeNodes(
                [FixedSizeNode({"CPU": 1}, labels={"bundle": str(i)}) for i in range(3)], scheduling_policy=policy)])

        for policy in (STRICT_PACK, STRICT_SPREAD):
            with group(policy):
                tasks = {i: sh("true", label_selector={"bundle": In(i)}) for i in "012"}
                any_but = sh("true", label_selector={"bundle": NotIn("0", "1"), "other": DoesNotExist()})
                [task.wait() for task in (*tasks.values(), any_but)]
                bundles = {node["NodeID"]: node["Labels"]["bundle"] for node in nodes()}
                assert {i: bundles[task.info()["vnode_id"]] for i, task in tasks.items()} == {i: i for i in "012"}
                assert bundles[any_but.info()["vnode_id"]] == "2"
                tell(**{policy: len({node["NodeName"] for node in nodes()})})
        """,
        virtual_cluster={
            "fixed_size_nodes": [
                {"nodes": [{"resources": {"CPU": 4}}] * 3, "scheduling_policy": SPREAD},
            ]
        },
    )
    assert reported == {"STRICT_PACK": 1, "STRICT_SPREAD": 3}


def test_three_deep(daemon: Site) -> None:
    """Each block sees its own cluster and nothing beside it; a program in a task goes on from there."""
    daemon.nodes(1, {"CPU": 16})
    daemon.client.submit("sleep 100", num_cpus=1, submission_id="other")
    reported = daemon.run(
        """
        def look():
            here = get_runtime_context().current_cluster()
            return {
                "id": here.cluster_id(), "cpus": cluster_resources()["CPU"], "free": available_resources()["CPU"],
                "clusters": [one["cluster_id"] for one in list_clusters()],
                "tasks": [one["name"] for one in list_tasks()], "nodes": len(nodes()),
                "vnodes": {one["cluster_id"] for one in list_vnodes()} == {here.cluster_id()},
                "environment": os.environ["VCTL_CLUSTER_ID"] == os.environ["VIRTUAL_CLUSTER_ID"] == here.cluster_id(),
                "up": len(os.environ["VCTL_CLUSTER_PATH"].split("/")), "parent": here.parent_cluster().cluster_id(),
                "jobs": [one["submission_id"] for one in list_jobs()], "machines": len(list_nodes()),
            }

        steps = [look()]
        fixed = lambda cpus: {"flexible_resource_min": {"CPU": cpus}, "flexible_resource_max": {"CPU": cpus}}
        with VirtualCluster(**fixed(6), name="a") as a:
            sh("sleep 0.5", name="of a")
            steps.append(look())
            with VirtualCluster(**fixed(4), name="b"):
                steps.append(look())
                with VirtualCluster(**fixed(2), name="c"):
                    connect().run([sys.executable, "-c",
                        "from vctl import *\\n"
                        "with VirtualCluster(flexible_resource_min={'CPU': 1}, name='d') as d:"
                        " print(d.cluster_id, cluster_resources()['CPU'])"], name="of c").wait()
                    steps.append(look())
                    inner = connect().tasks.logs("last")
                    events = {one["kind"] for one in list_events()}
            steps.append(look())
            try:
                with a:
                    pass
            except BadSpec as error:
                again = str(error)
        steps.append(look())
        tell(steps=steps, inner=inner, again=again, events=sorted(events))
        """,
        submission_id="deep",
        virtual_cluster={"flexible_resource_min": {"CPU": 8}, "flexible_resource_max": {"CPU": 8}},
    )
    top = "kPrimaryClusterID##deep"
    a, b, c = f"{top}##a", f"{top}##a##b", f"{top}##a##b##c"
    steps = reported["steps"]
    assert [step["id"] for step in steps] == [top, a, b, c, a, top]
    assert [step["cpus"] for step in steps] == [8, 6, 4, 2, 6, 8]
    assert [step["clusters"] for step in steps] == [[top], [a], [b], [c], [a], [top]]
    assert [step["tasks"] for step in steps] == [
        [],
        ["of a"],
        [],
        ["of c"],
        ["of a", "of c"],
        ["of a", "of c"],
    ]
    assert [step["up"] for step in steps] == [2, 3, 4, 5, 3, 2]
    assert [step["parent"] for step in steps] == ["kPrimaryClusterID", top, a, b, top, "kPrimaryClusterID"]
    assert all(step["vnodes"] and step["environment"] for step in steps)
    assert all(step["nodes"] == step["machines"] == 1 for step in steps)
    assert [step["jobs"] for step in steps] == [["deep"], [], [], [], [], ["deep"]]
    assert steps[-1]["free"] == 8
    assert reported["inner"] == f"{c}##d 1.0\n"
    assert reported["again"].startswith("this VirtualCluster is entered already\nFix: ")
    assert "cluster.removed" in reported["events"]
    assert "job.submitted" not in reported["events"]


def test_where_a_process_is(daemon: Site) -> None:
    daemon.nodes(1, {"CPU": 4, "memory": "8GiB"})
    reported = daemon.run(
        """
        context = get_runtime_context()
        node, cluster = context.current_node(), context.current_cluster()
        task = sh("sleep 1")
        while task.state() != "RUNNING":
            time.sleep(0.01)
        tell(job=[context.job_id, context.submission_id, context.task_id, context.attempt, context.in_job],
             node=[node.node_id() == os.environ["VCTL_VNODE_ID"], node.physical_node_id() == context.physical_node_id,
                   node.total_resources(), node.used_resources(), node.avail_resources(), node.node_labels()["role"],
                   node.parent_node().node_id() == context.physical_node_id, node.parent_node().parent_node()],
             cluster=[cluster.used_object_store_memory(), cluster.available_resources(), cluster.max_resources()],
             state=cluster.state().summarize_tasks(), objects=summarize_objects(),
             top=cluster.parent_cluster().parent_cluster())
        task.cancel()
        """,
        submission_id="me",
        virtual_cluster={"fixed_size_nodes": [{"resources": {"CPU": 2}, "labels": {"role": "x"}}]},
    )
    assert reported["job"] == [1, "me", None, 1, True]
    assert reported["node"] == [True, True, {"CPU": 2.0}, {"CPU": 1.0}, {"CPU": 1.0}, "x", True, None]
    assert reported["cluster"] == [0.0, {"CPU": 1.0}, {"CPU": 2.0}]
    assert reported["state"] == {"kind": "tasks", "by": "state", "counts": {"RUNNING": 1}, "total": 1}
    assert reported["objects"]["total"] == 0
    assert reported["top"] is None


def test_a_block_waits_for_room(daemon: Site) -> None:
    daemon.nodes(1)
    reported = daemon.run(
        """
        busy = sh("sleep 1", num_cpus=3)
        while busy.state() != "RUNNING":
            time.sleep(0.01)
        for cpus in (2, 5):
            try:
                with VirtualCluster(flexible_resource_min={"CPU": cpus}, timeout_s=0.2):
                    tell(entered=cpus)
            except VctlError as error:
                tell(**{str(cpus): [error.code, error.exit_code, bool(error.fix)]})
        with VirtualCluster(flexible_resource_min={"CPU": 2}):
            tell(then=busy.state())
        """,
        virtual_cluster={"flexible_resource_min": {"CPU": 4}},
    )
    assert reported == {"2": ["Timeout", 7, True], "5": ["Infeasible", 3, True], "then": "FINISHED"}


def test_room_that_another_job_has_is_waited_for(daemon: Site) -> None:
    daemon.nodes(1)
    daemon.client.submit("sleep 1", num_cpus=2)
    reported = daemon.run(
        """
        with VirtualCluster(fixed_size_nodes=[FixedSizeNode({"CPU": 3})]) as vc:
            tell(total=vc.info().total_resources())
        """,
        virtual_cluster={"flexible_resource_min": {"CPU": 1}},
    )
    assert reported == {"total": {"CPU": 3.0}}


@spec("4.fields", "9.resize")
def test_a_program_may_have_whole_nodes_beside_slices(daemon: Site) -> None:
    """A logical cluster may not; the cluster of a job and those inside it may, and are resized so."""
    daemon.nodes(3, template="t")
    reported = daemon.run(
        """
        own = os.environ["VCTL_CLUSTER_ID"]
        connect().clusters.update(own, spec={"replica_sets": {"t": 2}, "flexible_resource_min": {"CPU": 2}})
        tell(total=cluster_resources()["CPU"])
        with VirtualCluster(replica_sets={"t": 1}, flexible_resource_min={"CPU": 1}):
            tell(inner=sorted([one["Kind"], one["Resources"]["CPU"]] for one in nodes()))
        """,
        virtual_cluster={"replica_sets": {"t": 1}, "flexible_resource_min": {"CPU": 1}},
    )
    assert reported == {"total": 10.0, "inner": [["fixed", 4.0], ["flexible", 1.0]]}


def test_an_exception_gives_everything_back(daemon: Site) -> None:
    daemon.nodes(1)
    reported = daemon.run(
        """
        try:
            with VirtualCluster(flexible_resource_min={"CPU": 2}) as outer, VirtualCluster() as inner:
                kept = sh("sleep 0.5", num_cpus=0.5, detach=True)
                lost = sh("sleep 100", num_cpus=1)
                while "RUNNING" not in (kept.state(), lost.state()):
                    time.sleep(0.01)
                1 / 0
        except ZeroDivisionError as error:
            tell(error=str(error), id=outer.cluster_id, lost=[lost.state(), lost.info()["state_reason"]])
            tell(kept=kept.wait())
        for _ in range(400):
            if len(list_clusters()) == 1:
                break
            time.sleep(0.05)
        tell(clusters=len(list_clusters()), free=available_resources())
        """,
        virtual_cluster={"flexible_resource_min": {"CPU": 4}},
    )
    assert reported["lost"] == ["FAILED", "Cancelled"]
    assert (reported["error"], reported["kept"], reported["id"]) == ("division by zero", 0, None)
    assert (reported["clusters"], reported["free"]) == (1, {"CPU": 4.0})


def test_objects_between_tasks(daemon: Site) -> None:
    """A program puts one object, tasks make others of it; each cluster sees its own and those below it."""
    daemon.nodes(2, {"CPU": 4})
    reported = daemon.run(
        """
        def sized(name):
            return sh(f"cat $VCTL_OBJECT_DIR/text > $VCTL_OBJECT_DIR/{name}", inputs=["text"], outputs=[name])

        place = os.environ["VCTL_OBJECT_DIR"]
        with open(os.path.join(place, "text"), "w") as file:
            file.write("x" * 1000)
        put = connect().tasks.put("text")
        first = sized("first")
        with VirtualCluster(flexible_resource_min={"CPU": 1}) as vc:
            second = sized("second")
            total = sh("cat $VCTL_OBJECT_DIR/first $VCTL_OBJECT_DIR/second | wc -c", inputs=["first", "second"])
            assert total.wait() == 0
            inner = get_runtime_context().current_cluster()
            told = [one["name"] for one in list_objects()], inner.used_object_store_memory()
        here = get_runtime_context().current_cluster()
        gone = sh("true", outputs=["first-2"])
        late = sh("true", inputs=["first-2"])
        tell(put=[put["object_id"], put["size"]], sum=total.logs().strip(), inner=told, code=[gone.wait(), late.wait()],
             info=[late.info()["state_reason"], total.info()["inputs"], second.info()["outputs"]],
             names=[one["name"] for one in list_objects()], summary=summarize_objects()["total"],
             same_place=[one["name"] for one in list_objects(filters=["name!=text"])],
             used=here.used_object_store_memory() == sum(len(one["node_ids"]) * one["size"] for one in list_objects()))
        try:
            sized("first")
        except Conflict as error:
            tell(refused=error.details)
        """,
        submission_id="j",
        virtual_cluster=VirtualCluster(flexible_resource_min={"CPU": 2}),
    )
    assert reported["put"] == ["j/text", 1000]
    assert reported["sum"] == "2000"
    assert reported["inner"][0] == ["second"]
    assert reported["inner"][1] >= 1000
    assert reported["names"] == ["first", "second", "text"]
    assert reported["same_place"] == ["first", "second"]
    assert reported["summary"] == 3
    assert reported["used"]
    assert reported["code"] == [1, 3]
    assert reported["info"] == ["InputFailed", ["first", "second"], ["second"]]
    assert reported["refused"] == {"object": "first"}
    assert vctl_objects(daemon) == []


def vctl_objects(site: Site) -> list[str]:
    return [one["name"] for one in site.client.list_objects()]
