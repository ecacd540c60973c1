"""Which job and which cluster this process, thread or coroutine is in: its environment, and ``with`` blocks inside it.

In Python a context variable tells; child processes read the environment, which follows the block entered last.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from vctl.core.clusters import PRIMARY

CLUSTER_VARIABLES = ("VCTL_CLUSTER_ID", "VIRTUAL_CLUSTER_ID", "VCTL_CLUSTER_PATH")
JOB_VARIABLE = "VCTL_SUBMISSION_ID"

_NOTHING: Mapping[str, str] = {}
_innermost: ContextVar[Block | None] = ContextVar("vctl_block", default=None)
_lock = threading.Lock()
_blocks: list[Block] = []
_outside: dict[str, str | None] = {}


@dataclass(frozen=True, eq=False)
class Block:
    """A sub-cluster that was entered."""

    cluster_id: str
    path: str
    outer: Block | None
    of_job: Mapping[str, str]
    """What else a job says, where the block is the cluster of one."""

    def variables(self) -> dict[str, str]:
        """What a child process must see."""
        own = dict(zip(CLUSTER_VARIABLES, (self.cluster_id, self.cluster_id, self.path), strict=True))
        return {**self.of_job, **own}


def cluster_id() -> str:
    """The innermost cluster; the primary outside of any job."""
    block = _innermost.get()
    return block.cluster_id if block is not None else os.environ.get("VCTL_CLUSTER_ID") or PRIMARY


def environment() -> dict[str, str]:
    """The environment of a task that is started here."""
    block = _innermost.get()
    return {**os.environ, **({} if block is None else block.variables())}


def submission_id() -> str | None:
    """The job this process belongs to."""
    return os.environ.get(JOB_VARIABLE) or None


def enter(cluster: str, of_job: Mapping[str, str] = _NOTHING) -> Block:
    """Be in a cluster from now on; ``of_job``: the variables of the job whose cluster it is."""
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
    """Be where one was before. Other threads may be in blocks of their own."""
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
