"""Commands that wait for jobs, tasks, their output and their ends: loops over ``wait`` and ``follow`` of a backend."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from vctl import cli, operations, ops
from vctl.cli.command_client import INTERRUPTED
from vctl.cli.progress import Progress
from vctl.core import jobs as jb
from vctl.core.caller import Caller
from vctl.core.text import VisibleLines
from vctl.errors import BadSpec, NotFound, TimedOut
from vctl.ops import logs
from vctl.ops.forms import exit_code, failure_of

if TYPE_CHECKING:
    from vctl.cli.call import Call
    from vctl.cli.output import Answer
    from vctl.ops.waiting import Kind

Form = Mapping[str, Any]

JOBS: Kind = "jobs"
TASKS: Kind = "tasks"
KEYS = {JOBS: "submission_id", TASKS: "task_id"}

ANY_S = 0.5
"""Seconds between two looks at several jobs of which one is to end."""

SHELL_WORDS = frozenset("cd export source . alias ulimit umask set unset if for while exit".split())


def get(call: Call, kind: Kind, ref: str) -> Form:
    """A job or a task by any of its names."""
    if kind == JOBS:
        return operations.jobs.get_job(call.backend, ref, forecast=False)
    return operations.tasks.get_task(call.backend, ref)


def followed(
    call: Call, kind: Kind, form: Form, *, progress: bool, stop_on_interrupt: bool = False
) -> Answer | int:
    """Show the output of a job or task; with ``-o`` only its JSON form at its end, or when Ctrl-C detaches."""
    name, silent = str(form[KEYS[kind]]), call.requested_output not in (None, "table")
    try:
        code = follow(call, kind, form, progress=progress, stop_on_interrupt=stop_on_interrupt, silent=silent)
    except BrokenPipeError:  # the program that reads the output has ended
        cli.call.tell(_goes_on(kind, name))
        raise
    return cli.output.single(get(call, kind, name), name, code=code) if silent else code


def follow(
    call: Call,
    kind: Kind,
    form: Form,
    *,
    progress: bool,
    stop_on_interrupt: bool = False,
    silent: bool = False,
    raw: bool = False,
    merged: bool = False,
) -> int:
    """Wait for the end of a job or task; returns its exit code. Ctrl-C detaches, or stops the job.

    Its output is shown, and why it failed, unless ``silent``. Of an array the progress is shown, or the ``merged``
    output of its members.
    """
    name, array = str(form[KEYS[kind]]), "array" in form and not merged
    shows = None if array or silent else logs.write_out if raw else _writer(call, kind, form)
    warn_of_itself(call, name)
    with _interruptible(call):
        line = Progress(sys.stderr, always=progress or (array and not silent))
        try:
            ended = _until_over(call, kind, name, line, shows=shows)
        except KeyboardInterrupt:
            if not stop_on_interrupt:
                if sys.stderr.isatty():  # the terminal shows ^C
                    sys.stderr.write("\n")
                call.note(_goes_on(kind, name))
                return INTERRUPTED
            operations.jobs.stop(call.backend, name)
            ended = _until_over(call, kind, name, line, shows=shows)
    if ended is not None and not silent:
        _tell_end(call, ended)
    return exit_code(ended)


def _goes_on(kind: Kind, name: str) -> str:
    noun, verb = kind[:-1], "stop" if kind == JOBS else "cancel"
    return f"Detached: {noun} {name} goes on. {verb.capitalize()} it with: vctl {noun} {verb} {name}"


def waited(
    call: Call,
    kind: Kind,
    refs: Sequence[str],
    *,
    timeout_s: float | None,
    progress: bool,
    first: bool = False,
) -> Answer | int:
    """Wait until all jobs or tasks are over, or the ``first`` of the jobs; with ``-o`` then show them."""
    refs = cli.matching.expanded(call, refs) if kind == JOBS else refs
    forms = [get(call, kind, ref) for ref in refs]
    for form in forms:
        _warn_of_own_end(call, kind, form)
    names = [str(form[KEYS[kind]]) for form in forms]
    for name in names:
        warn_of_itself(call, name)
    if first:
        ended = first_over(call, names, timeout_s=timeout_s)
        if ended is None:
            return INTERRUPTED
        return _all(call, kind, [ended["submission_id"]], exit_code(ended))
    code = wait_for(call, kind, names, timeout_s=timeout_s, progress=progress)
    if call.requested_output is None:
        return code
    return _all(call, kind, refs, code)


def all_followed(
    call: Call, names: Sequence[str], *, progress: bool, stop_on_interrupt: bool
) -> Answer | int:
    """Wait for the jobs of a batch; with ``-o`` then show them. Ctrl-C detaches, or stops them."""
    silent = call.requested_output not in (None, "table")
    try:
        warn_of_itself(call, names[0])
        code = wait_for(call, JOBS, names, timeout_s=None, progress=progress or not silent)
    except KeyboardInterrupt:  # before it waits
        code = INTERRUPTED
    if code == INTERRUPTED and stop_on_interrupt:
        for name in names:
            operations.jobs.stop(call.backend, name)
        code = wait_for(call, JOBS, names, timeout_s=None, progress=progress or not silent)
    if code == INTERRUPTED:
        call.note(f"Detached: {len(names)} jobs go on. See them with: vctl job list")
        return code
    return _all(call, JOBS, names, code) if silent else code


def _all(call: Call, kind: Kind, refs: Sequence[str], code: int) -> Answer:
    over = [get(call, kind, ref) for ref in refs]
    key, title = KEYS[kind], f"{kind[:-1].capitalize()}List"
    return cli.output.each(
        title, key, over, lambda form: f"{form[key]} {form.get('status') or form['state']}", code=code
    )


def _writer(call: Call, kind: Kind, form: Form) -> Callable[[bytes], None]:
    """What writes the output of a job or task: on a terminal, control sequences of another user are only shown."""
    if not sys.stdout.isatty():
        return logs.write_out
    owner = form if kind == JOBS else get(call, JOBS, str(form["job_id"])) if form.get("job_id") else None
    if owner is None or owner["user"] == ops.nodes.own_name():
        return logs.write_out
    lines = VisibleLines()
    return lambda block: logs.write_out(lines.shown(block))


def print_log(
    call: Call, kind: Kind, ref: str, *, follows: bool, tail: int | None, progress: bool, raw: bool = False
) -> int:
    """Print the present output of a job or task, or follow it; where a job has none, tell why it has not started.

    ``raw``: with the control sequences of another user, too.
    """
    if tail is not None and (follows or tail < 0):
        problem = "it cannot be combined with --follow" if follows else f"{tail} is negative"
        raise BadSpec(f"--tail: {problem}", fix="leave one of the two out" if follows else "write 0 or more")
    if follows:
        form = get(call, kind, ref)
        _warn_of_own_end(call, kind, form)
        return follow(call, kind, form, progress=progress, raw=raw, merged=True)
    written = False
    write = logs.write_out if raw or not sys.stdout.isatty() else _writer(call, kind, get(call, kind, ref))
    for block in call.backend.log(kind, ref, tail=tail):
        written = written or bool(block)
        write(block)
    if not written and kind == JOBS:
        job = get(call, kind, ref)
        name, why = job["submission_id"], job["message"] or job["state_reason"]
        if job["status"] == jb.PENDING:
            started = "has no output yet" if job["attempt"] else "has not started, so it has no output"
            call.note(f"job {name} {started}: {why}; vctl why {name}")
        elif not job["attempt"]:
            call.note(f"job {name} never started, so it has no output: {why}")
    return 0


def wait_for(
    call: Call, kind: Kind, names: Sequence[str], *, timeout_s: float | None, progress: bool = False
) -> int:
    """Wait until all jobs or tasks are over; returns the first exit code that is not 0, in the given order, else 0."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    codes: list[int] = []
    with _interruptible(call):
        line = Progress(sys.stderr, always=progress)
        for index, name in enumerate(names):
            line.about = f" ({index} of {len(names)} are over)" if len(names) > 1 else ""
            try:
                ended = _until_over(call, kind, name, line, give_up=give_up)
                codes.append(exit_code(ended))
                if ended is not None and "array" in ended and call.requested_output is None:
                    _tell_end(call, ended)
            except TimedOut:
                raise TimedOut(f"not done after {timeout_s:g} s", fix="wait longer with --timeout") from None
            except KeyboardInterrupt:
                return INTERRUPTED
    return next((code for code in codes if code), 0)


