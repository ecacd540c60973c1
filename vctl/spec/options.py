"""Readers of option values: environment, pairs, warning signals, dependencies, arrays, begin times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from vctl.core.indices import Indices
from vctl.core.values import value
from vctl.spec.fields import did_you_mean, refuse, show
from vctl.spec.ids import check_submission_id
from vctl.spec.quantities import parse_duration
from vctl.spec.selectors import parse_labels
from vctl.spec.text import MAX_STORED, MIN_STORED

MAX_ARRAY = 1_000_000
DEFAULT_WARNING_S = 60
CONDITIONS = ("ok", "any", "notok")
TMP, PIDS, NOTHING = PRIVATE = ("tmp", "pids", "none")
"""What a job or the jobs of a cluster can have for themselves (``--private``)."""

# patterns stay strings until their first use: every command imports this
_ENV_NAME = r"[^\s=\0]+\Z"
_ENV_LINE = r"(?s)(?:export\s+)?([^\s=]+)\s*=\s*(.*)\Z"
_DATE = r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}"
_QUOTED = r"""("(?:[^"\\]|\\.)*"|'[^']*')\s*(?:#.*)?\Z"""
_ESCAPE = r"\\(.)"
_RANGE = r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z"
_AT_ONCE = r"[0-9]{1,9}\Z"


@value(frozen=True, slots=True)
class WarningSignal:
    """A signal to send ``before_s`` seconds before the time limit, or at a notice; ``name`` without SIG."""

    name: str
    number: int
    before_s: float


@value(frozen=True, slots=True)
class Dependency:
    """Start only when ``job`` ended as ``condition`` says: ok, any or notok."""

    condition: str
    job: str


@value(frozen=True, slots=True)
class ArrayRange:
    """The indices of an array, and how many members may run at once (None: all)."""

    indices: Indices
    at_once: int | None = None


def parse_env(items: Iterable[str], *, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """``K=V`` assignments, the last one wins; a bare ``K`` is taken from ``inherited``, as in docker."""
    path = "--env"
    result: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            if inherited is None or name not in inherited:
                raise refuse(path, f"{show(item)} is not an assignment", "write NAME=value")
            value = inherited[name]
        result[check_env_name(name, path)] = check_env_value(name, value, path)
    return result


def check_env_name(name: str, path: str) -> str:
    """Check the name of an environment variable."""
    if not re.match(_ENV_NAME, name):
        raise refuse(
            path, f"{show(name)} is not a variable name", "write NAME=value, the name without spaces"
        )
    return name


def check_env_value(name: str, value: str, path: str) -> str:
    """Check the value of an environment variable."""
    if "\0" in value:
        raise refuse(path, f"the value of {show(name)} contains a NUL byte", "remove it")
    return value


def parse_env_file(text: str, path: str) -> dict[str, str]:
    """Read the simple part of dotenv: ``K=V`` lines, ``export``, comments, quotes. Nothing is expanded."""
    result: dict[str, str] = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line, line_path = raw.strip(), f"{path}:{number}"
        if not line or line.startswith("#"):
            continue
        match = re.match(_ENV_LINE, line)
        if not match:
            raise refuse(
                line_path, f"{show(line)} is not an assignment", "write NAME=value, or # before a comment"
            )
        name, value = check_env_name(match[1], line_path), match[2]
        result[name] = check_env_value(name, _unquoted(value, line_path), line_path)
    return result


def _unquoted(value: str, path: str) -> str:
    if value[:1] not in ("'", '"'):
        # a # inside a word belongs to the value, as in a shell
        return re.split(r"(?:^|\s)#", value, maxsplit=1)[0].rstrip()
    match = re.match(_QUOTED, value)
    if not match:
        raise refuse(
            path, "the quote is not closed, or something follows it", "close the quote on the same line"
        )
    inner = match[1][1:-1]
    if value[0] == "'":
        return inner
    return re.sub(_ESCAPE, lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), inner)


def read_env_file(name: str) -> dict[str, str]:
    """Read the file that ``--env-file`` names."""
    path = "--env-file"
    try:
        with open(name, encoding="utf-8") as file:
            return parse_env_file(file.read(), f"{path} {name}")
    except OSError as error:
        raise refuse(path, f"cannot read {name}: {error.strerror}", "name a file that you can read") from None
    except ValueError:  # not UTF-8, or a NUL in the name
        raise refuse(path, f"{show(name)} is not a text file in UTF-8", "save it as UTF-8") from None


def parse_pairs(items: Iterable[str], path: str) -> dict[str, str]:
    """``key=value`` pairs of free text, such as metadata."""
    result: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key or len(key) > 128 or not key.isprintable():
            raise refuse(
                path, f"{show(item)} is not key=value", "write key=value, the key at most 128 characters"
            )
        result[key] = value
    return result


def parse_label_pairs(items: Iterable[str]) -> dict[str, str]:
    """The labels of ``--label``."""
    return parse_labels(parse_pairs(items, "--label"), "--label")


def parse_private(words: Sequence[str], path: str) -> tuple[str, ...]:
    """The words in their usual order; ``none`` stands alone, for nothing."""
    for word in words:
        if word not in PRIVATE:
            raise refuse(path, f"unknown word {show(word)}", f"write one or more of {', '.join(PRIVATE)}")
    if not words:
        raise refuse(path, "no word is given", f"write one or more of {', '.join(PRIVATE)}")
    if NOTHING in words and len(set(words)) > 1:
        raise refuse(path, f"{NOTHING} is given beside others", f"write {NOTHING} alone, or leave it out")
    return tuple(word for word in (TMP, PIDS) if word in words)


