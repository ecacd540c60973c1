"""Patterns and ranges in the words of a command: a command that takes several jobs gets the ids that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.operations import jobs

if TYPE_CHECKING:
    from vctl.cli.call import Call

_PLAIN = r"[A-Za-z0-9._-]*\Z"
_LIST = r".+_[0-9]+(-|:)[0-9]"


def expanded(call: Call, refs: Iterable[str], states: Sequence[str] = ()) -> list[str]:
    """The references, with the ids that a pattern or a range names in its place, by number: each once.

    ``states``: a pattern names only jobs in these states, such as those that can be stopped. Raises NotFound for one
    that names none.
    """
    found: dict[str, None] = {}
    for ref in refs:
        if re.match(_PLAIN, ref) and not re.match(_LIST, ref):
            found[ref] = None
            continue
        named, _ = jobs.list_jobs(call.backend, named=[ref], members=False, forecast=False)
        fitting = [job["submission_id"] for job in reversed(named) if not states or _has(job, states)]
        if not fitting:
            raise ops.matching.nothing(ref, states)
        found |= dict.fromkeys(fitting)
    return list(found)


def _has(job: Mapping[str, Any], states: Sequence[str]) -> bool:
    """Whether a job, or a member of an array, is in one of some states."""
    there = job["array"]["states"] if "array" in job else (job["status"],)
    return any(state in there for state in states)
