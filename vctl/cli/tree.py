"""Virtual clusters as a tree with bars, for ``vctl vc tree`` and ``vctl status``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl.cli import words
from vctl.cli.columns import SMALL, WIDE, number
from vctl.cli.table import KEY, Bar, Cell, Column

if TYPE_CHECKING:
    from vctl.cli.screen import Screen

Branch = Mapping[str, Any]
FIRST = ("CPU", "GPU", "memory")


def flatten(cluster: Branch, depth: int = 0) -> list[dict[str, Any]]:
    """A nested cluster as rows in the order in which they are drawn."""
    rows = [{**cluster, "depth": depth}]
    for child in cluster.get("tree", ()):
        rows += flatten(child, depth + 1)
    return rows


def draw(screen: "Screen", branches: Sequence[Branch]) -> Iterator[str]:
    """A line for each cluster: its position in the tree, a bar of the scarcest resource, and the amounts in use."""
    positions = screen.branches(
        [branch["cluster_id"] for branch in branches], [branch["depth"] for branch in branches]
    )
    rows = [{**branch, "position": position} for branch, position in zip(branches, positions, strict=True)]
    return screen.table(_COLUMNS, rows)


def _bar(branch: Branch) -> Bar:
    total, used = branch["total"], branch["used"]
    named = [name for name in total if total[name] and name != "object_store_memory"]
    scarce = max(named, key=lambda name: used.get(name, 0) / total[name], default=None)
    return Bar(used.get(scarce, 0), total[scarce]) if scarce else Bar(0, 0)


def _amount(name: str) -> Any:
    def show(branch: Branch) -> str:
        total, used = branch["total"].get(name, 0), branch["used"].get(name, 0)
        return f"{words.amount(name, used)}/{words.amount(name, total)}" if total or used else ""

    return show


def _others(branch: Branch) -> str:
    others = [
        name
        for name in branch["total"]
        if (branch["total"][name] or branch["used"].get(name)) and name not in (*FIRST, "object_store_memory")
    ]
    return ", ".join(f"{name} {_amount(name)(branch)}" for name in others)


def _state(branch: Branch) -> Cell | str:
    state = branch.get("state") or "ACTIVE"
    return words.state(state) if state != "ACTIVE" else branch["kind"]


def _jobs(word: str) -> Any:
    def show(branch: Branch) -> Any:
        return branch.get("job_counts", branch["jobs"])[word] or ""

    return show


_COLUMNS = [
    Column("CLUSTER", "position", middle=True, rank=KEY),
    number("JOB"),
    Column("KIND", _state, whole=True),
    Column("USE", _bar, whole=True, at=SMALL - 2),
    Column("CPU", _amount("CPU"), right=True),
    Column("GPU", _amount("GPU"), right=True),
    Column("MEM", _amount("memory"), right=True, at=SMALL - 2),
    Column("OTHERS", _others, at=WIDE),
    Column("RUN", _jobs("running"), right=True),
    Column("WAIT", _jobs("pending"), right=True),
]