def parse_warning_signal(text: str, path: str = "--signal") -> WarningSignal:
    """Read ``USR1@60``: a signal, by name or number, and the time before the limit (default: 1 minute)."""
    import signal

    name, at, before = text.partition("@")
    names = {s.name.removeprefix("SIG"): int(s) for s in signal.Signals}
    name = name.strip().upper().removeprefix("SIG")
    if name.isdecimal():
        name = next((known for known, number in names.items() if str(number) == name), name)
    if name not in names:
        fix = did_you_mean(name, names) if name else "write USR1@60"
        raise refuse(path, f"{show(text)} does not name a signal", fix)
    if name in ("KILL", "STOP"):
        raise refuse(
            path,
            f"a process cannot catch {name}, so it cannot serve as a warning",
            "write USR1@60 or TERM@60",
        )
    return WarningSignal(name, names[name], parse_duration(before, path) if at else DEFAULT_WARNING_S)


def parse_dependency(text: str, path: str = "--after") -> Dependency:
    """``ok:ID``, ``any:ID`` or ``notok:ID``; a bare ``ID`` means ok."""
    condition, colon, job = text.partition(":")
    if not colon:
        condition, job = "ok", text
    if condition not in CONDITIONS:
        raise refuse(path, f"unknown condition {show(condition)}", did_you_mean(condition, CONDITIONS))
    # a job may wait for the job submitted last
    return Dependency(condition, job if job == "last" else check_submission_id(job, path))


ARRAY_FIX = "write 0-99, a list such as 1,5,7-9, or 0-99%8 for 8 at once"


def parse_array(text: str, path: str = "--array") -> ArrayRange:
    """``0-99``, ``0-99:2``, ``1,5,7-9`` or a single index; ``%8`` behind it: at most 8 at once."""
    listed, limits, count = text.strip().partition("%")
    at_once = int(count) if re.match(_AT_ONCE, count) else None
    if limits and not at_once:
        problem = "holds no member that could run" if at_once == 0 else "is not a list of indices"
        raise refuse(path, f"{show(text)} {problem}", ARRAY_FIX)
    return ArrayRange(parse_indices(listed, text, path), at_once)


def parse_indices(listed: str, text: str, path: str) -> Indices:
    """A list of indices and ranges of them; ``text`` is what the user wrote."""
    parts: list[range] = []
    for word in listed.split(","):
        found = re.match(_RANGE, word.strip())
        if not found:
            raise refuse(path, f"{show(text)} is not a list of indices", ARRAY_FIX)
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or step == 0:
            raise refuse(path, f"{show(text)} holds no member that could run", ARRAY_FIX)
        parts.append(range(first, last + 1, step))
    if (count := sum(map(len, parts))) > MAX_ARRAY:
        raise refuse(path, f"{count} members, at most {MAX_ARRAY} are accepted", "split the array")
    parts.sort(key=lambda part: part.start)
    if all(part[-1] < behind[0] for part, behind in pairwise(parts)):
        return Indices(tuple((part.start, part.stop, part.step) for part in parts))
    indices = sorted(index for part in parts for index in part)
    for index, behind in pairwise(indices):
        if index == behind:
            raise refuse(path, f"{show(text)} holds the index {index} twice", "name each index once")
    return Indices.of(indices)


def parse_since(text: str, now: float, path: str = "--since") -> float:
    """The begin of a period in epoch seconds: ``1h (ago)``, the last ``16:00``, ISO 8601, or ``now``."""
    fix = "write 1h, 16:00, or 2030-01-31T08:00"
    word = text.strip().removesuffix(" ago")
    if word == "now":
        return now
    if re.match(_DATE, word) or word[:1].isalpha():
        return _moment(text, path, fix)
    if _is_time_of_day(word):
        return _time_of_day(word, now, path, fix, days=-1)
    return now - parse_duration(word, path)


def parse_begin(text: str, now: float, path: str = "--begin") -> float:
    """A time to come in epoch seconds: ``now+1h``, ``1h``, ``in 1h``, the next ``16:00``, or ISO 8601.

    Times are local unless they name a time zone.
    """
    fix = "write now+1h, 16:00, or 2030-01-31T08:00"
    word = text.strip()
    if word == "now":
        return now
    later = word.removeprefix("now").removeprefix("in ").strip().removeprefix("+")
    if re.match(_DATE, word) or later[:1].isalpha():
        return _moment(text, path, fix)
    if _is_time_of_day(word):
        return _time_of_day(word, now, path, fix, days=1)
    return now + parse_duration(later, path)


def _is_time_of_day(word: str) -> bool:
    """Whether the word is a time such as ``16:00``, as for at and sbatch; ``1-12:00:00`` is a duration."""
    return ":" in word and word[:1].isdigit() and "-" not in word


def _time_of_day(word: str, now: float, path: str, fix: str, *, days: int) -> float:
    """The first moment after (``days`` 1) or before (-1) now at which clocks show this time."""
    from datetime import datetime, time, timedelta

    try:
        shown = time.fromisoformat(word.zfill(5 if word.count(":") == 1 else 8))
    except ValueError:
        raise refuse(path, f"{show(word)} is not a time of day", fix) from None
    moment = datetime.combine(datetime.fromtimestamp(now), shown)  # noqa: DTZ006 - local
    if (moment.timestamp() - now) * days < 0:
        moment += timedelta(days=days)
    return moment.timestamp()


def _moment(text: str, path: str, fix: str) -> float:
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise refuse(path, f"{show(text)} is not a time", fix) from None
    if not MIN_STORED < moment * 1e9 < MAX_STORED:
        raise refuse(path, f"{show(text)} is too far away", fix)
    return moment
