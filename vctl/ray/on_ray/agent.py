"""The agent of a state directory on a node of a Ray cluster: an actor over a local runtime of that node.

The local runtime works as on one machine: supervisors start processes in sessions of their own, record how
they end, and outlive the process that asked for them. So the agent may be killed at any time, and the next
one continues from the files of the node. Each state directory has a folder on the node for each life of a
raylet:

    records/ stops/ logs/     as in a state directory; the log of a run is logs/<run>
    rays/                     the files of the keepers of Rays (keepers.py)
    claims/<run>              the number of the supervisor that got the run; the run is never given to another
    guard                     locked by the guard (guard.py), which ends all runs here when the raylet ends

The agent answers requests and keeps no state outside the files. A scheduler gets news of its runs by `poll`,
a request that contains what the scheduler knows already; so the agent repeats an answer that was lost.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from vctl.ray.on_ray import guard
from vctl.ray.on_ray.keepers import Keepers
from vctl.ray.on_ray.wire import FORMAT, MAX_CHUNK_BYTES, Packed, packed_seen, request_of
from vctl.runtime import processes
from vctl.runtime.local import LocalRuntime
from vctl.runtime.processes import HOME_MARK
from vctl.runtime.protocol import RunState, Seen
from vctl.runtime.watch import MODIFY, MOVED_TO, Watch

Known = Mapping[str, tuple[Packed | None, int, str]]
"""Run -> its last observed state, the bytes of its log that were received, and its keeper's last message."""
IDLE_S = 120.0
"""An agent without runs ends when no request has come for this long, in seconds."""
LOST_S = 1.0
"""How long a lost run stays unreported, in seconds: where a whole node ends, its raylet ends soon, too."""
_POLL_S = 5.0
_ANSWER_S = 1.0


