"""Virtual clusters as a tree with bars, for ``vctl vc tree`` and ``vctl status``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vctl.cli import words
from vctl.cli.page import GAP, Page, cut, wide

Branch = dict[str, Any]
BAR = 10
LEAST_NAME = 20
FIRST = ("CPU", "GPU", "memory")
SHORT = {"memory": "mem"}


def flatten(cluster: Mapping[str, Any], depth: int = 0) -> list[Branch]:
    """A nested cluster as rows in the order in which they are drawn."""
    total, free = cluster["total_resources"], cluster["available_resources"] or {}
    used = {name: amount - free.get(name, 0) for name, amount in total.items()}
    found = [{**cluster, "depth": depth, "total": total, "used": used}]
    for child in cluster.get("tree", ()):
        found += flatten(child, depth + 1)
    return found


def draw(page: Page, branches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each cluster: its place in the tree, a bar for the scarcest resource, the amounts."""
    stems = list(_stems([branch["depth"] for branch in branches], page))
    amounts = [_amounts(branch) for branch in branches]
    notes = [_notes(branch) for branch in branches]
    room = None
    if page.width is not None:
        room = page.width - BAR - 2 * len(GAP)
        if (left := room - _widest(a + n for a, n in zip(amounts, notes, strict=True))) >= LEAST_NAME:
            room = left
        else:  # the notes are the first to go
            room, notes = max(room - _widest(amounts), LEAST_NAME), [""] * len(notes)
    names = _names(branches, stems, room)
    width = _widest(names) if room is None else min(_widest(names), room)
    for name, branch, amount, note in zip(names, branches, amounts, notes, strict=True):
        shown = cut(name, width, page.fine)
        place = shown + " " * (width - wide(shown))
        line = f"{place}{GAP}{_bar(page, branch)}{GAP}{amount}{page.paint(note, 'dim')}"
        yield line.rstrip()


def _widest(texts: Iterable[str]) -> int:
    return max((wide(text) for text in texts), default=0)


def _names(branches: Sequence[Mapping[str, Any]], stems: Sequence[str], room: int | None) -> list[str]:
    """The ids in their places; where too long, a job cluster loses what stands above it in the tree."""
    full = [words.cluster_name(branch["cluster_id"]) for branch in branches]
    placed = [stem + name for stem, name in zip(stems, full, strict=True)]
    if room is None or _widest(placed) <= room:
        return placed
    short = ["##" + name.rpartition("##")[2] if "##" in name else name for name in full]
    return [stem + name for stem, name in zip(stems, short, strict=True)]


def _named(branch: Mapping[str, Any]) -> list[str]:
    total = branch["total"]
    first = [name for name in FIRST if total.get(name)]
    return first + [name for name in total if total[name] and name not in (*FIRST, "object_store_memory")]


def _bar(page: Page, branch: Mapping[str, Any]) -> str:
    total, used = branch["total"], branch["used"]
    scarce = max(_named(branch), key=lambda name: used.get(name, 0) / total[name], default=None)
    return page.bar(used.get(scarce, 0), total[scarce], BAR) if scarce else " " * BAR


def _amounts(branch: Mapping[str, Any]) -> str:
    total, used = branch["total"], branch["used"]
    return GAP.join(
        f"{SHORT.get(name, name)} {words.amount(name, used.get(name, 0))}/{words.amount(name, total[name])}"
        for name in _named(branch)
    )


def _notes(branch: Mapping[str, Any]) -> str:
    """The kind of a named cluster, its state unless it is active, its jobs: numbers by state, or their ids."""
    jobs = branch.get("jobs") or {}
    notes = ["" if branch["kind"] in ("primary", "job") else branch["kind"]]
    if branch.get("state", "ACTIVE") != "ACTIVE":
        notes.append(str(branch["state"]))
    if isinstance(jobs, Mapping):
        notes += [f"{count} {word}" for word in ("running", "pending") if (count := jobs.get(word))]
    elif branch["kind"] != "job":
        notes.append(f"{len(jobs)} job{'s' if len(jobs) != 1 else ''}")
    text = ", ".join(note for note in notes if note)
    return GAP + text if text else ""


def _stems(depths: Sequence[int], page: Page) -> Iterator[str]:
    """The lines in front of each name, from the depths alone."""
    fork, end, through = ("├─ ", "└─ ", "│  ") if page.fine else ("|- ", "`- ", "|  ")
    for index, depth in enumerate(depths):
        stem = ""
        for level in range(1, depth + 1):
            follows = _comes_again(depths, index, level)
            if level == depth:
                stem += fork if follows else end
            else:
                stem += through if follows else "   "
        yield stem


def _comes_again(depths: Sequence[int], index: int, level: int) -> bool:
    """Whether another branch of this level follows before the tree leaves it."""
    for depth in depths[index + 1 :]:
        if depth < level:
            return False
        if depth == level:
            return True
    return False
