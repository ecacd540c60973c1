"""``vctl timeline``: when jobs and tasks ran and where, as rows and as events for a viewer of traces."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from vctl import cli, operations
from vctl.cli.call import Call
from vctl.cli.common import LIMIT, READS, InCluster
from vctl.cli.declare import command
from vctl.cli.output import Answer, Data, listing
from vctl.spec.params import Opt

if TYPE_CHECKING:
    from vctl.spec.documents import TimelineForm

ARE_WAITING = ["PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT"]


def _row(kind: str, key: str, state: str, form: Data) -> "TimelineForm":
    return {
        "kind": kind,
        "id": form[key],
        "state": form[state],
        "node_ids": form["node_ids"] if kind == "job" else [form["node_id"]] if form["node_id"] else [],
        "job_id": form["job_id"],
        "name": form["name"],
        "cluster_id": form["cluster_id"],
        "resources": form["resources"],
        "started_at": form["started_at"],
        "ended_at": form["ended_at"],
        "run_s": cli.words.seconds_between(form["started_at"], form["ended_at"]),
    }


def _events(row: Data) -> Iterator[Data]:
    """One *complete* event of Chrome's trace format for each node, with times in microseconds."""
    start = datetime.fromisoformat(row["started_at"])
    end = datetime.fromisoformat(row["ended_at"]) if row["ended_at"] else datetime.now(UTC)
    for node in row["node_ids"]:
        yield {
            "name": row["name"] or row["id"], "cat": row["kind"], "ph": "X", "pid": node, "tid": row["id"],
            "ts": int(start.timestamp() * 1e6), "dur": int(max(0.0, (end - start).total_seconds()) * 1e6),
            "args": {name: row[name] for name in ("id", "job_id", "cluster_id", "state", "resources")},
        }  # fmt: skip


@command(
    "timeline",
    "vctl timeline",
    "vctl timeline --since 1h -o json > trace.json",
    common=(LIMIT, *READS),
)
def timeline(
    call: Call,
    cluster: InCluster = None,
    since: Annotated[
        str | None,
        Opt("--since", metavar="TIME", help="Only what was submitted in the last 1h, or since a time."),
    ] = None,
) -> Answer:
    """Show when jobs and tasks ran, and on which nodes.

    The JSON form is also a trace: https://ui.perfetto.dev and chrome://tracing draw it, one line for each job and task.
    """
    within = call.existing_cluster(cluster)
    rows: list[Data] = []
    total = 0
    for kind, read, key, state, begin, waiting in (
        ("job", operations.jobs.list_jobs, "submission_id", "status", "submitted_at", ["PENDING"]),
        ("task", operations.tasks.list_tasks, "task_id", "state", "created_at", ARE_WAITING),
    ):
        filters = [f"{state}!={word}" for word in waiting] + ([call.began(begin, since)] if since else [])
        forms, count = read(call.backend, cluster=within, filters=filters, limit=call.limit)
        begun = [_row(kind, key, state, form) for form in forms if form["started_at"]]
        rows += begun
        total += count - len(forms) + len(begun)
    rows.sort(key=lambda row: (row["started_at"], row["id"]))
    shown = rows if call.limit is None else rows[max(0, len(rows) - call.limit) :]
    answer = listing("TimelineList", shown, total, "id", cli.columns.TIMELINE, "nothing has run yet")
    answer.newest_last = True
    answer.data["traceEvents"] = [event for row in shown for event in _events(row)]
    return answer
