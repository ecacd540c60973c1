"""The protocol ``Runtime`` between the scheduler and the processes, and its values.

A run is one attempt to run one process of a job; its id is chosen by the scheduler and never used again.
Nothing here starts a process or reads a file.
"""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from vctl.core.resources import Amounts
from vctl.core.values import Exit, value
from vctl.errors import Unreachable
from vctl.privileged.run_request import MAX_RUN_ID_BYTES
from vctl.runtime.environment import NOTHING_SHARED, SharedVariables

Limits = tuple[int, int, int]
"""Bytes of memory, processes, and hundredths of a CPU that the share of the CPU time is worth; 0: not limited."""
Confinement = tuple[int, int, tuple[tuple[str, Limits], ...]]
"""Processes and share of the CPU time of a run; the clusters that it is in, from the outermost on, and their limits."""
NodeDemand = tuple[Amounts, Mapping[str, str]]
"""The least resources of a wanted node, and its labels."""


class RuntimeUnavailable(Unreachable):
    """The runtime could not look or act. It never means that there are no runs."""


@value(frozen=True, slots=True)
class ReservedParts:
    """The parts of a run's virtual cluster to reserve on a cluster that others use, too.

    `name` is never used for another job or attempt. Each of the `parts` is a virtual node, its node and its
    amounts; `own` is the virtual node of the run.
    """

    name: str
    parts: tuple[tuple[str, str, Amounts], ...]
    own: str


@value(frozen=True, slots=True)
class LaunchRequest:
    """One process to start, without a shell, with exactly the environment `env`, VCTL_RUN_ID and VCTL_HOME.

    `env` consists of the run's `own` variables over those that all runs of its command share. `supervisor`
    is the number from `Runtime.assign`, which is in the tables: no other number starts the run. `grace_s` is
    the time between SIGTERM and SIGKILL for processes left behind when the main process ends by itself. A
    log keeps its latest `log_max_bytes` bytes (0: all). A tree of processes that uses more memory than
    `memory_bytes` (0: any) is killed; with a `confinement` the kernel enforces that, and more, where it can.
    The rest is for a runtime on several machines that others use, too: `node_id`, `reservation`, `ray`, the
    part of the run in a Ray of its job (vctl/ray/private/private_ray.py), and `shown`, the virtual nodes of
    that Ray. `uid` is the user whose process it is, None in personal mode.
    """

    run_id: str
    argv: tuple[str, ...]
    own: Mapping[str, str]
    cwd: str
    log_path: str
    supervisor: int = 0
    cpu_ids: tuple[int, ...] | None = None
    grace_s: float = 3.0
    log_max_bytes: int = 0
    memory_bytes: int = 0
    confinement: Confinement | None = None
    uid: int | None = None
    node_id: str = ""
    reservation: ReservedParts | None = None
    ray: str = ""
    shown: Mapping[str, Any] | None = None
    shared: SharedVariables = NOTHING_SHARED

    @property
    def env(self) -> dict[str, str]:
        """All variables of the process."""
        return {**self.shared.variables, **self.own}


@value(frozen=True, slots=True)
class StartRecord:
    """A run's main process and its supervisor, start times in ticks since boot; `started_at` is epoch ns."""

    pid: int
    pid_started: int
    supervisor: int
    supervisor_started: int
    boot_id: str
    started_at: int


@value(frozen=True, slots=True)
class ExitRecord(Exit):
    """How a run ended, and the resources that it used.

    `max_rss_kib` is that of the largest process, and never below the supervisor's own few MiB. CPU times are
    sums over all processes.
    """

    max_rss_kib: int
    user_us: int
    system_us: int


class RunState(StrEnum):
    """The states in which a run can be observed."""

    NEVER_STARTED = "never-started"  # no supervisor has taken it (yet); launching it (again) is safe
    STARTING = "starting"  # a supervisor has taken it, and has not started its process yet
    RUNNING = "running"
    EXITED = "exited"
    REFUSED = "refused"  # others hold what was to be reserved for it: it has not started and never will
    LOST = "lost"  # its supervisor was killed, or the machine restarted: its end is unknown


