"""The command that submits a job or task again with a changed request."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.resources import CPU, GPU, MEMORY, SCALE, Amounts
from vctl.core.tasks import HYBRID, PendingTask
from vctl.ops.submitting import DEFAULT_GRACE_S
from vctl.spec.text import shown
from vctl.store.rows import dumps, loads
from vctl.store.store import Row

OPTION_OF = {CPU: "num-cpus", GPU: "num-gpus", MEMORY: "memory"}


def resubmit(row: Row, launch: Row, job: PendingJob) -> str:
    """``vctl job submit …`` for the job of ``row`` with the request of ``job``; it stops the old job first.

    The environment is that of the caller, as at every submit.
    """
    words = ["vctl", "job", "submit"]
    if job.parent_id != PRIMARY:
        words += ["--cluster", job.parent_id]
    words += _spec_words(job)
    words += _entry_words(job)
    if job.priority:
        words += ["--priority", str(job.priority)]
    if row["time_limit_s"] is not None:
        words += ["--time-limit", _seconds(row["time_limit_s"])]
    if row["grace_s"] != DEFAULT_GRACE_S:
        words += ["--grace", _seconds(row["grace_s"])]
    words += _rule_words(loads(row["rules"]))
    options = loads(launch["options"])
    words += ["--per-node"] if row["per_node"] else []
    words += ["--label"] if options.get("relay", [""])[0] == "label" else []
    words += {"plain": ["--ray"], "dashboard": ["--ray-dashboard"]}.get(options.get("private_ray"), [])
    if row["name"]:
        words += ["--name", row["name"]]
    for key, value in loads(row["metadata"]).items():
        words += ["--metadata", f"{key}={value}"]
    words += ["--working-dir", os.fsdecode(launch["cwd"]), "--no-wait", "--", *loads(launch["argv"])]
    return f"vctl job stop {shlex.quote(row['submission_id'])} && {shown(shlex.join(words))}"


def run_again(row: Row, launch: Row, task: PendingTask) -> str:
    """``vctl task run …`` for the task of ``row`` with the request of ``task``; it cancels the old task first."""
    words = ["vctl", "task", "run", "--job", str(row["job_id"])]
    request = {CPU: 0, **task.request}
    words += ["--num-cpus", exact(CPU, request.pop(CPU)), *_sizes("--", request)]
    others = {name: amount for name, amount in request.items() if amount and name not in OPTION_OF}
    words += ["--resources", document(others)] if others else []
    if task.selector:
        words += ["--label-selector", dumps({one.key: str(one) for one in task.selector})]
    if task.strategy != HYBRID:
        words += ["--strategy", task.strategy]
    if row["name"]:
        words += ["--name", row["name"]]
    for option in ("inputs", "outputs"):
        for name in loads(row[option]):
            words += [f"--{option[:-1]}", name]
    if row["max_retries"]:
        words += ["--max-retries", str(row["max_retries"])]
    words += ["--detach"] if row["detached"] else []
    words += ["--no-wait", "--", *loads(launch["argv"])]
    return f"vctl task cancel {shlex.quote(row['task_id'])} && {shown(shlex.join(words))}"


def _rule_words(rules: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    if (signal := rules.get("signal")) is not None:
        words += ["--signal", f"{signal['name']}@{_seconds(signal['before_s'])}"]
    if rules.get("max_retries"):
        words += ["--max-retries", str(rules["max_retries"]), "--retry-on", ",".join(rules["retry_on"])]
        words += ["--backoff", _seconds(rules["backoff_s"])]
    return words


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "s"


def _spec_words(job: PendingJob) -> list[str]:
    from vctl.spec.cluster_spec import spec_to_document

    if job.shares_parent or job.spec == ClusterSpec():
        return []
    short = _short(job.spec)
    if short is not None:
        return short
    return ["--virtual-cluster", dumps(spec_to_document(job.spec))]


def _short(spec: ClusterSpec) -> list[str] | None:
    """``--num-cpus …`` for one group of equal nodes with only CPUs, GPUs and memory; None for any other spec."""
    if spec.flexible or spec.replica_sets or len(spec.groups) != 1:
        return None
    group = spec.groups[0]
    node, count = group.nodes[0], len(group.nodes)
    policy = "STRICT_SPREAD" if count > 1 else group.policy
    if any(other != node for other in group.nodes) or group.policy != policy:
        return None
    if node.labels or node.selector or not set(node.resources) <= set(OPTION_OF):
        return None
    return [*_sizes("--", node.resources), *(["--nodes", str(count)] if count > 1 else [])]


def _sizes(prefix: str, resources: Amounts) -> list[str]:
    words: list[str] = []
    for name, amount in resources.items():
        if amount and name in OPTION_OF:
            words += [prefix + OPTION_OF[name], exact(name, amount)]
    return words


def _entry_words(job: PendingJob) -> list[str]:
    entry = {name: amount for name, amount in job.entry.items() if amount}
    usual: Mapping[str, int] = {} if job.spec.has_gang else {CPU: SCALE}
    if entry == usual:
        return []
    if not entry:
        return ["--entrypoint-num-cpus", "0"]
    words = _sizes("--entrypoint-", entry)
    others = {name: amount for name, amount in entry.items() if name not in OPTION_OF}
    return words + (["--entrypoint-resources", document(others)] if others else [])


def exact(name: str, amount: int) -> str:
    """An amount as the command line reads it back unchanged."""
    if name == MEMORY:
        size = amount // SCALE
        for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
            if size % factor == 0:
                return f"{size // factor}{unit}"
        return str(size)
    return f"{amount // SCALE}" if amount % SCALE == 0 else f"{amount / SCALE:.4f}".rstrip("0")


def document(amounts: Amounts) -> str:
    """A resource map as JSON that the command line reads back unchanged."""
    from vctl.spec.quantities import resources_document

    return dumps(resources_document(amounts))


def command(words: Iterable[str]) -> str:
    """Words as one line for the shell."""
    return shlex.join(["vctl", *words])
