"""Virtual clusters as a tree with bars, for ``vctl vc tree`` and ``vctl status``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vctl.cli import words
from vctl.cli.page import Page, wide

Branch = dict[str, Any]
BAR = 10
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
    names = [
        stem + words.cluster_name(branch["cluster_id"]) for stem, branch in zip(stems, branches, strict=True)
    ]
    width = max((wide(name) for name in names), default=0)
    room = None if page.width is None else max(page.width - BAR - 30, 20)
    width = width if room is None else min(width, room)
    for name, branch in zip(names, branches, strict=True):
        from vctl.cli.page import cut

        shown = cut(name, width, page.fine)
        line = shown + " " * (width - wide(shown)) + "  " + _usage(page, branch)
        yield line.rstrip()


def _usage(page: Page, branch: Mapping[str, Any]) -> str:
    total = branch["total"]
    used = {name: branch["used"].get(name, 0) for name in total}
    names = [name for name in FIRST if total.get(name)]
    names += [name for name in total if total[name] and name not in (*FIRST, "object_store_memory")]
    scarce = max(names, key=lambda name: used[name] / total[name], default=None)
    bar = page.bar(used[scarce], total[scarce], BAR) if scarce else " " * BAR
    numbers = "  ".join(
        f"{SHORT.get(name, name)} {words.amount(name, used[name])}/{words.amount(name, total[name])}"
        for name in names
    )
    running = branch.get("jobs")
    count = (
        len(running)
        if isinstance(running, list)
        else sum(running.values())
        if isinstance(running, dict)
        else running
    )
    kind = "" if branch["kind"] in ("primary", "job") else branch["kind"]
    notes = [kind, f"{count} job{'s' if count != 1 else ''}" if count and branch["kind"] != "job" else ""]
    tail = ", ".join(note for note in notes if note)
    return f"{bar}  {numbers}" + (f"  {page.paint(tail, 'dim')}" if tail else "")


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
