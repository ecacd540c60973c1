"""The picture of ``vctl status``: nodes, resources, the tree, the head of the queue, what failed lately."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vctl.cli import tree, words
from vctl.cli.page import Cell, Column, Page

Data = Mapping[str, Any]


def draw(page: Page, data: Data) -> Iterator[str]:
    """All sections; those with nothing to say are one line or left out."""
    yield from _head(page, data)
    yield from _section(page, "Resources", _resources(page, data["resources"]))
    yield from _section(page, "Virtual clusters", tree.draw(_inner(page), data["clusters"]))
    yield from _section(page, _queue_title(data["queue"]), _queue(page, data["queue"]["head"]))
    yield from _section(page, "Recent failures", _failures(page, data["recent_failures"]))


def _head(page: Page, data: Data) -> Iterator[str]:
    counts = [
        f"{count} {page.paint(state, words.state(state).colour)}"
        for state, count in data["nodes"].items()
        if count
    ]
    total = sum(data["nodes"].values())
    scheduler = data["scheduler"]
    yield f"{page.paint('Nodes', 'bold')}      {total}{': ' + ', '.join(counts) if counts else ''}"
    if scheduler["running"]:
        last = scheduler.get("last_round_ms")
        text = "running" + (f", last round {last:.3g} ms" if last is not None else "")
        yield f"{page.paint('Scheduler', 'bold')}  {page.paint(text, 'green')}"
    else:
        yield f"{page.paint('Scheduler', 'bold')}  {page.paint('not running', 'yellow')}"


def _section(page: Page, title: str, lines: Iterable[str]) -> Iterator[str]:
    lines = list(lines)
    if lines or title.startswith("Queue"):
        yield ""
        yield page.paint(title, "bold")
        yield from ("  " + line for line in lines)


def _inner(page: Page) -> Page:
    """The page inside a section, which is indented by two."""
    width = None if page.width is None else page.width - 2
    return Page(colour=page.colour, width=width, header=page.header, fine=page.fine)


def _resources(page: Page, resources: Mapping[str, Data]) -> Iterator[str]:
    width = max((len(name) for name in resources), default=0)
    for name, amount in resources.items():
        used, total = amount["used"], amount["total"]
        text = f"{words.amount(name, used)} of {words.amount(name, total)} used"
        yield f"{name.ljust(width)}  {page.bar(used, total, 24)}  {text}"


def _queue_title(queue: Data) -> str:
    return f"Queue: {queue['pending']} waiting, {queue['running']} running"


def _queue(page: Page, head: list[Data]) -> Iterator[str]:
    columns = [
        Column("JOB", "submission_id"),
        Column("POS", "queue_position", right=True),
        Column("PRIO", lambda job: job["priority"] or "", right=True, optional=True),
        Column("REASON", lambda job: Cell(job["state_reason"] or "", "yellow")),
        Column("WHY", "message", optional=True, give=True),
    ]
    return _inner(page).table(columns, head) if head else iter(())


def _failures(page: Page, jobs: list[Data]) -> Iterator[str]:
    columns = [
        Column("JOB", "submission_id"),
        Column("REASON", lambda job: Cell(job.get("state_reason") or "", "red")),
        Column("EXIT", "exit_code", right=True, optional=True),
        Column("AGO", lambda job: words.lasted(job.get("ended_at")), right=True),
        Column("MESSAGE", "message", optional=True, give=True),
    ]
    return _inner(page).table(columns, jobs) if jobs else iter(())
