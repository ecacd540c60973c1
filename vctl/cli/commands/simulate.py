"""``vctl simulate``: recorded, given or modelled work under another policy or on another machine."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vctl import cli, operations, ops, spec
from vctl.cli.call import Call
from vctl.cli.common import COLOR, HOME, NO_HEADER, OUTPUT
from vctl.cli.declare import command
from vctl.cli.output import API_VERSION, Answer
from vctl.core.clusters import PRIMARY
from vctl.core.text import visible
from vctl.errors import BadSpec
from vctl.spec.params import Opt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vctl.simulate.workload import Workload

MODELS = ("lublin",)


@command(
    "simulate",
    "vctl simulate --policy fifo/strict --policy fair/backfill",
    "vctl simulate --trace KTH-SP2.swf.gz --policy priority/backfill,backfill_depth=4",
    "vctl simulate --since 7d --nodes 12",
    "vctl simulate --model lublin --jobs 2000 --nodes 256 --limit-factor 2 --policy fifo/strict",
    common=(OUTPUT, NO_HEADER, COLOR, HOME),
    lasts=True,
)
def simulate(
    call: Call,
    trace: Annotated[
        str | None,
        Opt("--trace", metavar="FILE", complete="file", help="A trace: SWF or JSON lines, also gzipped."),
    ] = None,
    model: Annotated[
        str | None, Opt("--model", choices=MODELS, help="Simulate a workload of a published model.")
    ] = None,
    since: Annotated[
        str | None,
        Opt("--since", metavar="TIME", help="Recorded history: only jobs submitted since then, 7d or a date."),
    ] = None,
    until: Annotated[
        str | None, Opt("--until", metavar="TIME", help="Recorded history: only jobs submitted before then.")
    ] = None,
    cluster: Annotated[
        str | None,
        Opt("-c", "--cluster", complete="clusters", help="Only this cluster's jobs, and only its policy changes."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        Opt(
            "-p", "--policy", metavar="POLICY",
            help="Compare this policy, such as fair/backfill or fifo/strict, with the current one; repeatable.",
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None, Opt("--nodes", metavar="N", help="A number of nodes to try; repeatable.")
    ] = None,
    template: Annotated[
        str | None, Opt("--template", metavar="ID", help="Recorded: template of added or removed nodes (most common).")
    ] = None,
    node_resources: Annotated[
        str | None, Opt("--node-resources", metavar="JSON", help="Trace: resources of each node.")
    ] = None,
    limit_factor: Annotated[
        float | None,
        Opt("--limit-factor", metavar="F", help="Jobs without a time limit get F times their run time as limit."),
    ] = None,
    jobs: Annotated[int | None, Opt("--jobs", help="Model: how many jobs (1000).")] = None,
    seed: Annotated[int | None, Opt("--seed", help="Model: the same seed makes the same jobs (1).")] = None,
    load: Annotated[
        float | None, Opt("--load", help="Model: work per capacity until the last arrival (0.9).")
    ] = None,
    write: Annotated[
        str | None,
        Opt("--write", metavar="FILE", complete="file", help="Model: only write the jobs as JSON lines."),
    ] = None,
) -> Answer:  # fmt: skip
    """Simulate a workload under other policies or machines, and compare them.

    The scheduler itself runs, under a virtual clock. Without --trace or --model the recorded history of this state
    directory is simulated on its own cluster; inside a job that shares a cluster, the jobs of that cluster. Reports
    waiting time, bounded slowdown (threshold 10 s), utilisation, fairness and makespan of each policy, and the
    difference to the current one. Changes nothing. Queue settings may follow the policy: backfill_depth, ageing_s,
    half_life_s, starvation_after_s, max_running_jobs, …
    """
    _check_sources(
        trace,
        model,
        {"--since": since, "--until": until, "--template": template},
        {"--node-resources": node_resources},
        {"--jobs": jobs, "--seed": seed, "--load": load, "--write": write},
    )
    if write is not None and policy:
        raise BadSpec("--policy: with --write nothing is simulated", fix="leave one of them out")
    each = _resources(call, node_resources)
    of_model = {
        name: value for name, value in (("jobs", jobs), ("seed", seed), ("load", load)) if value is not None
    }
    request = ops.simulated.SimulationRequest(
        trace=None
        if trace is None
        else ops.simulate.read_trace(trace, per_node=ops.simulated.processors_of(each)),
        model=None if model is None else ops.simulated.Model(**of_model),  # type: ignore[arg-type]  # as declared above
        since=None if since is None else spec.options.parse_since(since, time.time(), "--since"),
        until=None if until is None else spec.options.parse_since(until, time.time(), "--until"),
        cluster=_scope(call, cluster, recorded=trace is None and model is None),
        policies=tuple(policy or ()),
        nodes=tuple(_number(text) for text in nodes or ()),
        template=template,
        node_resources=each,
        limit_factor=limit_factor,
    )
    if write is not None:
        return _written(ops.simulated.made(request), write)
    if call.config.get("address"):
        return _answer(operations.simulation.run(call.backend, request, _progress(call)))
    return _answer(ops.simulated.at(call.home, request, _progress(call)))


def _check_sources(
    trace: str | None, model: str | None,
    recorded: "Mapping[str, object]", traced: "Mapping[str, object]", modelled: "Mapping[str, object]",
) -> None:  # fmt: skip
    """Refuse options that do not apply to the source of the jobs, as they would have no effect."""
    if trace is not None and model is not None:
        raise BadSpec("--trace and --model exclude each other", fix="give one of them")
    for options, given, what, fix in (
        (recorded, trace is None and model is None, "recorded jobs", "leave it out, or --trace and --model"),
        (traced, trace is not None, "a trace", "leave it out, or add --trace FILE"),
        (modelled, model is not None, "jobs made by a model", f"leave it out, or add --model {MODELS[0]}"),
    ):
        for name, value in () if given else options.items():
            if value is not None:
                raise BadSpec(f"{name}: it applies to {what} only", fix=fix)


def _scope(call: Call, given: str | None, *, recorded: bool) -> str | None:
    """The cluster whose jobs are simulated; None: all. The default for recorded jobs is the own cluster."""
    if given is None and (not recorded or call.cluster(None) == PRIMARY):
        return None
    return call.cluster(given)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise BadSpec(f"--nodes: {text} is not a number of nodes", fix="write --nodes 256")
    return int(text)


def _resources(call: Call, given: str | None) -> dict[str, int] | None:
    if given is None:
        return None
    document = spec.source.read_document(given, "what a node has", "--node-resources")
    return spec.quantities.parse_resources(
        document, "--node-resources", call.config.get("unit_resources"), totals=True
    )


def _progress(call: Call) -> "Callable[[str, int, int], None] | None":
    if not (call.for_people and cli.screen.replaces_text(sys.stderr)):
        return None

    def progress(name: str, done: int, count: int) -> None:
        sys.stderr.write(f"\r\x1b[K{visible(name)}: {done} of {count} jobs")
        if done + 250 > count:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    return progress


def _written(workload: "Workload", name: str) -> Answer:
    path = Path(name).expanduser()
    try:
        ops.simulate.write_jsonl(workload, path)
    except OSError as error:
        raise BadSpec(
            f"--write: cannot write {name}: {error.strerror}", fix="name a file that you can write"
        ) from None
    count = len(workload.arrivals)
    return cli.output.done({"file": str(path), "jobs": count}, path, f"{count} jobs written to {path}")


def _answer(data: dict[str, object]) -> Answer:
    runs = data["items"]
    assert isinstance(runs, list)
    envelope = {"api_version": API_VERSION, "kind": "SimulationRunList", **data, "total": len(runs)}
    return Answer(
        envelope,
        rows=runs,
        names=[run["policy"] for run in runs],
        draw=lambda screen: cli.simulate_view.draw(screen, data),
    )
