"""What a job has from several options: the environment, the directory, the metadata; and warnings at a submit."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from vctl import spec
from vctl.cli.call import Call
from vctl.core import jobs as jb
from vctl.core.wording import STOPPED_WITH_BOOKING
from vctl.spec.params import Given, Opt, Together

OPTIONS = Together(
    env=Annotated[
        list[str] | None,
        Opt("--env", metavar="K=V", kernel=True, help="Set a variable for the job; repeatable."),
    ],
    env_file=Annotated[
        str | None, Opt("--env-file", metavar="FILE", complete="file", help="Read variables from K=V lines.")
    ],
    working_dir=Annotated[
        str | None,
        Opt("--working-dir", "--cwd", metavar="DIR", complete="dir", help="Directory in which the command starts."),
    ],
    metadata=Annotated[
        list[str] | None, Opt("--metadata", metavar="K=V", help="Metadata stored with the job; repeatable.")
    ],
    metadata_json=Annotated[str | None, Opt("--metadata-json", metavar="JSON", help="Metadata as a JSON map.")],
)  # fmt: skip

_RUNTIME_ENV = "--runtime-env-json"


def collected(options: Given, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The variables, the directory and the metadata, as far as given; options precede the runtime environment."""
    import os

    given = options or {}
    variables, directory = _runtime_env(runtime_env)
    directory = given.get("working_dir") or directory
    if file := given.get("env_file"):
        variables.update(spec.options.read_env_file(file))
    if pairs := given.get("env"):
        variables.update(spec.options.parse_env(pairs, inherited=os.environ))
    values = {
        "env": variables,
        "cwd": directory and os.path.abspath(os.path.expanduser(directory)),
        "metadata": _metadata(given.get("metadata"), given.get("metadata_json")),
    }
    return {name: value for name, value in values.items() if value}


def runtime_env_of(document: str | None) -> Mapping[str, Any]:
    """The fields of ``--runtime-env-json``."""
    if document is None:
        return {}
    read = spec.source.read_document(document, "a runtime environment", _RUNTIME_ENV)
    return spec.fields.as_mapping(read, _RUNTIME_ENV, "it", '{"env_vars": {"A": "1"}}')


def for_ray(call: Call, runtime_env: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The field ``runtime_env`` of a job with these values, if a private Ray has something to carry out.

    A warning names what has no effect.
    """
    has_ray = bool(values.get("ray") or values.get("ray_dashboard"))
    others = {name: value for name, value in runtime_env.items() if name not in ("env_vars", "working_dir")}
    handed = {name: value for name, value in others.items() if name in spec.job_request.IN_RUNTIME_ENV}
    ignored = sorted(others.keys() - handed) if has_ray else sorted(others)
    if ignored:
        without = "" if has_ray or not handed else f"; with --ray it uses {', '.join(sorted(handed))}"
        call.note(f"Warning: {_RUNTIME_ENV}: vctl ignores {', '.join(ignored)}{without}")
    return {"runtime_env": handed} if has_ray and handed else {}


def _runtime_env(fields: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """The variables and the directory that ``--runtime-env-json`` names."""
    path = spec.fields.child(_RUNTIME_ENV, "env_vars")
    given = spec.fields.as_mapping(fields.get("env_vars") or {}, path, "env_vars", '{"A": "1"}')
    variables = {
        name: spec.fields.as_text(value, spec.fields.child(path, name), "a variable")
        for name, value in given.items()
    }
    directory = fields.get("working_dir")
    return variables, None if directory is None else spec.fields.as_text(
        directory, spec.fields.child(_RUNTIME_ENV, "working_dir"), "a directory"
    )


def small_amounts(values: Mapping[str, Any]) -> str | None:
    """A warning when a size without a unit is less than a process needs, or a time without one is short; else None.

    ``values``: the options as they were written.
    """
    limit = str(values.get("time_limit_s") or "").strip()
    if re.fullmatch("[0-9]{1,4}", limit) and int(limit):
        return f"Warning: --time-limit: {limit} means {limit} seconds. Write {limit}m or {limit}h for more"
    for option, name in (("--memory", "memory"), ("--entrypoint-memory", "entrypoint_memory")):
        if warning := small_size(option, str(values.get(name) or "").strip()):
            return warning
    return None


def small_size(option: str, size: str) -> str | None:
    """A warning when a size without a unit is less than a process needs; else None."""
    if re.fullmatch("[0-9]{1,7}", size) and 0 < int(size) < 1 << 20:
        return f"Warning: {option}: {size} means {size} bytes. Write {size}GiB or {size}MiB for more"
    return None


def unknown_notice(values: Mapping[str, Any]) -> str | None:
    """A warning when a notice is a command that this machine does not have; else None."""
    notify = values.get("notify")
    if notify is None:
        return None
    import os
    import shutil  # with three compressions

    kinds = spec.notify
    if notify == kinds.NOBODY or kinds.kind_of(notify) != kinds.COMMAND:
        return None
    kinds.check_notify(notify, "--notify")
    word = kinds.words_of(notify)[0]
    if shutil.which(os.path.join(values.get("cwd") or ".", word) if "/" in word else word) is not None:
        return None
    return (
        f"Warning: nobody is told: there is no command {word}; notify takes a command, https://… or mailto:…"
    )


def stopped_cluster(job: Mapping[str, Any]) -> str | None:
    """A warning when a submitted job waits for somebody to resume its cluster, or may be stopped with it; else None."""
    if STOPPED_WITH_BOOKING in (job.get("message") or ""):
        return f"Warning: {job['message']}"
    if job.get("state_reason") != jb.CLUSTER_STOPPED:
        return None
    return f"Warning: it waits, because the cluster is stopped: {job['message']}"


def unread_input() -> str | None:
    """A warning when standard input has data, which no job reads; else None."""
    import os
    import stat

    try:
        kind = os.fstat(0).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            import fcntl
            import sys
            import termios

            waiting = int.from_bytes(fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4), sys.byteorder)
        elif stat.S_ISREG(kind):
            waiting = os.fstat(0).st_size - os.lseek(0, 0, os.SEEK_CUR)
        else:
            return None
    except OSError:  # closed
        return None
    if waiting <= 0:
        return None
    return "Warning: standard input is not passed on to the job. Pass it on with --stdin, or let the job read a file"


def _metadata(pairs: list[str] | None, document: str | None) -> dict[str, str]:
    """The pairs and the document as one map; pairs precede the document."""
    merged: dict[str, str] = {}
    if document is not None:
        option, fields = "--metadata-json", spec.fields
        given = spec.source.read_document(document, "a map", option)
        for key, value in fields.as_mapping(given, option, "metadata", '{"owner": "ana"}').items():
            merged[key] = fields.as_text(value, fields.child(option, key), "a value")
    if pairs:
        merged.update(spec.options.parse_pairs(pairs, "--metadata"))
    return merged
