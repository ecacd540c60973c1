"""``vctl task``: start commands inside a running job, watch and cancel them."""

from typing import Annotated

from vctl import cli
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, LISTS, NAMES_OUTPUTS, READS, SINCE, STATE, Timeout, WithProgress
from vctl.cli.declare import command, shows
from vctl.cli.output import Answer, done, each, listing, single_by
from vctl.operations import tasks
from vctl.spec.params import Arg, Given, Opt, Together

TaskRef = Annotated[str, Arg("TASK", help="Task id, its number, or last.", complete="tasks")]
TaskRefs = Annotated[list[str], Arg("TASK", help="Task ids, their numbers, or last.", complete="tasks")]


@command(
    "task run",
    "vctl task run -- python part.py 1",
    "vctl task run --num-gpus 1 --no-wait -- python part.py 2",
    "vctl task run --job last --num-cpus 2 --strategy SPREAD -- ./shard.sh",
    "vctl task run --no-wait --output words -- sh -c 'wc -w < book.txt > $VCTL_OBJECT_DIR/words'",
    "vctl task run --input words -- sh -c 'cat $VCTL_OBJECT_DIR/words'",
    common=NAMES_OUTPUTS,
    own_words=True,
    waits=True,
)
def run(
    call: Call,
    options: Annotated[Given, Together.of(tasks.run)],
    no_wait: Annotated[bool, Opt("--no-wait", waits=False, help="Print the task id and return.")] = False,
    progress: WithProgress = False,
) -> Answer | int:
    """Run a command inside a running job, with resources of its own.

    The task starts on a virtual node of the job's cluster that has the resources free; if none has, the cluster
    grows or the task waits. Its output is shown and its exit code is returned. Ctrl-C detaches: the task goes on.

    Objects are files or directories in $VCTL_OBJECT_DIR that tasks of a job hand to each other by name: a task
    starts once its inputs are there, on the virtual node that holds most of their bytes if it can, and finds them in
    that directory.
    """
    call.note(cli.submission.small_amounts(call.written))
    if not no_wait:
        call.require_scheduler()
    task = tasks.run(call.backend, **(options or {}))
    call.note(cli.submission.unread_input())
    if no_wait:
        call.warn_if_nothing_schedules()
        return done(task, task["task_id"], task["task_id"])
    return cli.waiting.followed(call, cli.waiting.TASKS, task, progress=progress)


@command("task put", "vctl task put book", common=CHANGES)
def put(call: Call, name: Annotated[str, Arg("NAME", help="The name of the object.")]) -> Answer:
    """Make a file that the job wrote an input for its tasks: $VCTL_OBJECT_DIR/NAME.

    Tasks declare their outputs with --output; this command is for the job's own command. The files become read-only.
    """
    made = tasks.put(call.backend, name, tasks.inside())
    return done(made, made["object_id"], f"object {made['object_id']} is there ({made['size']} bytes)")


@command(
    "task list",
    "vctl task list",
    "vctl task list --job last -a -o json",
    "vctl task list --state FAILED --since 1h",
    common=(STATE, SINCE, *LISTS),
)
def list_(
    call: Call,
    all_: Annotated[bool, Opt("-a", "--all", help="Include finished ones (JSON always has them).")] = False,
    job: tasks.InJob = None,
    cluster: tasks.InCluster = None,
) -> Answer:
    """List tasks, oldest first: inside a job the tasks of that job, else all."""
    over_too = call.over_too("tasks", requested=all_)
    items, total = tasks.list_tasks(
        call.backend, all=over_too, filters=call.filters, limit=call.limit,
        job=job or (call.current_job if cluster is None else None), cluster=cluster and call.cluster(cluster),
    )  # fmt: skip
    none = "no tasks" if over_too else "no tasks are waiting or running; -a shows finished ones"
    return listing("TaskList", items, total, "task_id", cli.columns.TASKS, none)


shows(
    tasks.get_task, single_by("task_id"),
    "vctl task status last", "vctl task status task-7 -o json", common=READS, path="task status",
)  # fmt: skip


@command("task logs", "vctl task logs last", "vctl task logs --follow task-7", common=CHANGES)
def logs(
    call: Call,
    task: TaskRef,
    follow: cli.common.Follow = False,
    tail: cli.common.Tail = None,
    raw: cli.common.Raw = False,
    progress: WithProgress = False,
) -> int:
    """Print the output of a task."""
    return cli.waiting.print_log(
        call, cli.waiting.TASKS, task, follows=follow, tail=tail, progress=progress, raw=raw
    )


@command("task cancel", "vctl task cancel task-7", "vctl task cancel 7 8 --grace 10s", common=CHANGES)
def cancel(call: Call, tasks_: TaskRefs, grace_s: tasks.Grace = None) -> Answer:
    """Cancel tasks: SIGTERM to every process, and SIGKILL after the grace period."""
    ids = [tasks.get_task(call.backend, ref)["task_id"] for ref in tasks_]  # an unknown id cancels none
    cancelled = [tasks.cancel(call.backend, task_id, grace_s=grace_s) for task_id in ids]
    if any(task["state"] == "RUNNING" for task in cancelled):
        call.warn_if_nothing_schedules()
    states = {"RUNNING": "being cancelled"}
    return each(
        "TaskList", "task_id", cancelled,
        lambda task: f"task {task['task_id']} is {states.get(task['state'], task['state'])}",
    )  # fmt: skip


@command("task wait", "vctl task wait last", "vctl task wait 7 8 9 --timeout 1h", common=CHANGES, waits=True)
def wait(
    call: Call, tasks_: TaskRefs, timeout_s: Timeout = None, progress: WithProgress = False
) -> Answer | int:
    """Wait until tasks end, and exit with the first exit code that is not 0."""
    return cli.waiting.waited(call, cli.waiting.TASKS, tasks_, timeout_s=timeout_s, progress=progress)
