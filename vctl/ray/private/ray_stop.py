"""`ray stop` in a job with a private Ray: Ray's own command, which sees no process but those of the job.

Run by the Python of the job in place of Ray's command (python_start/sitecustomize.py), with its arguments. The
keeper of the Ray is told first: it then does not kill the command of the job when the head ends, and waits for
the next connection to start Ray again.
"""

import contextlib
import os
import sys
import time

MYPY = False
if MYPY or __package__:
    from collections.abc import Iterator, Mapping
    from typing import Any, NoReturn

    from vctl.ray.private import ray_parent
else:
    _HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_HERE, os.path.join(_HERE, "../../runtime")]
    import ray_parent

MARKS = ("VCTL_HOME", "VCTL_JOB_ID")
"""The variables that together say to which job a process belongs."""
PATIENCE_S = 30.0
_POLL_S = 0.02


def main(words: list[str]) -> "NoReturn":
    """Tell the keeper, and be Ray's command."""
    tell_the_keeper(os.environ.get("RAY_TMPDIR", ""))
    import ray.scripts.scripts

    import psutil  # type: ignore[import-untyped]  # the one that Ray brings  # isort: skip

    every_process = psutil.process_iter

    def of_the_job(*options: "Any") -> "Iterator[Any]":
        for process in every_process(*options):
            if belongs(process, os.environ):
                yield process

    psutil.process_iter = of_the_job
    sys.argv = ["ray", *words]
    command: Any = ray.scripts.scripts.main
    sys.exit(command())


def tell_the_keeper(folder: str) -> None:
    """Say that Ray is being stopped, and wait until the keeper has read it, if there is one."""
    note = f"{folder}/{ray_parent.STOPPING}"
    if not folder.startswith(ray_parent.FOLDERS):
        return
    with contextlib.suppress(FileNotFoundError):  # the Ray of the job has ended for good
        ray_parent.write(note, "")
        give_up = time.monotonic() + PATIENCE_S
        while os.path.exists(note) and time.monotonic() < give_up:
            time.sleep(_POLL_S)


def belongs(process: "Any", around: "Mapping[str, str]") -> bool:
    """Whether a process is of the job whose variables are ``around``.

    The name that a worker of Ray gives itself lies over its variables; then those of its parent count.
    """
    import psutil

    while process is not None:
        try:
            variables = process.environ()
            if MARKS[-1] in variables:
                return all(variables.get(name) == around.get(name) for name in MARKS)
            process = process.parent()
        except psutil.Error:
            return False
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
