"""The request of one ``task run`` from the command line, HTTP or Python.

The fields of ``TaskRequest`` are the declaration of its parameters. A request checks its form when it is made; other
modules check its job and free resources.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from vctl.core.labels import Selector
from vctl.core.resources import CPU, DEFAULT_UNITS, SCALE, Amounts
from vctl.core.tasks import HYBRID, NODE, SOFT, SPILL, STRATEGIES, named_by
from vctl.core.values import field, value
from vctl.errors import BadSpec, param
from vctl.spec.fields import did_you_mean, refuse, show
from vctl.spec.ids import is_id
from vctl.spec.job_request import (
    Argv,
    Directory,
    Document,
    Name,
    Variables,
    amounts_back,
    entry_request,
    resources_of,
)
from vctl.spec.launch import MAX_RETRIES, check_command, check_environment, check_name
from vctl.spec.params import LONGEST_S, Made, Opt, check_limits
from vctl.spec.selectors import parse_selector
from vctl.spec.source import read_document
from vctl.spec.text import check_line

DEFAULT_REQUEST: Amounts = {CPU: SCALE}
JOB_VARIABLES = ("VCTL_SUBMISSION_ID", "VCTL_JOB_ID")
"""The variables that identify the job of a process; the first one that is set is used."""
MAX_OBJECTS = 256
"""The most inputs, and the most outputs, of one task."""


@value(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """All parameters of a ``task run``. ``job`` None: the job of the process that starts the task.

    ``strategy``: HYBRID, SPREAD, RANDOM, or ``NODE:<id>``, also with ``:soft`` or ``:spill`` behind it.
    ``max_retries`` counts tries after the first. ``inputs`` and ``outputs`` are names of objects.
    ``env`` is added to the environment of the process that starts the task; ``cwd`` None: its directory. ``options``
    are stored with the command: how a task stands beside its job (``ops/attaching.py``).
    """

    argv: Argv
    request: Annotated[
        Amounts,
        Made(
            lambda reading, *given: task_amounts(*given, units=reading.units),
            lambda amounts: {"num_cpus": "0", **amounts_back("", amounts)},
            **resources_of("it takes", short=True, defaults=(" (1)", " (0)")),
            resources=Annotated[
                Document,
                Opt("--resources", metavar="JSON", reads="resources", help="Other resources it takes."),
            ],
        ),
    ] = field(default_factory=lambda: dict(DEFAULT_REQUEST))  # fmt: skip
    selector: Annotated[
        Selector,
        Made(
            lambda _, document: parse_selector(document, param("label_selector")),
            lambda selector: {"label_selector": {condition.key: str(condition) for condition in selector}},
            label_selector=Annotated[
                Document,
                Opt(
                    "--label-selector", metavar="JSON", reads="label selector",
                    help="Only on virtual nodes whose labels match.",
                ),
            ],
        ),
    ] = ()  # fmt: skip
    strategy: Annotated[
        str,
        Opt(
            "--strategy", metavar="WORD", complete="strategies",
            help="HYBRID (default: pack, then the least used), SPREAD, RANDOM or NODE:<id>; NODE:<id>:soft goes"
            " elsewhere if that node is gone or too small, NODE:<id>:spill also if it is full.",
        ),
    ] = HYBRID  # fmt: skip
    inputs: Annotated[
        tuple[str, ...],
        Made(
            lambda _, names: tuple(names),
            lambda names: {"inputs": names},
            inputs=Annotated[
                Sequence[str],
                Opt(
                    "--input", metavar="NAME", longest=1000, help="Start once this object exists; repeatable."
                ),
            ],
        ),
    ] = ()  # fmt: skip
    outputs: Annotated[
        tuple[str, ...],
        Made(
            lambda _, names: tuple(names),
            lambda names: {"outputs": names},
            outputs=Annotated[
                Sequence[str],
                Opt(
                    "--output", metavar="NAME", longest=1000,
                    help="The task writes $VCTL_OBJECT_DIR/NAME for other tasks; repeatable.",
                ),
            ],
        ),
    ] = ()  # fmt: skip
    max_retries: Annotated[
        int, Opt("--max-retries", minimum=0, maximum=MAX_RETRIES, help="Number of retries after a failure (0).")
    ] = 0  # fmt: skip
    name: Name = ""
    job: Annotated[
        str | None,
        Opt("--job", metavar="ID", complete="jobs", help="The job (default: the one this runs in)."),
    ] = None  # fmt: skip
    detach: Annotated[bool, Opt("--detach", help="Let the task outlive its job.")] = False
    env: Variables = field(default_factory=dict)
    cwd: Directory = None
    grace_s: Annotated[
        float | None,
        Opt(minimum=0, maximum=LONGEST_S, help="Time between SIGTERM and SIGKILL (default: that of its job)."),
    ] = None  # fmt: skip

    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_command(self.argv, self.cwd)
        check_strategy(self.strategy)
        check_name(self.name)
        check_limits(self)
        check_environment(self.env)
        check_objects(self.inputs, self.outputs)
        if self.job is not None and not self.job:
            raise refuse(param("job"), "the job id is empty", "leave it out inside a job, or name a job")
        if self.job is not None:
            check_line(self.job, param("job"))


def check_objects(inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    """Check the names of objects: each is named once, and none is both input and output."""
    for names, path in ((inputs, param("inputs")), (outputs, param("outputs"))):
        if len(names) > MAX_OBJECTS:
            raise refuse(
                path, f"{len(names)} names are too many", f"use at most {MAX_OBJECTS}, or a directory"
            )
        for name in names:
            check_object_name(name, path)
            if names.count(name) > 1:
                raise refuse(path, f"{name} is named twice", "name each object once")
    if both := next((name for name in inputs if name in outputs), None):
        raise refuse(param("outputs"), f"{both} is an input, too", "write the result under another name")


def check_object_name(name: str, path: str) -> str:
    """Check the name of an object: one path component, without characters that are special in shells."""
    if not is_id(name):
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
