"""The job and the cluster of this process, thread or coroutine: from the environment and from ``with`` blocks.

A context variable has the innermost block; the environment, for child processes, has the block that was entered last.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextvars import ContextVar

from vctl.core.clusters import PRIMARY

CLUSTER_VARIABLES = ("VCTL_CLUSTER_ID", "VIRTUAL_CLUSTER_ID", "VCTL_CLUSTER_PATH")
JOB_VARIABLE = "VCTL_SUBMISSION_ID"

_NOTHING: Mapping[str, str] = {}
_innermost: ContextVar[Block | None] = ContextVar("vctl_block", default=None)
_lock = threading.Lock()
_blocks: list[Block] = []
_outside: dict[str, str | None] = {}


class Block:
    """A cluster that was entered by a ``with`` block: a sub-cluster, or the cluster of an allocation."""

    def __init__(self, cluster_id: str, path: str, outer: Block | None, of_job: Mapping[str, str]) -> None:
        self.cluster_id = cluster_id
        self.path = path
        self.outer = outer
        self.of_job = of_job
        """The variables of the job whose cluster this is; empty for a sub-cluster."""

    def variables(self) -> dict[str, str]:
        """The variables for a child process in the block."""
        own = dict(zip(CLUSTER_VARIABLES, (self.cluster_id, self.cluster_id, self.path), strict=True))
        return {**self.of_job, **own}


def cluster_id() -> str:
    """The innermost cluster; the primary outside of jobs."""
    block = _innermost.get()
    return block.cluster_id if block is not None else os.environ.get("VCTL_CLUSTER_ID") or PRIMARY


def environment() -> dict[str, str]:
    """The environment for a task that this process starts."""
    block = _innermost.get()
    return {**os.environ, **({} if block is None else block.variables())}


def submission_id() -> str | None:
    """The submission id of the job of this process; None outside of jobs."""
    return os.environ.get(JOB_VARIABLE) or None


def enter(cluster: str, of_job: Mapping[str, str] = _NOTHING) -> Block:
    """Enter a cluster; ``of_job`` are the variables of the job whose cluster it is."""
    outer = _innermost.get()
    above = os.environ.get("VCTL_CLUSTER_PATH") or cluster_id() if outer is None else outer.path
    block = Block(cluster, of_job.get("VCTL_CLUSTER_PATH") or f"{above}/{cluster}", outer, of_job)
    _innermost.set(block)
    with _lock:
        if not _blocks:
            _outside.update({name: os.environ.get(name) for name in block.variables()})
        _blocks.append(block)
        os.environ.update(block.variables())
    return block


def leave(block: Block) -> None:
    """Leave a block. If other threads are still in blocks, the environment describes the last of these."""
    _innermost.set(block.outer)
    with _lock:
        _blocks.remove(block)
        if _blocks:
            os.environ.update(_blocks[-1].variables())
            return
        for name, value in _outside.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _outside.clear()
