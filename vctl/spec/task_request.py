"""The request of one ``task run`` from the command line, HTTP or Python.

A ``TaskRequest`` checks its form when it is made; other modules check its job and free resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vctl.core.labels import Selector
from vctl.core.resources import CPU, DEFAULT_UNITS, SCALE, Amounts
from vctl.core.tasks import HYBRID, NODE, SOFT, SPILL, STRATEGIES, named_by
from vctl.errors import BadSpec, param
from vctl.spec.fields import did_you_mean, refuse, show
from vctl.spec.job_request import entry_request
from vctl.spec.launch import (
    MAX_RETRIES,
    check_command,
    check_environment,
    check_name,
    check_range,
    check_seconds,
)
from vctl.spec.source import read_document
from vctl.spec.text import check_line

DEFAULT_REQUEST: Amounts = {CPU: SCALE}
JOB_VARIABLES = ("VCTL_SUBMISSION_ID", "VCTL_JOB_ID")
"""The variables that identify the job of a process; the first one that is set is used."""
OBJECT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
MOST_OBJECTS = 256
"""The most inputs, and the most outputs, of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """All parameters of a ``task run``. ``job`` None: the job of the process that starts the task.

    ``strategy``: HYBRID, SPREAD, RANDOM, or ``NODE:<id>``, also with ``:soft`` or ``:spill`` behind it.
    ``max_retries`` counts tries after the first. ``inputs`` and ``outputs`` are names of objects.
    ``env`` is added to the environment of the process that starts the task; ``cwd`` None: its directory.
    """

    argv: tuple[str, ...]
    job: str | None = None
    request: Amounts = field(default_factory=lambda: dict(DEFAULT_REQUEST))
    selector: Selector = ()
    strategy: str = HYBRID
    name: str = ""
    max_retries: int = 0
    detach: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    grace_s: float | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_command(self.argv, self.cwd)
        check_strategy(self.strategy)
        check_name(self.name)
        check_range(self.max_retries, param("max_retries"), 0, MAX_RETRIES)
        check_seconds(self.grace_s, param("grace"))
        check_environment(self.env)
        check_objects(self.inputs, self.outputs)
        if self.job is not None and not self.job:
            raise refuse(param("job"), "the job id is empty", "leave it out inside a job, or name a job")
        if self.job is not None:
            check_line(self.job, param("job"))


def check_objects(inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    """Check the names of objects: each is named once, and none is both input and output."""
    for names, path in ((inputs, param("inputs")), (outputs, param("outputs"))):
        if len(names) > MOST_OBJECTS:
            raise refuse(
                path, f"{len(names)} names are too many", f"use at most {MOST_OBJECTS}, or a directory"
            )
        for name in names:
            check_object_name(name, path)
            if names.count(name) > 1:
                raise refuse(path, f"{name} is named twice", "name each object once")
    if both := next((name for name in inputs if name in outputs), None):
        raise refuse(param("outputs"), f"{both} is an input, too", "write the result under another name")


def check_object_name(name: str, path: str) -> str:
    """Check the name of an object: one path component, without characters that are special in shells."""
    if not OBJECT_NAME.match(name):
        raise refuse(
            path,
            f"{show(name)} is not a name of an object",
            "use 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit",
        )
    return name


def job_of(request: TaskRequest, environment: Mapping[str, str]) -> tuple[str, str]:
    """The job of a task, and the parameter or variable that names it. Raises BadSpec if nothing does.

    The requested job, else the job of the process with this environment.
    """
    if request.job is not None:
        return request.job, param("job")
    for name in JOB_VARIABLES:
        if environment.get(name):
            return environment[name], name
    raise BadSpec(
        f"a task belongs to a job, and this is not run inside one ({' and '.join(JOB_VARIABLES)} are not set)",
        fix=f"name the job with {param('job')}=ID, or start the task from the job's own command",
    )


def check_strategy(strategy: str) -> str:
    """Check a strategy; ``NODE`` needs the id of a node, and the others take none."""
    word, colon, rest = check_line(strategy, param("strategy")).partition(":")
    node_id, otherwise = named_by(strategy)
    if word == NODE and not node_id:
        fix = f"write NODE:<id>, NODE:<id>:{SOFT} or NODE:<id>:{SPILL}"
        raise refuse(param("strategy"), "NODE needs the id of a node", fix)
    if word == NODE and rest != node_id and otherwise not in (SOFT, SPILL):
        message = f"only {SOFT} or {SPILL} may stand behind the id of a node, not {show(otherwise)}"
        fix = f"write NODE:{node_id}:{SOFT}, NODE:{node_id}:{SPILL} or NODE:{node_id}"
        raise refuse(param("strategy"), message, fix)
    if word not in STRATEGIES:
        raise refuse(
            param("strategy"),
            f"unknown strategy {show(strategy)}",
            did_you_mean(word, (*STRATEGIES[:3], "NODE:<id>")),
        )
    if word != NODE and colon:
        raise refuse(
            param("strategy"), f"{word} takes nothing after it, such as {show(rest)}", f"write {word}"
        )
    return strategy


def task_amounts(
    num_cpus: object = None,
    num_gpus: object = None,
    memory: object = None,
    resources_json: object = None,
    *,
    units: Iterable[str] = DEFAULT_UNITS,
) -> Amounts:
    """The resources of a task: one CPU unless a number of CPUs, which may be 0, is given.

    ``resources_json`` is a text for ``read_document``, or a mapping.
    """
    if isinstance(resources_json, str):
        resources_json = read_document(resources_json, "a map of resources", param("resources"))
    named = num_cpus is not None or (isinstance(resources_json, Mapping) and CPU in resources_json)
    given = entry_request(num_cpus, num_gpus, memory, resources_json, units=units, prefix="") or {}
    return dict(given) if named else {**DEFAULT_REQUEST, **given}
