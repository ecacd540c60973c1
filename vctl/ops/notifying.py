"""What a notice of a start or an end says, and to whom (``--notify``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from vctl import engine, ops
from vctl.core import jobs as jb
from vctl.core.values import value
from vctl.errors import VctlError
from vctl.runtime import deliveries
from vctl.spec import notify as spec
from vctl.spec.documents import JobForm
from vctl.store import ahead, contents, notifications, rows
from vctl.store.store import Row, Store

START = "start"
_PATH = "/usr/local/bin:/usr/bin:/bin"


@value(frozen=True, slots=True)
class Notice:
    """A notice that is to be sent."""

    number: int
    subject: str
    job_id: int
    moment: str
    is_repeatable: bool
    """Whether it is tried again where it fails: a command is not."""
    carry_out: Callable[[], None]


def next_notice(store: Store, busy: Iterable[str]) -> Notice | None:
    """The oldest notice of a job or array that is not busy. One that nobody asked for any more is over."""
    busy = set(busy)
    while (row := notifications.next_due(store, busy)) is not None:
        try:
            with store.snapshot():
                return _notice(store, row)
        except (
            VctlError,
            LookupError,
            ValueError,
        ) as error:  # the job was deleted, or its row cannot be read
            problem = error.problem if isinstance(error, VctlError) else f"{type(error).__name__}: {error}"
            _record(store, row["number"], row["subject"], row["job_id"], row["moment"], problem)
    return None


def over(store: Store, notice: Notice, problem: str | None) -> None:
    """Record that a notice was sent, or why it was given up."""
    _record(store, notice.number, notice.subject, notice.job_id, notice.moment, problem or None)


def _record(store: Store, *fields: Any) -> None:
    with ahead.left_alone(store), store.transaction():
        store.emit(engine.changes.NoticeSent(*fields))


def _notice(store: Store, row: Row) -> Notice:
    launch = contents.of_job(store, row["job_id"])
    if launch is None:
        raise LookupError(f"job {row['subject']} was deleted")
    notify = str(rows.loads(launch["options"])["notify"])
    form = ops.jobs.get_job(store, row["subject"])
    if row["moment"] == START:
        form = as_started(form)
    env = dict(rows.loads(contents.environment(store, launch["environment_id"])))
    kind = spec.kind_of(notify)
    if is_others := launch["uid"] is not None:  # of a user of a shared service, under whose account this runs
        env = {"PATH": _PATH}  # his own would choose programs, and files of libraries
    if kind == spec.COMMAND and is_others:
        carry_out = _refuse_command
    elif kind == spec.URL:
        carry_out = partial(deliveries.post, notify, json.dumps(form).encode(), env)
    elif kind == spec.MAIL:
        carry_out = partial(deliveries.mail, spec.addresses_of(notify), subject_of(form), text_of(form), env)
    else:
        own = {**env, **variables(form), "VCTL_HOME": str(store.home)}
        carry_out = partial(deliveries.command, spec.words_of(notify), own, os.fsdecode(launch["cwd"]))
    return Notice(
        row["number"], row["subject"], row["job_id"], row["moment"], kind != spec.COMMAND, carry_out
    )


def _refuse_command() -> None:
    raise PermissionError("a shared service starts no command of a user under its own account")


def as_started(form: JobForm) -> JobForm:
    """The form of a job as it was at its start; it may be over by now."""
    return {
        **form, "status": jb.RUNNING, "state_reason": None, "message": None, "exit_code": None, "ended_at": None,
        "run_s": None,
    }  # fmt: skip


def variables(form: JobForm) -> dict[str, str]:
    """What a command gets beside the environment of the job. A job that has no exit code has an empty one."""
    return {
        "VCTL_SUBMISSION_ID": form["submission_id"],
        "VCTL_JOB_ID": str(form["job_id"]),
        "VCTL_STATUS": form["status"],
        "VCTL_EXIT_CODE": "" if form["exit_code"] is None else str(form["exit_code"]),
    }


def subject_of(form: JobForm) -> str:
    """The subject of a mail."""
    code = "" if not form["exit_code"] else f" (exit code {form['exit_code']})"
    return f"vctl: {form['submission_id']} {form['status']}{code}"


def text_of(form: JobForm) -> str:
    """The text of a mail."""
    names = (
        "submission_id",
        "name",
        "status",
        "state_reason",
        "message",
        "exit_code",
        "started_at",
        "ended_at",
    )
    said = [f"{name}: {form[name]}" for name in names if form[name] is not None]  # type: ignore[literal-required]
    counts = form.get("array")
    if isinstance(counts, dict):
        said.append(f"members: {', '.join(f'{n} {state}' for state, n in counts['states'].items())}")
    return "\n".join([*said, f"host: {os.uname().nodename}", ""])
