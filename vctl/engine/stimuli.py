"""What a scheduler observes and tells to the rules: processes that were seen to run, and processes that are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from vctl.core import jobs as jb
from vctl.core.jobs import Preemption, Run
from vctl.core.values import Exit, value
from vctl.engine.changes import Process

Left = Mapping[str, int] | str
"""Bytes of each output of a task, or why one of them is none."""


@value(frozen=True, slots=True)
class ProcessSeen:
    """The process of a run was seen to run."""

    run_id: str
    process: Process


@value(frozen=True, slots=True)
class ProcessOver:
    """A run is over. ``exit`` is None when nobody knows how: it was lost."""

    run: Run
    exit: Exit | None
    lost_message: str = ""
    lost_reason: str = jb.PROCESS_LOST
    process: Process | None = None
    left: Left = field(default_factory=dict)
    """What a task left under the names of its outputs."""


@value(frozen=True, slots=True)
class JobWarned:
    """The process of a job got the signal that warns of its end at ``ends_ns``, by the clock of the boot."""

    run_id: str
    ends_ns: int


@value(frozen=True, slots=True)
class JobTold:
    """A job was told that it ends for another. ``heard``: a process of it got its signal."""

    preemption: Preemption
    heard: bool


Stimulus = ProcessSeen | ProcessOver | JobWarned | JobTold
