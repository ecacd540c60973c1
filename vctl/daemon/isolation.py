"""What a run has for itself, a /tmp or a PID namespace: the words before its command that make it so.

A job has what it asks for (``--private``), and what the clusters above it demand for all of their jobs. A job with a
private Ray that has not said anything has both where the kernel lets it. All runs of a job on a machine share its
/tmp. Each has a PID namespace of its own, but for a command beside the main process (``vctl attach``) and the raylets
of its Ray: these are in that of the main process, and end with it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vctl.core.clusters import Cluster
from vctl.core.jobs import LAUNCH_FAILED
from vctl.core.nodes import RAY
from vctl.daemon.objects import Unprepared
from vctl.runtime import namespaces, own_tmp
from vctl.spec.options import PIDS, TMP

MAYBE = "?"
"""At the end of a word: if the kernel lets us."""


def wish(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What the job with these options wants for itself."""
    words = options.get("private")
    if words is None:
        return (TMP + MAYBE, PIDS + MAYBE) if options.get("private_ray") else ()
    return tuple(words)


def given(above: Sequence[Cluster], wanted: tuple[str, ...]) -> str:
    """What a run has for itself, as WHAT of the script; empty for nothing. ``above``: its clusters."""
    demanded = {word for cluster in above for word in cluster.private}
    if not wanted and not demanded:
        return ""
    return ",".join(
        word if word in demanded or word in wanted else word + MAYBE
        for word in (TMP, PIDS)
        if word in demanded or word in wanted or word + MAYBE in wanted
    )


def words(
    what: str, home: str, job_id: int, attempt: int, cwd: str, *, source: str, beside: int | None = None
) -> tuple[str, ...]:
    """The words before a command. ``beside``: the main process of its job, if it is to be in the namespaces of that.

    Raises Unprepared on the nodes of a Ray cluster, where agents start processes, unless it is only a default there.
    """
    if source == RAY:
        if any(not word.endswith(MAYBE) for word in what.split(",")):
            problem = f"a job on the nodes of a Ray cluster cannot have {what} for itself (--private)"
            raise Unprepared(problem, LAUNCH_FAILED)
        return ()
    store = private_store(home, job_id, attempt)
    return (sys.executable, "-I", "-S", namespaces.SCRIPT, what, store, cwd, str(beside or 0), "--")


def private_store(home: str, job_id: int, attempt: int) -> str:
    """The name of the directories of an attempt of a job in the public ones (own_tmp.py)."""
    name = hashlib.sha256(os.fsencode(f"{home}/{job_id}.{attempt}")).hexdigest()[:16]
    return f"{own_tmp.PREFIX}{name}"


def is_public(path: str) -> bool:
    """Whether a path means something else in a private /tmp."""
    return os.path.normpath(path) in own_tmp.PLACES or namespaces.below(list(own_tmp.PLACES), path)