def folder_of(state: str, node_id: str) -> Path:
    """Make the folder of a state directory on this node, with access only for its owner."""
    whole = Path(tempfile.gettempdir()) / f"vctl-on-ray-{os.getuid()}"
    whole.mkdir(mode=0o700, exist_ok=True)
    status = whole.lstat()
    if status.st_uid != os.getuid() or not whole.is_dir() or whole.is_symlink():
        raise PermissionError(f"{whole} belongs to another user")
    folder = whole / f"{state}-{node_id[:16]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class Agent:
    """The runs of one state directory on one node."""

    def __init__(self, state: str, node_id: str, home: str) -> None:
        self.folder = folder_of(state, node_id)
        self.claims = self.folder / "claims"
        self.claims.mkdir(mode=0o700, exist_ok=True)
        self.raylet = os.getppid()
        _be_as(self.raylet)
        guard.start(self.folder, self.raylet, processes.start_time(self.raylet) or 0, home)
        self.local = LocalRuntime(self.folder, mark=(HOME_MARK, str(home)))
        self.local.prepare()
        self.watch = Watch()
        self.watch.add(self.local.logs, MODIFY)
        self.keepers = Keepers(self.folder)
        self.watch.add(self.keepers.folder, MOVED_TO)
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.lock = threading.Lock()
        self.turn = 0
        """The number of the current poll: a poll ends at once when a later one or a launch follows."""
        self.polled_at = time.monotonic()
        self.lost: dict[str, float] = {}
        """Run whose supervisor was killed -> since when no process of it is left, on the monotonic clock."""
        self.is_over = threading.Event()
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def hello(self) -> int:
        """The version of the messages that this agent understands."""
        return FORMAT

    # ---- starting and ending ----

    def launch(self, packed: Packed, kind: str, shown: str) -> None:
        """Start a run; one that was launched before keeps its supervisor, so it runs once.

        ``kind``: the kind of keeper, for a run of a Ray; ``shown``: the keeper's document.
        """
        run_id = packed[0]
        with self.lock:
            number = self._claim(run_id)
            log = str(self.local.logs / run_id)
            if kind:
                self.keepers.show(run_id, shown)
                packed = (run_id, self.keepers.command(run_id, kind, packed[1]), *packed[2:])
            self.local.launch(request_of(packed, log_path=log, supervisor=number))
        self._kick()

    def _claim(self, run_id: str) -> int:
        """The number of the supervisor of a run, assigned at the first call and never changed."""
        claim = self.claims / run_id
        try:
            return int(claim.read_text())
        except (FileNotFoundError, ValueError):
            number = self.local.assign()
            staged = self.claims / f".{run_id}"
            staged.write_text(str(number))
            staged.rename(claim)
            return number

    def show(self, run_id: str, shown: str) -> None:
        """Give the keeper of a Ray its present document."""
        with self.lock:
            if (self.claims / run_id).exists():
                self.keepers.show(run_id, shown)

    def stop(self, run_id: str, grace_s: float, signo: int) -> None:
        """End a run; one that has not started never will.

        The run is claimed first, because ``_tidy`` would remove the stop request of an unknown run.
        """
        with self.lock:
            self._claim(run_id)
        self.local.stop(run_id, grace_s=grace_s, signo=signo)
        self._kick()

    def signal_run(self, run_id: str, signo: int, tree: bool) -> None:
        """Send a signal to the main process of a run, or to all of its processes."""
        self.local.signal_run(run_id, signo, tree=tree)

    def forget(self, run_ids: Iterable[str]) -> None:
        """Remove all files of runs that are over and recorded."""
        with self.lock:
            for run_id in run_ids:
                self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        if self.local.observe(run_id).state in (RunState.STARTING, RunState.RUNNING):
            return
        self.local.forget(run_id)
        self.lost.pop(run_id, None)
        self.keepers.forget(run_id)
        for path in (self.claims / run_id, self.local.logs / run_id):
            path.unlink(missing_ok=True)

    def settle(self, live: Iterable[str]) -> None:
        """Stop or forget all runs here except ``live``."""
        with self.lock:
            for run_id in self._claimed().difference(live):
                if self.local.observe(run_id).state in (RunState.STARTING, RunState.RUNNING):
                    self.local.stop(run_id, grace_s=0)
                else:
                    self._forget(run_id)
            self._tidy()

    def _tidy(self) -> None:
        numbers: dict[str, int] = {}
        for run_id in self._claimed():
            with contextlib.suppress(FileNotFoundError, ValueError):
                numbers[run_id] = int((self.claims / run_id).read_text())
        self.local.settle(numbers)

    def _claimed(self) -> set[str]:
        try:
            return {name for name in os.listdir(self.claims) if not name.startswith(".")}
        except FileNotFoundError:  # the folder was removed
            return set()

    # ---- telling ----

    def poll(self, known: Known, limit_s: float) -> dict[str, tuple[Packed, int, bytes, str]]:
        """News of the ``known`` runs: run -> state, offset and bytes of a part of its log, keeper's message.

        Waits at most ``limit_s`` seconds for news. The end of a run is reported after the last part of its
        log. Nothing is reported after the end of the raylet: then the node is dead, and the guard ends its runs.
        """
        with self.lock:
            self.turn += 1
            turn = self.turn
        self._wake()
        until = time.monotonic() + limit_s
        waits = select.poll()
        for fd in (self.wake, self.local.fileno(), self.watch.fileno()):
            waits.register(fd, select.POLLIN)
        while True:
            self.polled_at = time.monotonic()
            self.local.changes()
            self.watch.read()
            news = {
                run_id: new
                for run_id, last in known.items()
                if (new := self._news(run_id, *last)) is not None
            }
            if os.getppid() != self.raylet:
                os._exit(0)
            pause_s = min(until - time.monotonic(), self.local.due_s(), *self._lost_due_s())
            if news or turn != self.turn or time.monotonic() >= until:
                with self.lock:  # else a number could be freed between its claim and its launch
                    self._tidy()
                return news
            waits.poll(max(pause_s, 0.001) * 1000)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.wake)

    def _news(
        self, run_id: str, reported: Packed | None, offset: int, message: str
    ) -> tuple[Packed, int, bytes, str] | None:
        seen = self._seen(run_id)  # before the log is read: after an end nothing more is written
        said = self.keepers.said(run_id)
        start, chunk = _read(self.local.logs / run_id, offset)
        if chunk and seen.state is RunState.EXITED:
            seen = Seen(RunState.RUNNING, seen.start)
        packed = packed_seen(seen)
        return (packed, start, chunk, said) if chunk or packed != reported or said != message else None

    def _seen(self, run_id: str) -> Seen:
        seen = self.local.observe(run_id)
        if seen.state is not RunState.LOST:
            return seen
        if run_id not in self.lost:
            if self.local.clear_lost(run_id):
                return Seen(RunState.RUNNING, seen.start)  # until no process of it is left
            self.lost[run_id] = time.monotonic()
        is_due = time.monotonic() >= self.lost[run_id] + LOST_S
        return seen if is_due else Seen(RunState.RUNNING, seen.start)

    def _lost_due_s(self) -> list[float]:
        """Seconds until lost runs are reported."""
        now = time.monotonic()
        return [at + LOST_S - now for at in self.lost.values() if at + LOST_S > now]

    def _kick(self) -> None:
        with self.lock:
            self.turn += 1
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.wake, 1)

    # ---- the end ----

    def leave(self) -> bool:
        """End the agent if it has no runs; whether it ends. It exits soon; the caller may kill it."""
        with self.lock:
            if self.is_over.is_set() or self._claimed():
                return self.is_over.is_set()
            self.is_over.set()
            self.local.close()
            guard.end(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)
            return True

    def _end_when_idle(self) -> None:
        while not self.is_over.wait(_POLL_S):
            if time.monotonic() - self.polled_at > IDLE_S:
                self.leave()
        # the caller gets its answer first, and may end before Ray gets its request to kill the actor
        time.sleep(_ANSWER_S)
        os._exit(0)


def _read(path: Path, offset: int) -> tuple[int, bytes]:
    """A part of a log from an offset on, and its offset; holes in the file are skipped."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return offset, b""
    try:
        start = os.lseek(fd, offset, os.SEEK_DATA)
        return start, os.pread(fd, MAX_CHUNK_BYTES, start)
    except OSError:  # nothing after it
        return offset, b""
    finally:
        os.close(fd)


def _be_as(raylet: int) -> None:
    """Take the niceness and OOM score of the raylet: jobs would inherit those that Ray gives its workers."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, raylet))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(Path(f"/proc/{raylet}/oom_score_adj").read_text())
