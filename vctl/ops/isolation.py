"""What jobs can have for themselves on this machine (``--private``), as ``vctl doctor`` says it."""

from __future__ import annotations

import os
import subprocess
import sys

from vctl.runtime import namespaces


def notes() -> list[str]:
    """What jobs can have for themselves, and why not the rest: tried by a process that starts none of a job."""
    words = [sys.executable, "-I", "-S", namespaces.SCRIPT]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split("\n")
    except OSError as error:  # a user who may not run this Python
        return [
            f"what jobs can have for themselves (--private) was not tried: {sys.executable}: {error.strerror}"
        ]
    problems = dict(zip(namespaces.WORDS, said, strict=False))
    can = [word for word, problem in problems.items() if not problem]
    others = (
        "" if os.geteuid() == 0 else "; inside, sudo does not work, and files of others seem to be nobody's"
    )
    found = [f"jobs can have for themselves (--private): {', '.join(can)}{others}"] if can else []
    return found + [
        f"jobs cannot have {word} for themselves (--private), and --ray goes without: {problem}"
        for word, problem in problems.items()
        if problem
    ]