def first_over(call: Call, names: Sequence[str], *, timeout_s: float | None) -> Form | None:
    """Wait until one of some jobs is over, an array standing for its members; its form, None after an interrupt.

    Of several that are over it is the one that ended first.
    """
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    with _interruptible(call):
        try:
            while True:
                jobs, _ = operations.jobs.list_jobs(call.backend, named=names, forecast=False)
                over = [job for job in jobs if job["status"] in jb.FINAL]
                if over:
                    return min(over, key=lambda job: (job["ended_at"] or "", job["job_id"]))
                left_s = ANY_S if give_up is None else give_up - time.monotonic()
                if left_s <= 0:
                    raise TimedOut(f"none is over after {timeout_s:g} s", fix="wait longer with --timeout")
                call.backend.wait(JOBS, names[0], min(ANY_S, left_s))  # sees to it that a scheduler runs
        except KeyboardInterrupt:
            return None


def until_removed(call: Call, cluster_id: str) -> bool:
    """Wait until a cluster is deleted; False after an interrupt."""
    with _interruptible(call):
        try:
            return call.backend.wait("clusters", cluster_id).over
        except KeyboardInterrupt:
            return False


def warn_of_itself(call: Call, name: str) -> None:
    """Inside a job: warn when the awaited job or task needs resources that this job holds."""
    if not os.environ.get("VCTL_SUBMISSION_ID"):
        return
    if call.is_remote:
        call.note(operations.jobs.why(call.backend, name).get("waits_for_itself"))
    else:
        call.note(ops.why.waits_for_itself(call.store, name))