@value(frozen=True, slots=True)
class Seen:
    """A run as observed: `exit` is there exactly when EXITED, `start` whenever its process was started.

    `problem`: why nothing is known of a run that is LOST, where the reason is known, or who holds what it lacks.
    """

    state: RunState
    start: StartRecord | None = None
    exit: ExitRecord | None = None
    problem: str = ""


class Runtime(Protocol):
    """A way to run processes. Every call may be repeated; none waits for a process.

    A run is assigned in the transaction that decides it, launched after the commit, and observed until it is
    over and its end is in the tables; then it is forgotten. If the scheduler dies at any point, the next one
    continues from the tables.
    """

    boot: str
    """The id of the machine's boot: a run of another boot is lost."""

    def prepare(self) -> None:
        """Prepare for the first launch, without waiting."""

    def fileno(self) -> int:
        """A descriptor that is readable when something has changed."""

    def changes(self) -> set[str]:
        """Runs that have started or ended since the last call; also acts on processes that do not answer."""

    def due_s(self) -> float:
        """Seconds until ``changes`` has to be called at the latest."""

    def assign(self) -> int:
        """The number of the supervisor for one more run."""

    def launch(self, request: LaunchRequest) -> None:
        """Start a run. It runs once, however often and from wherever it is launched with its number."""

    def launch_next(self, request: LaunchRequest, follows: str) -> bool:
        """Start a run as soon as another one of the same number is over, if its offer was not withdrawn.

        False if no supervisor got the request; always False for a runtime that assigns nothing ahead.
        """
        return False

    def show(self, run_id: str, shown: Mapping[str, Any], reservation: ReservedParts) -> None:
        """Pass on the present virtual nodes of a job with a Ray of its own, and their reservation.

        On one machine the keeper of that Ray reads them itself, and answers requests to use less itself.
        """
        return

    def given_up(self, run_id: str) -> str:
        """The id of the last request to use less that the Ray of a job has carried out; empty if none."""
        return ""

    def was_declined(self, run_id: str) -> bool:
        """Whether a run that was to follow another one was not taken, and never will be."""
        return False

    def let_next_go(self, run_id: str) -> None:
        """Drop a run that was to follow another one and was taken back or declined."""
        return

    def observe(self, run_id: str) -> Seen:
        """The present state of a run."""

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        """Signal the whole tree, and kill the rest after the grace. A run that has not started never will."""

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        """Send a signal to the main process, or to all of them; False if there is none."""

    def known_runs(self) -> list[str]:
        """Runs that may have processes, whether or not the tables have them."""

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        """Kill the remaining processes of a LOST run; returns the pids that are still there."""

    def forget(self, run_id: str) -> None:
        """Remove all records of a run that is over, except its log."""

    def drop_ended(self) -> None:
        """Forget the ends of runs, because the tables are not those that the runs belong to."""

    def settle(self, live: Mapping[str, int]) -> None:
        """Remove records that belong to no live run. ``live``: run -> its number."""

    def restore(self) -> None:
        """Make removed directories again."""

    def request_nodes(self, nodes: Sequence[NodeDemand]) -> None:
        """Ask a cluster that can grow for these nodes in addition; they replace those wanted before."""
        return

    def close(self) -> None:
        """Close the runtime; runs continue."""


_NOT_PLAIN = frozenset("/\0\n ")


def check_run_id(run_id: str) -> None:
    """Assert that an id can be a file name and a word of a line; the scheduler makes ids."""
    plain = _NOT_PLAIN.isdisjoint(run_id) and not run_id.startswith(".")
    assert plain, f"not a run id: {run_id!r}"
    assert 0 < len(os.fsencode(run_id)) <= MAX_RUN_ID_BYTES, f"not a run id: {run_id!r}"
