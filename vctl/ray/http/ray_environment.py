"""The ``runtime_env`` and the private Ray of a job of Ray's job API; refusals name an alternative."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vctl import ops
from vctl.core.values import replace, value
from vctl.errors import BadSpec
from vctl.operations.declare import Context
from vctl.ray.ops.packages import PROTOCOL, WHEEL
from vctl.spec.fields import refuse
from vctl.spec.job_request import JobRay, JobRequest

RAYS = {"lazy": "lazy", "private": "plain", "dashboard": "dashboard", "none": ""}
"""The kind of private Ray (empty: none), by the value of ``vctl_ray`` in the metadata of a job."""
PACKAGE = f"{PROTOCOL}://"
OF_RAY = ("pip", "uv")
"""The fields that a private Ray carries out, as it does with wheels in ``py_modules``."""
UNDERSTOOD = ("env_vars", "working_dir", "py_modules", *OF_RAY, "excludes", "config", "_ray_commit")
"""The accepted fields. The client has applied ``excludes``; ``config`` concerns what Ray installs; the client's own
``_ray_commit`` is that of its Ray, and the private Ray has one of its own."""
INSTEAD = {
    "conda": "install the packages into an environment of the machine, and name its python in the entrypoint",
    **dict.fromkeys(("container", "image_uri"), "start the container in the entrypoint, such as `podman run IMAGE …`"),
    "py_executable": "name that python in the entrypoint",
    "java_jars": "put the jars into working_dir, and name them in env_vars.CLASSPATH",
    "worker_process_setup_hook": "pass it to ray.init in the entrypoint",
}  # fmt: skip


@value(frozen=True, slots=True)
class Environment:
    """The parts of a ``runtime_env``: variables, a directory or an archive, archives of modules, wheels."""

    variables: Mapping[str, str]
    working_dir: str | None
    modules: tuple[str, ...]
    wheels: tuple[str, ...]
    of_ray: Mapping[str, Any]
    """What a private Ray carries out, without the wheels."""


def read(given: Mapping[str, Any]) -> Environment:
    """Read a ``runtime_env``; refuses what is not supported."""
    for field, content in given.items():
        if field not in UNDERSTOOD and content not in (None, {}, [], ""):
            raise BadSpec(
                f"runtime_env.{field}: not supported here",
                fix=INSTEAD.get(field, f"leave it out; supported are {', '.join(UNDERSTOOD[:5])}"),
            )
    env = given.get("env_vars") or {}
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise BadSpec("runtime_env.env_vars: not a map of strings to strings", fix='write {"NAME": "value"}')
    modules = given.get("py_modules") or []
    if not isinstance(modules, list):
        raise BadSpec("runtime_env.py_modules: not a list", fix="write a list of directories")
    working_dir = given.get("working_dir") or None
    if working_dir is not None and not (isinstance(working_dir, str) and working_dir.startswith("/")):
        working_dir = _package(working_dir, "working_dir")
    archives = [_package(uri, f"py_modules[{number}]") for number, uri in enumerate(modules)]
    return Environment(
        env,
        working_dir,
        tuple(name for name in archives if not name.endswith(WHEEL)),
        tuple(name for name in archives if name.endswith(WHEEL)),
        {field: given[field] for field in (*OF_RAY, "config") if given.get(field)},
    )


def installs(environment: Environment, wheels: Sequence[Path], kind: str) -> dict[str, object] | None:
    """What the private Ray of this kind is handed; None for nothing. ``wheels``: where they are now."""
    handed = {**environment.of_ray, **({"py_modules": [str(path) for path in wheels]} if wheels else {})}
    fields = [field for field in handed if field != "config"]
    if fields and not kind:
        raise BadSpec(
            f"runtime_env.{fields[0]}: Ray installs it, and this job has no Ray of its own",
            fix="have one (metadata vctl_ray: private), or install it into an environment of the machine",
        )
    return handed if fields else None


def _package(uri: object, field: str) -> str:
    if isinstance(uri, str) and uri.startswith(PACKAGE):
        return uri.removeprefix(PACKAGE)
    raise BadSpec(
        f"runtime_env.{field}: {str(uri)[:200]} is not fetched from here",
        fix="name a local directory: Ray's client uploads it",
    )


def expanded(value: str, around: Mapping[str, str]) -> str:
    """A value with variables replaced as in Ray: an unknown ``${NAME}`` becomes empty, ``$NAME`` stays."""

    def known(match: re.Match[str]) -> str:
        return around.get(match[1] or match[2], "" if match[1] else match[0])

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", known, value)


def private_ray(
    on: Context,
    request: JobRequest,
    metadata: Mapping[str, str],
    setting: str | None,
    around: Mapping[str, str],
) -> str:
    """The kind of private Ray of a job: from its metadata, else the setting, else ``lazy`` if possible."""
    word = metadata.get("vctl_ray", setting)
    if word is not None and word not in RAYS:
        raise BadSpec(
            f"metadata.vctl_ray: {word!r} is not one of {', '.join(RAYS)}",
            fix="leave it out to have the Ray of the setting ray_jobs",
        )
    kind = RAYS[word or "lazy"]
    error = ops.submitting.without_ray(on.store, replace(request, ray=JobRay(kind)), around)
    if error is None:
        return kind
    if word is None:
        return ""
    origin = "metadata.vctl_ray" if "vctl_ray" in metadata else "ray_jobs"
    raise refuse(origin, error.problem.removeprefix("ray: "), error.fix)
