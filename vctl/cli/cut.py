"""Ids cut to a width so that they can still be told apart: what they have in common goes first. Pure."""

import re
from collections.abc import Iterable, Sequence

LEAD = r"[│├└─|+` -]*"
"""The lines that a tree draws before a name; they are never cut. Compiled at its first use: most tables have room."""


def middle(text: str, width: int, mark: str) -> str:
    """The first and the last part of a text, with a mark between them; of ASCII text only."""
    if len(text) <= width:
        return text
    if width < 2:
        return mark[:width]
    right = (width - 1) // 2
    return text[: width - 1 - right] + mark + (text[-right:] if right else "")


def apart(texts: Iterable[str], width: int, mark: str) -> dict[str, str]:
    """The cut of each text that is too long: different texts get different cuts wherever the width allows it.

    Texts beyond ASCII, whose letters may take two columns, are left out.
    """
    found: dict[str, str] = {}
    by_lead: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        if len(text) <= width:
            continue
        lead = re.match(LEAD, text)
        assert lead is not None
        if text[lead.end() :].isascii():
            by_lead.setdefault(" " * lead.end(), []).append(text)
    for blanks, group in by_lead.items():
        at, room = len(blanks), max(width - len(blanks), 0)
        cuts = _cuts(list(dict.fromkeys(text[at:] for text in group)), room, mark)
        found |= {text: (text[:at] + cuts[text[at:]])[:width] for text in group}
    return found


def _cuts(names: Sequence[str], room: int, mark: str) -> dict[str, str]:
    """The cuts of different names. Those that a cut in the middle makes equal are cut where they are alike."""
    cuts = {name: middle(name, room, mark) for name in names}
    for group in _equal(cuts):
        cuts |= _around(group, room, mark)
    if rest := _equal(cuts):  # of different groups
        cuts |= _around([name for group in rest for name in group], room, mark)
    return cuts


def _equal(cuts: dict[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name, cut in cuts.items():
        groups.setdefault(cut, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _around(names: Sequence[str], room: int, mark: str) -> dict[str, str]:
    """Cuts that keep what differs: the common beginning and the common end are shortened, at worst to a mark each."""
    before = _common(names)
    after = _common([name[before:][::-1] for name in names])
    ends = [len(name) - after for name in names]
    cores = [name[before:end] for name, end in zip(names, ends, strict=True)]
    least = min(before, 1) + min(after, 1)
    longest = max(map(len, cores))
    if longest > room - least:
        if least == 0 or room - least < 3:  # nothing in common that could go, or no room for a difference
            return {name: middle(name, room, mark) for name in names}
        shorter = _cuts(cores, longest := room - least, mark)
        cores = [shorter[core] for core in cores]
    spare = room - longest
    first = min(before, max(spare - after, (2 * spare + 2) // 3, 1), spare - min(after, 1))
    head = _ending(names[0][:before], first, mark)
    tail = middle(names[0][ends[0] :], min(after, spare - first), mark)
    whole = (f"{head}{core}{tail}" for core in cores)
    return dict(zip(names, (re.sub(f"{re.escape(mark)}+", mark, cut) for cut in whole), strict=True))


def _common(names: Sequence[str]) -> int:
    """How many letters all names have in common at their beginning."""
    least, most = min(names), max(names)
    differing = (at for at, (one, other) in enumerate(zip(least, most, strict=False)) if one != other)
    return next(differing, min(len(least), len(most)))


def _ending(text: str, width: int, mark: str) -> str:
    """A common beginning, cut in the middle: the words before the difference say what it is."""
    return middle(text[::-1], width, mark)[::-1]
