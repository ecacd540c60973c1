"""Which jobs a pattern or a range of members names: ``'sweep_*'``, ``'sweep_[2-4]'``, ``sweep_2-4``, ``sweep_1,5,7-9``.

A pattern has the marks of a shell: ``*``, ``?`` and ``[…]``. A word behind the id of an array and ``_`` that lists
several indices, also in brackets, names these members. An id that a job has is never read so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vctl.errors import BadSpec, Conflict, NotFound, param
from vctl.store import arrays, folded, jobs
from vctl.store.store import Store

_MEMBERS = r"(.+)_(\[)?([0-9][0-9:,-]*[,-][0-9:,-]*)(?(2)\])\Z"
_SHOWN = 5
_WITH_NAME = 3
"""The most ids that an error names where somebody wrote a name."""

Match = int | str
"""The number of a job, or the id of an array."""


def matches(store: Store, ref: str) -> list[Match] | None:
    """The jobs that a pattern or a range names, by number; an array stands for its members. None if ``ref`` is none."""
    if (found := _members(store, ref)) is not None:
        return found
    if not any(mark in ref for mark in "*?["):
        return None
    pattern = ref.replace("[!", "[^")
    its_arrays = arrays.matching_id(store, pattern)
    names = {array["array_id"] for array in its_arrays}
    first: list[tuple[int, Match]] = [(array["first_job_id"], array["array_id"]) for array in its_arrays]
    first += [
        (job_id, job_id) for job_id, array_id in jobs.matching_id(store, pattern) if array_id not in names
    ]
    first += [(job_id, job_id) for job_id in folded.matching(store, ref.replace("[^", "[!"), names)]
    return [one for _, one in sorted(first, key=lambda pair: pair[0])]


def _members(store: Store, ref: str) -> list[Match] | None:
    """The members of an array whose indices are listed; None where no array is named."""
    from vctl.spec.options import parse_indices

    if (found := re.match(_MEMBERS, ref)) is None or (array := arrays.get(store, found[1])) is None:
        return None
    try:
        indices = parse_indices(found[3], found[3], "")
    except BadSpec:
        return None
    return [job_id for job_id, index in arrays.numbered(store, array) if index in indices]


def the_one(store: Store, ref: str) -> Match | None:
    """The only job that a pattern or a range names; None if ``ref`` is neither.

    Raises NotFound if there is none, and BadSpec if there are several.
    """
    if (found := matches(store, ref)) is None:
        return None
    if not found:
        raise nothing(ref)
    if len(found) > 1:
        names = ", ".join(_names(store, found[:_SHOWN])) + (" …" if len(found) > _SHOWN else "")
        raise BadSpec(
            f"{ref!r} names {len(found)} jobs: {names}",
            fix="name one of them",
            details={"count": len(found)},
        )
    return found[0]


def nothing(ref: str, states: Sequence[str] = ()) -> NotFound:
    """The error for a pattern that no job matches."""
    which = f"{' or '.join(states)} " if states else ""
    return NotFound(
        f"no {which}job matches {ref!r}", fix="see `vctl job list -a --members`", details={"job": ref}
    )


def _names(store: Store, found: Iterable[Match]) -> list[str]:
    return [one if isinstance(one, str) else jobs.submission_id(store, one) or "" for one in found]


def no_job(store: Store, ref: str) -> NotFound:
    """The error for a word that is no id of a job."""
    fix = "see `vctl job list -a`"
    if named := jobs.with_name(store, ref, _WITH_NAME + 1):
        more = " …" if len(named) > _WITH_NAME else ""
        fix = f"it is the name of {', '.join(named[:_WITH_NAME])}{more}: write the id"
    elif "," in ref:
        fix = f"write the ids as separate words: {' '.join(ref.replace(',', ' ').split())}"
    elif ref == "all":
        fix = "a pattern names all jobs: '*'"
    return NotFound(f"there is no job {ref!r}", fix=fix, details={"job": ref})


def exists(name: str) -> Conflict:
    """The error for an id that a job, an array or a task has."""
    return Conflict(
        f"job {name} exists already",
        fix=f"choose another {param('submission_id')}, or leave it out",
        details={"submission_id": name},
    )
