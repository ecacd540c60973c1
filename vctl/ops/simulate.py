"""``vctl simulate``: a workload under several policies and machines, each judged against the first."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from vctl.core import resources as rs
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import SECOND
from vctl.core.resources import CPU, SCALE, Amounts
from vctl.core.values import field, replace, value
from vctl.errors import BadSpec, NotFound, param
from vctl.simulate import lublin
from vctl.simulate.machine import equal_nodes, resized, with_policy
from vctl.simulate.metrics import Figures, figures
from vctl.simulate.play import Played, Player
from vctl.simulate.workload import Arrival, Workload, in_order, rigid, shape_name, with_limits
from vctl.spec.fields import did_you_mean, refuse, show
from vctl.spec.quantities import resources_document
from vctl.spec.queue_settings import parse_queue, queue_document
from vctl.spec.trace_jsonl import read_jsonl
from vctl.spec.trace_size import Size
from vctl.spec.trace_swf import read_swf

CURRENT = "current"
GZIP = b"\x1f\x8b"
MOST_IN_A_LINE = 1 << 20
MOST_MODEL_JOBS = 1_000_000
MOST_NODES = 100_000
Progress = Callable[[str, int, int], None]
"""Progress: (policy, jobs that have arrived, jobs in all)."""


@value(frozen=True, slots=True)
class Variant:
    """One run: queue settings that replace the present ones, and the number of nodes (None: the present number)."""

    name: str
    changes: Mapping[str, object] = field(default_factory=dict)
    nodes: int | None = None


@value(frozen=True, slots=True)
class Question:
    """A comparison. ``machine`` makes a new ledger for a number of nodes; the first variant is the base."""

    workload: Workload
    machine: Callable[[int | None], Ledger]
    variants: Sequence[Variant]
    cluster_id: str | None = None


# ---- where the workload comes from ----


def read_trace(name: str, *, per_node: int | None = None) -> Workload:
    """A trace from a file: JSON lines where its first line begins with ``{``, else SWF; both may be gzipped."""
    try:
        with _opened(name) as lines:
            return trace_of(lines, name, per_node=per_node)
    except OSError as error:
        problem = error.strerror or str(error)
        raise refuse(param("trace"), f"cannot read {name}: {problem}", "name one that you can read") from None
    except EOFError:
        raise refuse(param("trace"), f"{name} ends in the middle of its gzip data", "copy it again") from None
    except UnicodeDecodeError as error:
        raise refuse(
            param("trace"), f"{name} is not UTF-8 text (byte {error.start})", "save it as UTF-8"
        ) from None


def trace_of(
    lines: Iterator[str], name: str, *, per_node: int | None = None, size: Size | None = None
) -> Workload:
    """A trace from its lines. ``size``: how large it may be."""
    first = next(lines, "")
    every = chain([first], lines)
    if first.lstrip().startswith("{"):
        return read_jsonl(every, name, size)
    return read_swf(every, name, size, per_node=per_node)


@contextmanager
def _opened(name: str) -> Iterator[Iterator[str]]:
    with Path(name).expanduser().open("rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        with io.TextIOWrapper(gzip.open(file) if packed else file, encoding="utf-8-sig") as text:
            yield _lines(text, name)


def _lines(text: io.TextIOWrapper, name: str) -> Iterator[str]:
    """The lines of a file; refuses a line that is too long to be one of a trace."""
    for number, line in enumerate(iter(lambda: text.readline(MOST_IN_A_LINE), ""), 1):
        if len(line) == MOST_IN_A_LINE:
            raise refuse(
                f"{name}:{number}", f"the line is longer than {MOST_IN_A_LINE} characters", "is it a trace?"
            )
        yield line


def model(count: int, *, nodes: int, seed: int, load: float) -> Workload:
    """Jobs of the Lublin-Feitelson model for a machine of ``nodes`` nodes with one CPU each."""
    each = {CPU: SCALE}
    arrivals = [
        Arrival(
            PendingJob(
                number, f"job-{number}", PRIMARY, shape_name(job.nodes, each), rigid(job.nodes, each), {},
                user=f"user-{job.user}", submitted_at_ns=int(job.at * SECOND),
            ),
            job.runs * SECOND,
        )
        for number, job in enumerate(lublin.jobs(count, nodes=nodes, seed=seed, load=load), 1)
    ]  # fmt: skip
    name = f"the Lublin-Feitelson model (seed {seed}, load {load:g})"
    return Workload(name, in_order(arrivals), (), nodes, each)


def chosen(workload: Workload, cluster_id: str | None, limit_factor: float | None) -> Workload:
    """The simulated jobs: all, or those of one cluster; with added time limits if a factor is given."""
    arrivals = workload.arrivals
    if cluster_id is not None:
        arrivals = tuple(arrival for arrival in arrivals if arrival.job.parent_id == cluster_id)
    if limit_factor is not None:
        arrivals = with_limits(arrivals, limit_factor)
    return replace(workload, arrivals=arrivals)


# ---- the machine ----


def parse_policy(text: str) -> Variant:
    """Read a policy such as ``fair/backfill`` or ``fifo/backfill,backfill_depth=3,half_life_s=1h``."""
    head, *settings = text.split(",")
    order, slash, discipline = head.partition("/")
    document: dict[str, object] = {"order": order}
    if slash:
        document["discipline"] = discipline
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise refuse(
                param("policy"),
                f"{show(setting)} is not a setting",
                "write NAME=VALUE, such as backfill_depth=3",
            )
        number = value.isascii() and value.isdigit() and len(value) < 19
        document[name.strip()] = None if value == "none" else int(value) if number else value
    return Variant(text, parse_queue(document, param("policy")))


def trace_machine(
    workload: Workload, each: Amounts | None, settings: Mapping[str, object] | None = None
) -> Callable[[int | None], Ledger]:
    """A machine of equal nodes with these queue settings; by default with the number of nodes of the trace.

    Each cluster that the trace names becomes a cluster in the primary without a minimum, which borrows free resources.
    """

    def make(count: int | None) -> Ledger:
        nodes = count if count is not None else workload.nodes
        if nodes is None:
            problem = "the trace does not say on how many nodes it ran"
            raise refuse(param("nodes"), problem, f"write {param('nodes')}=256")
        ledger = equal_nodes(sensible(nodes), each or workload.node or {CPU: SCALE})
        for name in sorted({arrival.job.parent_id for arrival in workload.arrivals} - ledger.clusters.keys()):
            ledger.put_cluster(Cluster(name, PRIMARY, LOGICAL, ClusterSpec()))
        with_policy(ledger, dict(settings or {}))
        return ledger

    return make


def state_machine(base: Ledger, template: str | None) -> Callable[[int | None], Ledger]:
    """The cluster of the state directory, with a changed number of nodes."""

    def make(count: int | None) -> Ledger:
        ledger = base.copy()
        if count is not None:
            kinds = {node.template_id for node in ledger.nodes.values()}
            if template is not None and template not in kinds:
                raise NotFound(f"there is no node of template {template}", fix=did_you_mean(template, kinds))
            have = resized(ledger, sensible(count), template)
            if have != count:
                why = "clusters hold the other nodes" if have > count else "there is no node to copy"
                raise refuse(
                    param("nodes"),
                    f"{count} nodes are not available, only {have}: {why}",
                    f"write {param('nodes')}={have}",
                )
        return ledger

    return make


def sensible(count: int) -> int:
    """The number of nodes, which is refused if it is none that can be simulated."""
    if not 1 <= count <= MOST_NODES:
        raise refuse(
            param("nodes"), f"{show(count)} is not a number of nodes to simulate", f"write 1 to {MOST_NODES}"
        )
    return count


# ---- simulation ----


def simulate(
    question: Question, progress: Progress | None = None, check: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Simulate the workload under each variant; every run has its differences to the first run.

    ``check`` is called at every moment of the simulated time; it may raise.
    """
    arrivals = question.workload.arrivals
    if not arrivals:
        if question.cluster_id is not None:
            _check_cluster(question.machine(question.variants[0].nodes), question.cluster_id)
        inside = f" of {question.cluster_id}" if question.cluster_id is not None else ""
        notes = "; ".join((f"there is no job{inside} in it", *question.workload.notes))
        raise BadSpec(
            f"no jobs to simulate from {question.workload.name}: {notes}", fix="choose another workload"
        )
    runs: list[dict[str, object]] = []
    base: Figures | None = None
    for variant in question.variants:
        ledger = question.machine(variant.nodes)
        if question.cluster_id is not None:
            _check_cluster(ledger, question.cluster_id)
        with_policy(ledger, dict(variant.changes), question.cluster_id)
        total = ledger.total(PRIMARY)
        weights = {c.cluster_id: c.queue.weight for c in ledger.clusters.values() if c.kind == LOGICAL}
        player = Player(ledger)
        report = _reporter(progress, variant.name, len(arrivals))
        played = player.play(arrivals, each=check, progress=report)
        judged = figures(played, _in_all(ledger, total), weights)
        base = base or judged
        runs.append(_document(variant, ledger, question.cluster_id, judged, base, played))
    return {
        "workload": question.workload.name,
        "jobs": len(arrivals),
        "notes": list(question.workload.notes),
        "items": runs,
    }


def _check_cluster(ledger: Ledger, cluster_id: str) -> None:
    if cluster_id not in ledger.clusters:
        raise NotFound(
            f"{param('cluster')}: The virtual cluster {cluster_id} does not exist.",
            fix="see `vctl list clusters`",
            details={"path": param("cluster")},
        )


def _reporter(progress: Progress | None, name: str, count: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(name, done, count)


def _in_all(ledger: Ledger, of_primary: Amounts) -> dict[str, int]:
    """The resources of all nodes, with the nodes that clusters own as a whole."""
    amounts = (node.total.amounts for node in ledger.nodes.values() if node.schedulable)
    return rs.total([dict.fromkeys(of_primary, 0), *amounts])


def _document(
    variant: Variant, ledger: Ledger, cluster_id: str | None, judged: Figures, base: Figures, played: Sequence[Played]
) -> dict[str, object]:  # fmt: skip
    counts = Counter(
        (job.reason, job.message) for job in played if job.start_ns is None and job.reason is not None
    )
    promised = [job for job in played if job.reserved_ns is not None and job.start_ns is not None]
    nodes = [node for node in ledger.nodes.values() if node.schedulable]
    return {
        "policy": variant.name,
        "queue": dict(queue_document(ledger.clusters[cluster_id or PRIMARY].queue)),
        "nodes": len(nodes),
        "resources": resources_document(_in_all(ledger, {})),
        "figures": judged.document(),
        "change": _change(judged.document(), base.document()),
        "reserved": len(promised),
        "started_after_reserved": sum(job.start_ns > job.reserved_ns for job in promised),  # type: ignore[operator]
        "never": [
            {"reason": reason, "message": message, "jobs": count}
            for (reason, message), count in counts.most_common()
        ],
    }


def _change(now: Mapping[str, object], before: Mapping[str, object]) -> dict[str, object]:
    """The difference of every figure to that of the first run."""
    changes: dict[str, object] = {}
    for name, figure in now.items():
        was = before[name]
        if isinstance(figure, Mapping) and isinstance(was, Mapping):
            changes[name] = _change(figure, was)
        elif isinstance(figure, (int, float)) and isinstance(was, (int, float)):
            changes[name] = figure - was
        elif not isinstance(figure, str):
            changes[name] = None
    return changes


# ---- writing a trace ----


def write_jsonl(workload: Workload, path: Path) -> None:
    """Write the jobs of a workload, whose nodes are equal within a job, as lines that ``--trace`` reads."""
    with path.open("w", encoding="utf-8") as file:
        for arrival in workload.arrivals:
            group = arrival.job.spec.groups[0]
            line: dict[str, object] = {
                "at": arrival.job.submitted_at_ns / SECOND, "run": arrival.runs_ns / SECOND, "nodes": len(group.nodes),
                "resources": resources_document(group.nodes[0].resources), "user": arrival.job.user,
                "name": arrival.job.submission_id,
            }  # fmt: skip
            if arrival.job.time_limit_ns is not None:
                line["limit"] = arrival.job.time_limit_ns / SECOND
            file.write(json.dumps(line) + "\n")
