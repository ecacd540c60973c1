"""Reads workloads in the Standard Workload Format, version 2: 18 numbers per line, comment lines with ``;``.

S. J. Chapin et al., "Benchmarks and standards for the evaluation of parallel job schedulers", JSSPP 1999. The
archive at https://www.cs.huji.ac.il/labs/parallel/workload has logs in this format. -1 means unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from vctl.core.clusters import PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.resources import CPU, SCALE
from vctl.core.values import value
from vctl.simulate.workload import SECOND, Arrival, Workload, in_order
from vctl.spec.fields import refuse, show
from vctl.spec.trace_size import Size

FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
SUBMIT, RUN, ALLOCATED, REQUESTED, LIMIT, STATUS, USER = 1, 3, 4, 7, 8, 10, 11
PARTIAL = (2, 3, 4)
"""Status values of lines that describe a part of a job; another line describes the whole job."""
MAX_NUMBER = 2**53


@value(slots=True)
class _Machine:
    nodes: int | None = None
    processors: int | None = None

    @property
    def per_node(self) -> int:
        """Processors per node; 1 if the header lacks the number of nodes or of processors."""
        if self.nodes is None or self.processors is None:
            return 1
        return max(1, self.processors // self.nodes)


def read_swf(
    lines: Iterable[str], name: str, size: Size | None = None, *, per_node: int | None = None
) -> Workload:
    """Read a log. A job with more processors than a node gets full nodes, and a part of one for the rest.

    ``per_node``: processors per node; None means as in the header. Left out and counted in the notes are
    jobs that never ran, jobs without a size, and lines that describe a part of a job.
    """
    machine, size = _Machine(), size or Size()
    records: list[list[float]] = []
    skipped = {"never ran": 0, "are parts of another line": 0, "have no size": 0}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(";"):
            _note_header(machine, text)
        elif text:
            record = _record(text, f"{name}:{number}")
            if record[STATUS] in PARTIAL:
                skipped["are parts of another line"] += 1
            elif record[RUN] <= 0:
                skipped["never ran"] += 1
            elif max(record[REQUESTED], record[ALLOCATED]) <= 0:
                skipped["have no size"] += 1
            else:
                size.add_job(f"{name}:{number}")
                records.append(record)
    each = per_node or machine.per_node
    nodes = machine.nodes
    if nodes is None and machine.processors is not None:
        nodes = -(-machine.processors // each)
    size.check_machine(nodes or 1, each, name)
    for processors in sorted({_processors(record) for record in records}):
        size.add_shape(processors, -(-processors // each), f"{name}: {FIELDS[REQUESTED]}")
    arrivals = in_order(_arrival(record, each) for record in records)
    notes = tuple(f"{count} jobs of {name} {what}" for what, count in skipped.items() if count)
    return Workload(name, arrivals, notes, nodes, {CPU: each * SCALE})


def _note_header(machine: _Machine, text: str) -> None:
    word, _, rest = text.lstrip("; ").partition(":")
    number = rest.split()[0] if rest.split() else ""
    if number.isascii() and number.isdigit() and 0 < int(number) < MAX_NUMBER:
        match word.strip().casefold():
            case "maxnodes":
                machine.nodes = int(number)
            case "maxprocs":
                machine.processors = int(number)


def _record(text: str, where: str) -> list[float]:
    words = text.split()
    if len(words) != len(FIELDS):
        raise refuse(
            where, f"{len(words)} fields, a line has {len(FIELDS)}",
            f"the first that is missing is {FIELDS[len(words)]}; write -1 for what is not known"
            if len(words) < len(FIELDS) else "comments begin with ;",
        )  # fmt: skip
    record: list[float] = []
    for field, word in zip(FIELDS, words, strict=True):
        try:
            value = float(word)
        except ValueError:
            raise refuse(
                f"{where}: {field}", f"{show(word)} is not a number", "write a number, or -1"
            ) from None
        if not -MAX_NUMBER < value < MAX_NUMBER:  # NaN fails, too
            raise refuse(
                f"{where}: {field}", f"{show(word)} is out of range", "write a smaller number, or -1"
            )
        record.append(value)
    if record[SUBMIT] < 0:
        raise refuse(
            f"{where}: {FIELDS[SUBMIT]}", f"{words[SUBMIT]} is before the log begins", "write 0 or more"
        )
    return record


def _processors(record: list[float]) -> int:
    return max(1, int(record[REQUESTED] if record[REQUESTED] > 0 else record[ALLOCATED]))


def _arrival(record: list[float], per_node: int) -> Arrival:
    number = int(record[0])
    processors = _processors(record)
    job = PendingJob(
        number, f"job-{number}", PRIMARY, f"{processors}p", _spec(processors, per_node), {},
        user="" if record[USER] < 0 else f"user-{int(record[USER])}",
        submitted_at_ns=int(record[SUBMIT] * SECOND),
        time_limit_ns=int(record[LIMIT] * SECOND) if record[LIMIT] > 0 else None,
    )  # fmt: skip
    return Arrival(job, int(record[RUN] * SECOND))


@cache
def _spec(processors: int, per_node: int) -> ClusterSpec:
    full, rest = divmod(processors, per_node)
    pieces = (FixedNode({CPU: per_node * SCALE}),) * full
    if rest:
        pieces += (FixedNode({CPU: rest * SCALE}),)
    return ClusterSpec(groups=(Group(pieces),), flexible=False)
