"""``vctl vc``: create, change and show virtual clusters."""

from typing import TYPE_CHECKING, Annotated

from vctl import cli
from vctl.cli import bounds, queue_options
from vctl.cli.call import Call
from vctl.cli.command_client import INTERRUPTED
from vctl.cli.commands.objects import listed
from vctl.cli.common import CHANGES, LISTS, NO_LOCAL_NODE, READS, STATE, InCluster
from vctl.cli.declare import command, shows
from vctl.cli.output import Answer, Data, done, single, single_by
from vctl.core.clusters import ACTIVE
from vctl.core.gates import HELD
from vctl.core.jobs import RUNNING
from vctl.errors import Conflict
from vctl.operations import clusters, jobs
from vctl.spec.params import Arg, Given, Opt, Together

if TYPE_CHECKING:
    from vctl.spec.documents import NotDue, RemovedCluster


def _changed(cluster: Data, sentence: str) -> Answer:
    """The answer of a command that changed a cluster; the sentence has its id as tables show it."""
    return done(
        cluster, cluster["cluster_id"], f"virtual cluster {cli.words.named(cluster['cluster_id'])} {sentence}"
    )


@command(
    "vc create",
    "vctl vc create team-a --divisible --replica-sets '{\"8c16g\": 2}'",
    "vctl vc create team-b --divisible --min CPU=4,memory=8GiB --max CPU=8",
    """vctl vc create lab --divisible --max CPU=16 --user-template '{"flexible_resource_max": {"CPU": 4}}'""",
    'vctl vc create small --spec \'{"flexible_resource_min": {"CPU": 2}}\' --parent team-a',
    common=(NO_LOCAL_NODE, *CHANGES),
)
def create(
    call: Call,
    options: Annotated[Given, Together.of(clusters.create)],
    parent: Annotated[
        str | None,
        Opt(
            "--parent",
            metavar="ID",
            complete="clusters",
            help="Parent cluster (default: inside a job the cluster of the job, else the primary).",
        ),
    ] = None,
    limits: Annotated[Given, bounds.BOUNDS] = None,
    queue: Annotated[Given, queue_options.OPTIONS] = None,
) -> Answer:
    """Create a virtual cluster."""
    values = dict(options or {})
    if limits:
        bounds.check_alone(limits, values)
        values["spec"] = bounds.spec_of(limits, {})
    call.note(bounds.small_memory(limits))
    with bounds.spelled(limits):
        made = clusters.create(
            call.backend, **values, parent=call.cluster(parent), queue=queue_options.queue_of(queue)
        )
    return _changed(made, f"created, revision {made['revision']}")


