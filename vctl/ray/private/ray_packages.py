"""Has a private Ray install what the ``runtime_env`` of its job names, and says how the command finds it.

Run by the Python that has Ray, in the environment of the job. Reads the ``runtime_env`` as JSON from standard
input. Ray installs it for a task, as it does for every task of the job; the answer on standard output has the
variables that lead that task to the packages, and the ``runtime_env`` with what was uploaded from here.
"""

import json
import logging
import os
import sys

MYPY = False
if MYPY:
    from typing import Any

_FOUND_BY = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")
_KEPT_S = str(10**9)
"""How long Ray keeps what is uploaded here without a program that uses it: until its end."""


def main() -> int:
    """Answer; the exit code."""
    given = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Ray prints is no answer
    os.environ.pop("RAY_JOB_CONFIG_JSON_ENV_VAR", None)
    os.environ["RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S"] = _KEPT_S
    import ray

    ray.init(runtime_env=given, log_to_driver=False, logging_level=logging.WARNING)
    try:
        variables = ray.get(ray.remote(num_cpus=0)(lambda: {**os.environ}).remote())
    except ray.exceptions.RuntimeEnvSetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    answer.write(json.dumps({"variables": found_by(variables), "runtime_env": uploaded(given)}))
    answer.close()
    return 0


def found_by(variables: "dict[str, str]") -> "dict[str, str]":
    """Those variables of a task by which it finds packages, as far as they differ from ours."""
    return {
        name: variables[name]
        for name in _FOUND_BY
        if name in variables and variables[name] != os.environ.get(name)
    }


def uploaded(given: "dict[str, Any]") -> "dict[str, Any]":
    """The ``runtime_env`` in which local modules have the addresses in Ray to which they were uploaded."""
    import ray

    present = ray.get_runtime_context().runtime_env
    return {field: present.get(field, value) for field, value in given.items()}


if __name__ == "__main__":
    sys.exit(main())