def _warn_of_own_end(call: Call, kind: Kind, form: Form) -> None:
    """Inside a job, but not in a task, which may be detached: warn when the awaited job is this one."""
    caller = Caller.of(os.environ)
    if kind != JOBS or caller is None or os.environ.get("VCTL_TASK_ID") or "array" in form:
        return
    name = str(form["submission_id"])
    if (form["job_id"], name) == (caller.job_id, caller.submission_id) and not ops.waiting.is_over(form):
        call.note(f"{name} is the job of this command: if it waits for this command, both wait forever.")


def _until_over(
    call: Call,
    kind: Kind,
    name: str,
    line: Progress,
    *,
    shows: Callable[[bytes], None] | None = None,
    give_up: float | None = None,
) -> Form | None:
    """Wait until a job or task is over; returns its form, None if it was deleted. ``shows`` writes its output, too.

    Raises TimedOut at the time ``give_up``.
    """
    try:
        if shows is not None:
            with suppress(NotFound):  # it was deleted meanwhile
                _show(call, kind, name, line, shows)
        while True:
            timeout_s = line.EVERY_S if line.active else None
            if give_up is not None:
                remaining_s = max(0.0, give_up - time.monotonic())
                timeout_s = remaining_s if timeout_s is None else min(timeout_s, remaining_s)
            over, form = call.backend.wait(kind, name, timeout_s)
            line.see(_with_start(call, form, line), over=over)
            if over:
                return form
            if give_up is not None and time.monotonic() >= give_up:
                raise TimedOut("")
    except BaseException:
        line.end()
        raise


def _with_start(call: Call, form: Form | None, line: Progress) -> Form | None:
    """The form of what is waited for, with the expected start of a job where the line is to show it."""
    if form is None or form.get("status") != jb.PENDING or "array" in form or not line.wants_start:
        return form
    try:
        asked = operations.jobs.get_job(call.backend, str(form["submission_id"]))
    except NotFound:
        return form
    line.expect(asked["expected_start"])
    return form


def _show(call: Call, kind: Kind, name: str, line: Progress, write: Callable[[bytes], None]) -> None:
    """Write the output of a job or task until it is over, with the progress line while there is none."""
    every_s = line.EVERY_S if line.active else None
    blocks = call.backend.follow(kind, name, offset=line.shown, every_s=every_s)
    with closing(blocks):  # type: ignore[type-var]  # a generator has close
        for block in blocks:
            if line.is_due or (block and not line.settled):  # a line goes before output comes
                over, form = call.backend.wait(kind, name, 0)
                line.see(_with_start(call, form, line), over=over, follows=True)
            line.shown += len(block)
            write(block)


@contextmanager
def _interruptible(call: Call) -> Iterator[None]:
    """While a command waits, SIGTERM acts like Ctrl-C, and both end only the waiting."""
    assert call.lasts, f"vctl {call.command.path} waits, and does not declare it"
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell_end(call: Call, form: Form) -> None:
    """Tell why a job or task failed, where its output does not show that."""
    if "task_id" in form:
        call.note(failure_of(form))
    elif "array" in form:
        for sentence in ops.arrays.failed(form):
            call.note(sentence)
    elif form["status"] != jb.SUCCEEDED and form["state_reason"] != jb.NON_ZERO_EXIT:
        call.note(f"Job {form['submission_id']} {form['status']}: {form['state_reason']}: {form['message']}")
        if form["state_reason"] == jb.LAUNCH_FAILED:
            from shlex import split

            tell_shell_line(call, split(form["entrypoint"]))


def tell_shell_line(call: Call, words: Sequence[str]) -> None:
    """Tell how to run a command in a shell, if its first word is a whole line or a builtin of the shell."""
    from shlex import quote

    is_line = len(words) == 1 and len(words[0].split()) > 1
    if is_line or words[0] in SHELL_WORDS:
        typed = call.command.path
        typed = typed if cli.catalog.SHORT.get(typed) == "job submit" else "job submit"
        call.note(f"Fix: run the line in a shell: vctl {typed} -- sh -c {quote(' '.join(words))}")
