"""The protocol ``Runtime`` between the scheduler and the processes, and its values.

A run is one attempt to run one process of a job; its id is chosen by the scheduler and never used again.
Nothing here starts a process or reads a file.
"""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from vctl.core.resources import Amounts
from vctl.core.values import Exit, value
from vctl.errors import Unreachable
from vctl.runtime.environment import NOTHING_SHARED, Shared

MAX_RUN_ID_BYTES = 200
"""A file name has 255, and a suffix is added."""


WantedNode = tuple[Amounts, Mapping[str, str]]
"""The least resources of a node that is wanted, and its labels."""


class RuntimeUnavailable(Unreachable):
    """The runtime could not look or act. It never means that nothing is there."""


@value(frozen=True, slots=True)
class Reservation:
    """The parts of the virtual cluster of a run that must be kept for it where others start work, too.

    `name` is never used for another job or attempt. Each of the `parts` is a virtual node, its node and its amounts;
    `own` is the virtual node of the run.
    """

    name: str
    parts: tuple[tuple[str, str, Amounts], ...]
    own: str


@value(frozen=True, slots=True)
class LaunchRequest:
    """One process to start: never through a shell, with exactly the environment `env` (and VCTL_RUN_ID, VCTL_HOME).

    `env` consists of the run's `own` variables over those that all runs of its command share.
    `supervisor` is the number that `Runtime.assign` gave and that the tables keep: nobody else starts the run.
    `grace_s` is the time between SIGTERM and SIGKILL for processes left behind when the main process ends by
    itself. Of a log that exceeds `log_max_bytes` (0: never) only the latest bytes are kept. A tree of processes that
    uses more memory than `memory_bytes` (0: any) is killed. `node_id` and `reservation` are for a runtime of several
    machines that others use, too; so are `ray`, the part of the run in a Ray of its job (vctl/runtime/private_ray.py),
    and `shown`, the virtual nodes of that Ray.
    """

    run_id: str
    argv: tuple[str, ...]
    own: Mapping[str, str]
    cwd: str
    log_path: str
    supervisor: int = 0
    cpu_ids: tuple[int, ...] | None = None
    grace_s: float = 3.0
    niceness: int = 0
    log_max_bytes: int = 0
    memory_bytes: int = 0
    node_id: str = ""
    reservation: Reservation | None = None
    ray: str = ""
    shown: Mapping[str, Any] | None = None
    shared: Shared = NOTHING_SHARED

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
    """How a run ended, and what it used.

    `max_rss_kib` is that of the largest process and never below the supervisor's own few MiB; CPU times are those of
    all of them.
    """

    max_rss_kib: int
    user_us: int
    system_us: int


class RunState(StrEnum):
    """The states in which a run can be observed."""

    NEVER_STARTED = "never-started"  # no supervisor has taken it up (yet); launching it (again) is safe
    STARTING = "starting"  # supervised, its process not started yet
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"  # its supervisor was killed, or the machine restarted: how it ended is not known


@value(frozen=True, slots=True)
class Seen:
    """A run as observed: `exit` is there exactly when EXITED, `start` whenever its process was started.

    `problem`: why nothing is known of a run that is LOST, where the reason is known.
    """

    state: RunState
    start: StartRecord | None = None
    exit: ExitRecord | None = None
    problem: str = ""


class Runtime(Protocol):
    """A way to run processes. Every call may be repeated; none waits for a process.

    A run is assigned in the transaction that decides it, launched after the commit, and observed until it is over and
    that is in the tables; then it is forgotten. Whatever dies in between, the next scheduler goes on from the tables.
    """

    boot: str
    """Names the time within which what was started here lives: a run of another one is lost."""

    def prepare(self) -> None:
        """Make ready for the first launch, without waiting for it."""

    def fileno(self) -> int:
        """A descriptor that is readable when something has changed."""

    def changes(self) -> set[str]:
        """Runs that have started or ended since the last call; also looks after whatever does not answer."""

    def due_s(self) -> float:
        """When to ask for changes at the latest."""

    def assign(self) -> int:
        """The number of the supervisor for one more run."""

    def launch(self, request: LaunchRequest) -> None:
        """Start a run. Asked twice for the same run and number, in any way and from anywhere, it runs once."""

    def launch_next(self, request: LaunchRequest, follows: str) -> bool:
        """Start a run in the moment in which another one of the same number is over, if its offer stands then.

        False when nobody has got the request: always, where nothing is assigned ahead.
        """
        return False

    def show(self, run_id: str, shown: Mapping[str, Any], reservation: Reservation) -> None:
        """The virtual nodes of a job that has a Ray, and what is to be kept for it, as they are now.

        On one machine the keeper of that Ray reads them itself, and answers itself that it has left some.
        """
        return

    def given_up(self, run_id: str) -> str:
        """The last request to leave virtual nodes that the Ray of a job has carried out; empty: none."""
        return ""

    def was_declined(self, run_id: str) -> bool:
        """Whether a run that was to follow another one was not taken, and will not be."""
        return False

    def let_next_go(self, run_id: str) -> None:
        """A run was taken back that was to follow another one, and it was declined."""
        return

    def observe(self, run_id: str) -> Seen:
        """Look at a run."""

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        """Signal the whole tree, kill what is left after the grace. Before the start: it never starts."""

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        """Send a signal to the main process or to all of them; False when there is none to get it."""

    def adopt(self, run_id: str) -> bool:
        """Take over a run that was assigned to no number, by a version that had none; False when it was started."""
        return True

    def known_runs(self) -> list[str]:
        """Runs that may have processes, whether the tables know them or not."""

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        """Kill what a LOST run left behind; return the pids still there, empty when nothing is left."""

    def forget(self, run_id: str) -> None:
        """Remove what is kept of a run that is over, its log excepted."""

    def drop_ended(self) -> None:
        """Forget how runs have ended: the tables are not those for which they did."""

    def settle(self, live: Mapping[str, int | None]) -> None:
        """Remove what is kept for no live run; the live ones, with their numbers."""

    def restore(self) -> None:
        """Make again what somebody removed."""

    def want_nodes(self, wanted: Sequence[WantedNode]) -> None:
        """These nodes, and no others, are wanted in addition, where the machine is a cluster that can grow."""
        return

    def close(self) -> None:
        """Let go of the runtime; runs go on."""


def runtime_of(home: Path, ray: str | None = None) -> Runtime:
    """The runtime of a state directory: the one place that chooses it. ``ray``: address of a Ray cluster."""
    if ray:
        from vctl.runtime.on_ray.runtime import RayRuntime

        return RayRuntime(home, ray)
    from vctl.runtime.local import LocalRuntime

    return LocalRuntime(home)


_NOT_PLAIN = frozenset("/\0\n ")


def check_run_id(run_id: str) -> None:
    """Refuse an id that cannot be a file name and a word; ids are the scheduler's, so this is a broken invariant."""
    plain = _NOT_PLAIN.isdisjoint(run_id) and not run_id.startswith(".")
    assert plain, f"not a run id: {run_id!r}"
    assert 0 < len(os.fsencode(run_id)) <= MAX_RUN_ID_BYTES, f"not a run id: {run_id!r}"
