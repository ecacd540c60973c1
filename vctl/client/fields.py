"""What can be given to jobs and tasks in Python, and its form on the wire, where durations and maps look different."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Required, TypedDict

from vctl import spec
from vctl.errors import BadSpec, param
from vctl.operations import jobs
from vctl.spec.params import NOTHING

if TYPE_CHECKING:
    from vctl.client.specs import Amount, Amounts, LabelSelector
    from vctl.spec.params import Written

Command = str | Sequence[str]
"""The words of a command, or a line that is split as a shell does; no shell is run."""
Duration = float | str
"""Seconds, or a text such as ``1h30m``."""
_DURATIONS = ("time_limit", "grace", "backoff")
_MAPS = ("env", "metadata", "labels")
_OPERATORS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1"}


class JobFields(TypedDict, total=False):
    """What a submit can be given besides its command; the options of ``vctl job submit`` explain them."""

    virtual_cluster: Written | Mapping[str, Any] | None
    cluster: str | None
    num_cpus: Amount | None
    num_gpus: Amount | None
    memory: Amount | None
    nodes: int | None
    entrypoint_num_cpus: Amount | None
    entrypoint_num_gpus: Amount | None
    entrypoint_memory: Amount | None
    entrypoint_resources: Amounts | None
    priority: int
    time_limit: Duration | None
    signal: str | None
    notify: str | None
    begin_at: float | None
    hold: bool
    after: Sequence[str]
    per_node: bool
    label: bool
    private: Sequence[str] | None
    ray: bool
    ray_dashboard: bool
    runtime_env: Mapping[str, Any] | None
    array: str | None
    max_retries: int
    retry_on: Sequence[str]
    backoff: Duration
    grace: Duration | None
    name: str
    submission_id: str | None
    env: Mapping[str, str] | None
    clean_env: bool
    working_dir: str | os.PathLike[str] | None
    metadata: Mapping[str, str] | None
    labels: Mapping[str, str] | None


class TaskFields(TypedDict, total=False):
    """What a task can be given besides its command; the options of ``vctl task run`` explain them."""

    num_cpus: Amount | None
    num_gpus: Amount | None
    memory: Amount | None
    resources: Amounts | None
    label_selector: LabelSelector | None
    strategy: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    max_retries: int
    name: str
    job: str | None
    detach: bool
    env: Mapping[str, str] | None
    working_dir: str | os.PathLike[str] | None
    grace: Duration | None


class BatchedJob(JobFields):
    """A job of ``Jobs.submit_many``."""

    entrypoint: Required[Command]


class BatchedTask(TaskFields):
    """A task of ``Tasks.run_many``."""

    command: Required[Command]


def check_names(of: str, fields: Mapping[str, Any], known: Any) -> None:
    """Refuse names that no argument has, as Python does."""
    if unknown := fields.keys() - known.__optional_keys__:
        raise TypeError(f"{of}() got an unexpected keyword argument {min(unknown)!r}")


def changes_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an edit from the arguments of Python."""
    params = {word: one for one in jobs.edit.params if one.name != "ref" for word in one.references}
    params["working_dir"] = params.pop("cwd")
    given = {name: value for name, value in fields.items() if value is not None}
    if unknown := given.keys() - params.keys():
        raise TypeError(f"Jobs.edit() got an unexpected keyword argument {min(unknown)!r}")
    away = {params[name] for name, value in given.items() if value in (*NOTHING,) and params[name].takes_away}
    values = values_of({name: value for name, value in given.items() if params[name] not in away})
    values |= {one.name: [] if one.many else None for one in away}
    return values


def task_values(command: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a task from the arguments of Python."""
    values = {"entrypoint": words_of(command), **values_of(fields)}
    if (selector := values.get("label_selector")) is not None:
        from vctl.client.specs import selector_document

        values["label_selector"] = selector_document(selector)
    return values


def values_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a request from the arguments of Python, where durations and maps have other forms."""
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _DURATIONS:
            if value is not None or name == "backoff":
                values[f"{name}_s"] = seconds_of(value, name)
        elif name == "working_dir":
            values["cwd"] = _directory(value)
        elif value is not None or name not in _MAPS:
            values[name] = value
    return values


def words_of(command: object) -> tuple[str, ...]:
    """The words of a command. Refuses operators of a shell."""
    if not isinstance(command, str | Iterable):
        raise spec.fields.refuse(
            param("entrypoint"),
            f"{spec.fields.show(command)} is not a command",
            'write it as ["python", "train.py"]',
        )
    if not isinstance(command, str):
        return tuple(command)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadSpec(
            f"{param('entrypoint')}: {error}: {command}", fix="close the quotes, or write a list"
        ) from None
    if operator := next((word for word in words if word in _OPERATORS), None):
        raise BadSpec(
            f"{param('entrypoint')}: {operator} needs a shell, and no shell is run",
            fix='write ["sh", "-c", "..."], or the words as a list',
        )
    return tuple(words)


def _directory(given: str | os.PathLike[str] | None) -> str | None:
    if given is None:
        return None
    try:
        return os.path.abspath(os.path.expanduser(os.fsdecode(given)))
    except TypeError:
        raise spec.fields.refuse(
            param("working_dir"), f"{spec.fields.show(given)} is not a path", "put it in quotes"
        ) from None


def seconds_of(given: Duration, path: str) -> float:
    """A duration in seconds."""
    return spec.quantities.parse_duration(given, path)
