"""Reads workloads from JSON lines: one job per line, in any order.

Required fields: ``at`` (the submit time: seconds, or an ISO 8601 timestamp) and ``run`` (the run time, a
duration). Optional fields, with defaults: ``nodes`` (1), the ``resources`` of each node ({"CPU": 1}),
``policy`` (PACK), ``limit`` (the time limit; none), ``priority`` (0), ``user`` (empty), ``cluster`` (the
primary) and ``name`` (``job-`` and the line number).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal

from vctl.core.clusters import POLICIES
from vctl.core.jobs import PendingJob
from vctl.core.resources import CPU, SCALE
from vctl.errors import BadSpec
from vctl.simulate.workload import SECOND, Arrival, Workload, in_order, rigid, shape_name
from vctl.spec.fields import as_count, as_mapping, as_text, child, did_you_mean, refuse, show
from vctl.spec.ids import resolve_cluster_id
from vctl.spec.quantities import parse_duration, parse_resources
from vctl.spec.source import unique_keys
from vctl.spec.trace_size import Size

KNOWN = ("at", "run", "nodes", "resources", "policy", "limit", "priority", "user", "cluster", "name")
MAX_PRIORITY = 2**31 - 1


def read_jsonl(lines: Iterable[str], name: str, size: Size | None = None) -> Workload:
    """Read jobs; the error about a bad line names the file, the line, the field and the fix."""
    size = size or Size()
    arrivals = [
        _arrival(_parsed(line, f"{name}:{number}"), f"{name}:{number}", number, size)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    return Workload(name, in_order(arrivals))


def _parsed(line: str, where: str) -> Mapping[str, object]:
    try:
        document = json.loads(line, parse_float=Decimal, object_pairs_hook=unique_keys)
    except BadSpec as error:
        raise refuse(where, error.problem, error.fix) from None
    except (ValueError, RecursionError) as error:
        deep = (
            "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        )
        reason = error.msg if isinstance(error, json.JSONDecodeError) else deep
        raise refuse(where, f"this is not JSON: {reason}", 'one job a line: {"at": 0, "run": 60}') from None
    job = as_mapping(document, where, "a job", '{"at": 0, "run": 60}')
    for key in job:
        if key not in KNOWN:
            raise refuse(
                f"{where}: {child('', key)}", "there is no such field of a job", did_you_mean(key, KNOWN)
            )
    for key in ("at", "run"):
        if key not in job:
            raise refuse(f"{where}: {key}", "it is missing", 'a job needs at least {"at": 0, "run": 60}')
    return job


def _arrival(job: Mapping[str, object], where: str, number: int, size: Size) -> Arrival:
    def at(field: str) -> str:
        return f"{where}: {field}"

    size.add_job(where)
    pieces = as_count(job.get("nodes", 1), at("nodes"), "a number of nodes", maximum=size.max_nodes)
    if not pieces:
        raise refuse(at("nodes"), "0 nodes run nothing", "write 1 or more")
    each = parse_resources(job["resources"], at("resources")) if "resources" in job else {CPU: SCALE}
    policy = as_text(job.get("policy", POLICIES[0]), at("policy"), "a policy")
    if policy not in POLICIES:
        raise refuse(at("policy"), f"{show(policy)} is not a policy", did_you_mean(policy, POLICIES))
    priority = job.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise refuse(
            at("priority"), f"a whole number is expected, not {show(priority)}", "write a number such as 10"
        )
    limit, shape = job.get("limit"), shape_name(pieces, each, policy)
    size.add_shape(shape, pieces, at("nodes"))
    pending = PendingJob(
        number, as_text(job.get("name", f"job-{number}"), at("name"), "a name"),
        resolve_cluster_id(as_text(job.get("cluster", "primary"), at("cluster"), "a cluster"), at("cluster")),
        shape, rigid(pieces, each, policy), {}, priority,
        user=as_text(job.get("user", ""), at("user"), "a user"),
        submitted_at_ns=_moment(job["at"], at("at")),
        time_limit_ns=None if limit is None else int(parse_duration(limit, at("limit"), positive=True) * SECOND),
    )  # fmt: skip
    return Arrival(pending, int(parse_duration(job["run"], at("run"), positive=True) * SECOND))


def _moment(value: object, path: str) -> int:
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            raise refuse(
                path, f"{show(value)} is not a time", "write seconds, or 2026-01-31T12:00:00Z"
            ) from None
        moment = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        if moment.year < 1970:
            raise refuse(path, f"{show(value)} is before 1970", "write seconds, or a later time")
        return int(moment.timestamp() * SECOND)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or not 0 <= value < 2**33:
        raise refuse(path, f"{show(value)} is not a time", "write seconds from 0 on, or 2026-01-31T12:00:00Z")
    return int(value * SECOND)
