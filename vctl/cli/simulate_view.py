"""The drawing of ``vctl simulate``: a line for each policy, each figure with its difference to the first policy."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vctl.cli.columns import WIDER
from vctl.cli.table import Cell, Column, key
from vctl.core.wording import counted
from vctl.spec.quantities import format_duration

if TYPE_CHECKING:
    from vctl.cli.screen import Screen

Data = Mapping[str, Any]
Show = Callable[[float], str]


def draw(screen: "Screen", data: Data) -> Iterator[str]:
    """The comparison, then the jobs that never started, and notes about left out jobs."""
    runs = data["items"]
    sizes = {(run["nodes"], str(run["resources"])) for run in runs}
    where = f" on {counted(runs[0]['nodes'], 'node')}" if len(sizes) == 1 else ""
    number, noun = counted(data["jobs"], "job").split()
    yield from screen.text((number, "bold"), f" {noun} of {data['workload']}{where}")
    yield ""
    yield from screen.table(_COLUMNS, runs)
    if any(run["never"] for run in runs):
        yield ""
    for run in runs:
        for group in run["never"]:
            count = (f"{counted(group['jobs'], 'job')} never started", "yellow")
            yield from screen.text(f"{run['policy']}: ", count, f" ({group['reason']}): {group['message']}")
    for note in data["notes"]:
        yield from screen.text((f"left out: {note}", "dim"))


def _time(seconds: float) -> str:
    """A duration that is short enough for a column: rounded to seconds, or to tenths below a minute."""
    return format_duration(round(seconds) if seconds >= 60 else round(seconds, 1))


def _cell(show: Show, *path: str, less_is_better: bool = True) -> Callable[[Data], Cell]:
    def cell(run: Data) -> Cell:
        now, change = run["figures"], run["change"]
        for name in path:
            now, change = now[name], change[name]
        if now is None:
            return Cell("-")
        before = now - (change or 0)
        if not change or not before or show(now) == show(before):
            return Cell(show(now))
        part = change / before
        text = f"{show(now)} ({part:+.0%})" if abs(part) < 10 else f"{show(now)} (x{now / before:.0f})"
        if abs(part) < 0.005:
            return Cell(text)
        return Cell(text, "green" if (part < 0) == less_is_better else "red")

    return cell


_COLUMNS = [
    key("POLICY", "policy"),
    Column("STARTED", lambda run: f"{run['figures']['started']}/{run['figures']['jobs']}", right=True),
    Column("WAIT MEAN", _cell(_time, "wait", "mean"), right=True),
    Column("MEDIAN", _cell(_time, "wait", "median"), right=True, at=WIDER),
    Column("P95", _cell(_time, "wait", "p95"), right=True, at=WIDER),
    Column("MAX", _cell(_time, "wait", "max"), right=True, at=WIDER),
    Column("SLOWDOWN", _cell(lambda value: f"{value:.1f}", "bounded_slowdown", "mean"), right=True),
    Column("P95", _cell(lambda value: f"{value:.1f}", "bounded_slowdown", "p95"), right=True, at=WIDER),
    Column(
        "USED", _cell(lambda value: f"{value:.1%}", "utilisation_until_last_arrival", less_is_better=False), right=True
    ),
    Column("JAIN", _cell(lambda value: f"{value:.2f}", "users", "jain", less_is_better=False), right=True, at=WIDER),
    Column("MAKESPAN", _cell(_time, "makespan"), right=True, at=WIDER),
]  # fmt: skip
