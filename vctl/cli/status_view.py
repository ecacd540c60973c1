"""The drawing of ``vctl status``: nodes, resources, the tree, running jobs, the queue head, the last failures."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vctl.cli import tree, words
from vctl.cli.columns import SMALL, WIDE, cluster, number
from vctl.cli.table import GIVES, Bar, Cell, Column, key, matters
from vctl.core.resources import CPU, GPU, MEMORY
from vctl.spec.quantities import format_duration

if TYPE_CHECKING:
    from vctl.cli.screen import Screen

Data = Mapping[str, Any]
MAX_CLUSTERS = 20
LOW = 30
"""Screens of at most so many lines have rows instead of empty lines between the sections, where not all rows fit."""
MIN_LINES = 3
"""The least lines of a section on a low screen, with the heading of the table."""
INNER = SMALL - 2
"""The least width of a section on a terminal that has room for further columns."""
WANTED = (CPU, GPU, MEMORY)
"""The resources that come first, and that a low screen shows too."""


class Section:
    """A heading, the lines below it, and the number of rows that are not shown; a low screen keeps ``least`` lines."""

    def __init__(
        self, title: str, lines: Iterable[str], hidden: int = 0, hint: str = "", least: int = 0
    ) -> None:
        self.title = title
        self.lines = list(lines)
        self.hidden = hidden
        self.hint = hint
        self.least = least

    @property
    def height(self) -> int:
        """The lines of the section, with the empty line above it."""
        return 2 + len(self.lines)

    def note(self, screen: "Screen") -> str:
        """The number of hidden rows, and if the screen is wide enough, the command that shows them."""
        if not self.hidden:
            return ""
        count = f"{screen.mark} {self.hidden} more"
        is_narrow = screen.width is not None and len(self.title + count + self.hint) + 2 > screen.width
        return count if is_narrow else count + self.hint


def draw(screen: "Screen", data: Data) -> Iterator[str]:
    """All sections with rows. Where the height is limited, long sections are cut and name the number of hidden rows."""
    head = list(_head(screen, data))
    sections = [
        part for part in _sections(screen.inner, data) if part.lines or part.title.startswith("Queue")
    ]
    has_empty_lines = True
    if screen.height is not None:
        capacity = screen.height - len(head) - screen.prompt
        has_empty_lines = screen.height > LOW or _height(sections) <= capacity
        has_empty_lines = _fit(sections, capacity, has_empty_lines=has_empty_lines)
    yield from head
    for part in sections:
        lines = list(screen.section(part.title, part.lines, part.note(screen)))
        yield from lines[0 if has_empty_lines else 1 :]


def _height(sections: list[Section]) -> int:
    return sum(section.height for section in sections)


def _fit(sections: list[Section], capacity: int, *, has_empty_lines: bool) -> bool:
    """Remove rows from the longest section until all sections fit; returns whether empty lines between them do."""
    for least in (MIN_LINES, MIN_LINES - 1):
        has_empty_lines = has_empty_lines and least == MIN_LINES
        present = capacity + len(sections) * (not has_empty_lines)
        while _height(sections) > present:
            cuttable = [section for section in sections if len(section.lines) > max(least, section.least)]
            if not cuttable:
                break
            longest = max(cuttable, key=lambda section: len(section.lines))
            longest.lines.pop()
            longest.hidden += 1
        if _height(sections) <= present:
            break
    return has_empty_lines


def _head(screen: "Screen", data: Data) -> Iterator[str]:
    counts = [(f"{count} ", words.state(word)) for word, count in data["nodes"].items() if count]
    parts: list[Any] = [("Nodes", "bold"), f"      {sum(data['nodes'].values())}"]
    for index, (count, cell) in enumerate(counts):
        parts += [", " if index else ": ", count, (cell.text, cell.colour)]
    yield from screen.text(*parts)
    scheduler = data["scheduler"]
    scheduler_text = ("starting" if scheduler.get("starting") else "not running", "yellow")
    if scheduler["running"]:
        last = scheduler.get("last_round_ms")
        scheduler_text = ("running" + (f", last round {last:.3g} ms" if last is not None else ""), "green")
    yield from screen.text(("Scheduler", "bold"), "  ", scheduler_text)
    if service := scheduler.get("service"):
        yield from screen.text(("Service", "bold"), f"    {service}, you are {scheduler['user']}")


def _sections(screen: "Screen", data: Data) -> Iterator[Section]:
    amounts = data["resources"]
    first = [name for name in WANTED if name in amounts]
    names = [*first, *(name for name in amounts if name not in first)]
    resources = [{"name": name, **amounts[name]} for name in names]
    lines = screen.table(_RESOURCES, resources) if resources else ()
    yield Section("Resources", lines, least=1 + len(first))
    branches = data["clusters"]
    hidden = max(0, len(branches) - MAX_CLUSTERS)
    yield Section(
        "Virtual clusters",
        tree.draw(screen, branches[:MAX_CLUSTERS]) if branches else (),
        hidden,
        "; `vctl vc tree` shows all",
    )
    below = [branch for branch in branches if branch.get("below_minimum")]
    yield Section("Below their minimum", screen.table(_BELOW, below) if below else (), least=1)
    devices = data.get("devices", ())
    yield Section("Devices", screen.table(_DEVICES, devices) if devices else (), least=1)
    queue, running = data["queue"], data["running_jobs"]
    yield Section(
        "Running",
        screen.table(_RUNNING, running) if running else (),
        queue["running"] - len(running),
        "; `vctl job list` shows all",
    )
    head = queue["head"]
    yield Section(
        f"Queue: {queue['pending']} waiting, {queue['running']} running",
        screen.table(_QUEUE, head) if head else (),
        queue["pending"] - sum(job["members"] for job in head),
        "; `vctl job list` shows all",
    )
    failures = data["recent_failures"]
    yield Section("Failed within a day", screen.table(_FAILURES, failures) if failures else ())


def _figure(kind: str) -> Any:
    return lambda row: words.amount(row["name"], row[kind])


def _remaining(job: Data) -> Cell:
    if (seconds := job["time_left_s"]) is None:
        return Cell("-")
    return Cell(format_duration(int(seconds)), "yellow" if seconds < 60 else "")


def _device_text(gpu_id: str) -> str:
    node_id, _, number = gpu_id.rpartition("/")
    return f"GPU {number} of {node_id} "


def _with_members(job: Data) -> str:
    """The id of a waiting job, and how many members of its array wait behind it."""
    behind = job["members"] - 1
    return f"{job['submission_id']} +{behind}" if behind else str(job["submission_id"])


_FREE = r"free: |in .+, from which .+ can grow: "


def _useful_first(message: str) -> str:
    """A reason with what is free on each node behind everything else: it is cut first."""
    clauses = message.split("; ")
    return "; ".join(sorted(clauses, key=lambda clause: re.match(_FREE, clause) is not None))


_RESOURCES = [
    Column("RESOURCE", "name"),
    Column("TOTAL", _figure("total"), right=True),
    Column("RESERVED", _figure("reserved"), right=True),
    Column("LENT", _figure("lent"), right=True),
    Column("IDLE", _figure("idle"), right=True),
    Column("USED", _figure("used"), right=True),
    Column("USE", lambda row: Bar(row["used"], row["total"]), whole=True),
]
_BELOW = [
    cluster("CLUSTER", "cluster_id"),
    matters("WHY", lambda row: row["below_minimum"]["message"]),
]
_DEVICES = [
    Column("GPU", "gpu_id", middle=True),
    matters("WHAT", lambda row: row["message"].removeprefix(_device_text(row["gpu_id"]))),
]
_RUNNING = [
    key("JOB", "submission_id"),
    number("ID"),
    Column("USER", "user", at=INNER),
    cluster("CLUSTER", "parent_cluster_id", at=INNER),
    Column("NODES", lambda job: words.few(job["node_ids"]), middle=True),
    Column("CPU", lambda job: words.amount("CPU", job["resources"].get("CPU", 0)), right=True),
    Column("GPU", lambda job: words.amount("GPU", job["resources"].get("GPU", 0)), right=True),
    Column("TIME", lambda job: format_duration(int(job["run_s"])), right=True),
    Column("LEFT", _remaining, right=True),
    Column("COMMAND", "entrypoint", rank=GIVES, raw=True, at=WIDE),
]
_QUEUE = [
    key("JOB", _with_members),
    number("ID"),
    Column("USER", "user", at=WIDE),
    cluster("CLUSTER", "parent_cluster_id", at=INNER),
    Column("POS", "queue_position", right=True),
    Column("PRIO", "priority", right=True),
    Column("REASON", lambda job: Cell(job["state_reason"] or "", "yellow"), whole=True, at=WIDE),
    Column("START", lambda job: words.soon(job.get("expected_start")), at=WIDE),
    matters("WHY", lambda job: _useful_first(job["message"] or "")),
]
_FAILURES = [
    key("JOB", "submission_id"),
    number("ID"),
    Column("USER", "user", at=WIDE),
    Column("REASON", lambda job: Cell(job.get("state_reason") or "", "red"), whole=True, at=INNER),
    Column("EXIT", "exit_code", right=True),
    Column("AGO", lambda job: words.lasted(job.get("ended_at")), right=True),
    matters("MESSAGE", "message"),
]