@command(
    "vc update",
    "vctl vc update team-a --replica-sets '{\"8c16g\": 3}'",
    "vctl vc update team-a --replica-sets @team-a.json --revision 1763640000000000000",
    "vctl vc update team-b --max CPU=12",
    "vctl vc update primary --queue-order fair --queue-discipline backfill",
    "vctl vc update primary --preemption requeue --min-runtime 10m --preemption-grace 1m",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def update(
    call: Call,
    options: Annotated[Given, Together.of(clusters.update)],
    limits: Annotated[Given, bounds.BOUNDS] = None,
    queue: Annotated[Given, queue_options.OPTIONS] = None,
) -> Answer:
    """Change the resources of a virtual cluster: the whole change or none of it.

    The queue settings can be changed too; of the primary cluster only they can.
    """
    values = dict(options or {})
    if limits:
        bounds.check_alone(limits, values)
        present = clusters.get_cluster(call.backend, values["cluster_id"])
        values["spec"] = bounds.spec_of(limits, present["spec"])
        values.setdefault("revision", present["revision"])  # the spec was made from what it was then
    call.note(bounds.small_memory(limits))
    with bounds.spelled(limits):
        data = clusters.update(call.backend, **values, queue=queue_options.queue_of(queue))
    return _changed(data, f"updated, revision {data['revision']}")


def _admission(cluster: Data) -> Answer:
    return _changed(cluster, f"is {cluster['state']}")


shows(
    clusters.stop, _admission,
    "vctl vc stop team-a", "vctl vc stop team-a --message 'upgrade until noon'", common=CHANGES,
)  # fmt: skip
shows(clusters.resume, _admission, "vctl vc resume team-a", common=CHANGES)


def _booked(cluster: Data) -> Answer:
    begins = "open" if cluster["state"] == ACTIVE else f"booked from {cli.words.moment(cluster['begin_at'])}"
    return _changed(cluster, f"is {begins} until {cli.words.moment(cluster['end_at'])}")


shows(
    clusters.reserve, _booked,
    "vctl reserve --gpus 2 --cpus 8 --at 14:00 --for 2h --name demo",
    "vctl reserve --gpus 4 --nodes 2 --at 2030-01-31T08:00 --for 1d -c research", common=(NO_LOCAL_NODE, *CHANGES),
)  # fmt: skip

MOST_NAMED = 5
"""The most jobs of a kind that a deletion names."""


@command("vc delete", "vctl vc delete team-a", "vctl vc delete team-a --drain", common=CHANGES)
def delete(
    call: Call,
    options: Annotated[Given, Together.of(clusters.delete)],
    no_wait: Annotated[bool, Opt("--no-wait", waits=False, help="Return before it is empty.")] = False,
) -> Answer:
    """Delete a virtual cluster; its nodes go back to its parent."""
    given = options or {}
    waits = not no_wait and (given.get("drain") or given.get("force"))
    data = _deleted_if_unused(call, **given) if waits and not call.is_remote else None
    data = data or clusters.delete(call.backend, **given)
    if data["state"] != "REMOVED":
        _tell_not_due(call, data)
    if data["state"] != "REMOVED" and not no_wait and cli.waiting.until_removed(call, data["cluster_id"]):
        data["state"] = "REMOVED"
    if data["state"] == "REMOVED":
        return _changed(data, "deleted")
    answer = _changed(data, "will be deleted when it is empty")
    answer.code = 0 if no_wait else INTERRUPTED
    return answer


def _tell_not_due(call: Call, data: "RemovedCluster") -> None:
    """Say which jobs keep a cluster that is to be deleted although they may not start yet, and until when."""
    kept_by, name = data["kept_by"], cli.words.named(data["cluster_id"])
    held = [job for job in kept_by if job["state_reason"] == HELD]
    later = [job for job in kept_by if job["state_reason"] != HELD]
    for some, what in ((held, "on hold"), (later, "not due yet")):
        if some:
            names = [_not_due(job) for job in some[:MOST_NAMED]]
            more = f" and {len(some) - len(names)} more" if len(some) > len(names) else ""
            ref = some[0]["submission_id"]
            release = f"vctl job release {ref}, or " if some is held else ""
            call.note(
                f"{what}, so {name} waits for them: {', '.join(names)}{more}; {release}vctl job stop {ref}"
            )


def _not_due(job: "NotDue") -> str:
    members = f" ({job['members']} members)" if job["members"] > 1 else ""
    why = "" if job["state_reason"] == HELD else f" ({job['message']})"
    return f"{job['submission_id']}{members}{why}"


def _deleted_if_unused(
    call: Call, cluster_id: str, *, force: bool = False, **_: object
) -> "RemovedCluster | None":
    """Delete a cluster if it has no users. Otherwise keep it: the end of its users may need a scheduler."""
    try:
        return clusters.delete(call.backend, cluster_id)
    except Conflict as refused:
        if "blockers" not in refused.details:
            raise
        users = [user.partition(" ") for user in refused.details["blockers"]]
    # a pending job is stopped at once
    if not force or any(
        kind != "job" or jobs.get_job(call.backend, name, forecast=False)["status"] == RUNNING
        for kind, _, name in users
    ):
        call.require_scheduler()
    return None


@command(
    "vc remove-nodes",
    "vctl vc remove-nodes team-a 8c16g-00",
    "vctl vc remove-nodes team-a n1 n2",
    common=CHANGES,
)
def remove_nodes(call: Call, cluster_id: clusters.Id, nodes: clusters.Members) -> Answer:
    """Give idle nodes of a virtual cluster back to its parent, all or none."""
    data = clusters.remove_nodes(call.backend, cluster_id, nodes)
    counted = "node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    name = cli.words.named(data["cluster_id"])
    return done(data, data["cluster_id"], f"{counted} removed from virtual cluster {name}")


@command("vc list", "vctl vc list", "vctl vc list --filter kind=logical -o json", common=(STATE, *LISTS))
def list_(call: Call, cluster: InCluster = None) -> Answer:
    """List virtual clusters of every kind: inside a job its own and those below it."""
    return listed(call, "clusters", call.existing_cluster(cluster), "no virtual clusters")


shows(
    clusters.get_cluster, single_by("cluster_id"),
    "vctl vc get team-a", "vctl vc get primary -o json", common=READS,
)  # fmt: skip


@command("vc tree", "vctl vc tree", "vctl vc tree team-a", common=READS)
def tree(
    call: Call,
    cluster_id: Annotated[
        str | None,
        Arg(
            "ID",
            help="Top of the tree (default: inside a job its cluster, else the primary).",
            complete="clusters",
        ),
    ] = None,
) -> Answer:
    """Show virtual clusters as a tree, with the used resources of each."""
    data = clusters.tree(call.backend, call.cluster(cluster_id))
    branches = cli.tree.flatten(data)
    answer = single(data, data["cluster_id"], lambda screen: cli.tree.draw(screen, branches))
    answer.names = [branch["cluster_id"] for branch in branches]
    return answer
