"""A command beside a running job (``vctl attach``): a task without resources that sees those of the job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.errors import Conflict, NotFound, NotPermitted
from vctl.ops import arrays, rights, tasks
from vctl.ops.jobs import resolve
from vctl.runtime import namespaces, processes
from vctl.spec.task_request import TaskRequest
from vctl.store import jobs, rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import TaskForm

NAME = "attach"
_NOT_SHOWN = ("VCTL_RUN_ID", "VCTL_HOME")


def attach(
    store: Store, ref: str, argv: Sequence[str], relay: tuple[str, str], env: Mapping[str, str]
) -> TaskForm | None:
    """Queue a command beside the main process of a job; None while that is being started.

    ``env`` has the variables of the terminal, if it gets one. It gets the variables with which that process began, the
    directory of the job, and its place: of a gang those of the lowest rank. It holds no resources, and ends with the
    job.
    """
    with store.snapshot():
        row = _running(store, ref)
        run = jobs.main_run(store, row["job_id"])
        launch = jobs.launch(store, row["job_id"])
        assert launch is not None
    if run is None or run["pid"] is None:
        return None
    if run["boot_id"] != processes.boot_id():
        raise NotPermitted(
            f"job {row['submission_id']} runs on another machine, {run['node_id']}",
            fix=f"run a command there with `vctl task run --job {row['submission_id']} --num-cpus 0 -- CMD`",
        )
    environ = processes.environment(namespaces.command_of(run["pid"]))
    if not environ or not processes.alive(run["pid"], run["pid_start"], run["boot_id"]):
        return None
    environ = {name: value for name, value in environ.items() if name not in _NOT_SHOWN}
    request = TaskRequest(
        argv=tuple(argv),
        request={},
        strategy=f"NODE:{run['vnode_id']}",
        name=NAME,
        job=row["submission_id"],
        cwd=os.fsdecode(launch["cwd"]),
        env=env,
        options={
            "relay": list(relay),
            "beside": run["run_id"],
            "sees_all": bool(rows.loads(launch["options"]).get("sees_all")),
        },
    )
    return tasks.run(store, request, environment=environ)


def _running(store: Store, ref: str) -> Row:
    if (array := arrays.named(store, ref)) is not None:
        one = (
            f"{array['array_id']}_{str(array['range']).partition('-')[0].partition(',')[0].partition('%')[0]}"
        )
        raise NotFound(f"{array['array_id']} is an array of jobs", fix=f"name one of them, such as {one}")
    row = jobs.get(store, resolve(store, ref))
    assert row is not None
    rights.check_own(store, row, "attach to")
    if row["status"] != jb.RUNNING or row["outcome"] is not None:
        waits = row["status"] == jb.PENDING
        fix = (
            f"wait for its start: `vctl why {row['submission_id']}`"
            if waits
            else "see the running ones: `vctl ps`"
        )
        over = "" if row["outcome"] is None else ", its main process is over"
        raise Conflict(
            f"job {row['submission_id']} is {row['status']}{over}: there is nothing to attach to", fix=fix
        )
    return row
