"""The supervisors of a scheduler, seen from the scheduler: worker slots, their requests, and their messages.

The problem. A run has to start exactly once, and its end has to be known, although the scheduler, the launcher, a
supervisor and the machine may each die at any moment; and a job of a millisecond should cost little more than its
fork and exec. A scheduler cannot be the parent of its jobs: exit codes would die with it.

The idea (decision 0002). A launcher forks a few supervisors, about one per CPU; they are the parents of the jobs.
Runs that go on side by side have different numbers, and the runs of one number follow one another. A number is a
*worker slot* here (worker_slot.py has its states: FREE, ASSIGNED, REQUESTED, PAUSED, BUSY, RETIRED), a record file on
disk, and a line, the socket to whichever supervisor has it; each has several. The transaction that decides a start
writes the number into the row of the run, so anybody may send the request again: it goes to the same slot, and the
record file decides.

    scheduler                      supervisor                            record file
    commit: run 7.1 has number 3
    request 7.1  --- line 3 --->   locks records/3, finds no T of 7.1
                                   writes, then forks                    T 7.1    no other process starts it
                 <----------       the main process runs                 S 7.1    its pid and start time
                 <----------       no process of 7.1 is left             E 7.1    code, signal, resources

T is for taken, S for started, E for ended. Without a T the run has not started, and the request may be repeated:
whoever has the lock looks for the T first. A T without an E under a lock that nobody holds is a run that was lost. A
job can write into the file, too: so an E counts at once only if it came on the line, and one that was only read
counts when the supervisor has no process of the run left.

Runs ahead (decisions 0015 and 0028). Between the end of one short job and the start of the next there would be a
wake-up, a search and a commit. So a commit may assign the next run to a number that is still busy (``give_next``), in
the same cluster or in another one to which the place goes over. For each such run there is an *offer*, the file
ahead/<run>. The supervisor unlinks it before it takes the run; whoever takes the run back renames it. The kernel lets
only one of them succeed, without a message to wait for. A run whose offer is gone is declined (D on the line), and
keeps the number until it is requested as an ordinary run of it or goes back to its queue.

Invariants.
- Only the supervisor that has the record file locked starts runs of the number, and only runs without a T.
- A run never moves to another number. A slot whose supervisor has ended without a T gets another one (REQUESTED ->
  PAUSED -> REQUESTED), and the lock decides between the two. If the file is gone or was made before the last boot,
  the run is refused: nobody can know whether it was started. If MAX_TRIES supervisors end that way, the scheduler
  locks the file and writes a T itself before it refuses the run: a supervisor that got the request earlier does not
  start it later.
- Each supervisor that ends is a try; one that is lost with a launcher that we kill, as it does not answer, is none.
  Else all runs that wait for one launcher on a slow machine would be given up together.
- ``idle`` holds exactly the FREE slots, ``untaken`` the REQUESTED and PAUSED ones. A FREE slot has no run in the
  tables (``awaited``) and no declined one.
- A supervisor that does not answer is not replaced while it holds the lock. It may be suspended, or slow, and it has
  the runs of other numbers: it gets SIGCONT after RESUME_S, and again after pauses of 2, 4, 8, ... 60 s. If one of
  these finds the lock free, launcher and supervisor are replaced.

Example (``tests/simulation/test_supervisors_theory.py``). Two CPUs, four running jobs: numbers 1 to 4, of which
supervisor 0 has 1 and 3. Somebody kills it. Both lines end. Slot 1 was BUSY, it has a T: it is RETIRED, its run is
lost, and what is left of that run is found by its mark (in the environment of each process) and killed. Slot 3 was
REQUESTED, its file has no T: it is PAUSED, for 0 s; then the launcher hands its line to a supervisor that lives, or
forks one, which locks records/3 and gets the request again. Should that one end, too, the next pauses are 0.08, 0.16,
... s, 20 s for all ten tries together. Runs that were to follow in the two numbers are declined.

The costs. For each run one message to a supervisor and one or two back (T and S wait for the E of a run of less than
5 ms, or of 30 ms if it followed another one), one write to the file for each, and no fork in the scheduler. An idle
number costs an open socket in both processes; ``max_idle`` of them are kept, and those beyond that for 5 seconds.
Where open files are short, the line of a slot is closed as soon as its request is out, and its file is watched
instead.

Not done. A cgroup for each run (dearer than the process itself, and needs root). A line through which a closed number
passes its runs on to another one: as a number is a file and no process, no run has a need to move. Records are not
synced: after a power cut the boot id says that a run is gone.
"""

import collections
import contextlib
import errno
import os
import resource
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection

from vctl.runtime import frames, lines, processes
from vctl.runtime.forkserver import ForkServer
from vctl.runtime.keeper import KeeperLine
from vctl.runtime.protocol import RuntimeUnavailable
from vctl.runtime.records import RecordFile, Records
from vctl.runtime.worker_slot import (
    ANSWER_S,
    ASSIGNED,
    BUSY,
    FREE,
    MOVES,
    PAUSED,
    REQUESTED,
    RETIRED,
    WorkerSlot,
)

MAX_RUNS = 1000
"""The most runs of one number; after them the number gets no more, and its file is removed when unused."""
RESUME_S = 0.05
"""A process that has not taken a request after this time may be stopped, and gets SIGCONT."""
_LONGEST_ANSWER_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 30.0  # between processes of a number that take no request
MAX_TRIES = 10
"""The most processes of a number that may end without taking their request; all of them take 20 seconds."""
GONE = "its records are gone"
"""The problem of a run of which nobody knows whether it was started."""
MAX_SUPERVISORS = 16
"""A scheduler cannot start runs fast enough to need more, and each takes a MiB or two."""
_REST_S = 5.0  # idle supervisors unused for this long are ended; a fork costs as much as several short jobs
_SPARE_FILES = 256  # open files that are reserved for the rest of the scheduler
_FILES_OF_NUMBER = 4  # its line, its records, its log, and one that is passed on or read
_CHUNK_BYTES = 1 << 16
_LATER = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
"""What a send that may be repeated fails with: the line is full, or the kernel has no memory for it."""


class Supervisors:
    """All supervisors of one scheduler."""

    def __init__(self, records: Records, boot: str, watch: Callable[[RecordFile], None]) -> None:
        """``watch`` is called with each record file whose supervisor has no line to this process."""
        self.records, self.boot = records, boot
        self.watch = watch
        self.keeper: KeeperLine | None = None
        self.server: ForkServer | None = None
        self.poll = select.epoll()
        self.slots: dict[int, WorkerSlot] = {}
        self.by_fd: dict[int, WorkerSlot] = {}
        self.untaken: dict[int, WorkerSlot] = {}  # those that are REQUESTED or PAUSED
        self.idle: dict[int, WorkerSlot] = {}  # those that are FREE; the last one was busy most recently
        self.retired: set[int] = set()  # numbers that get no more runs
        self.news: set[str] = set()  # runs with news
        self.refused: dict[str, str] = {}  # runs that nobody will start -> why
        self.supervisors = min(len(os.sched_getaffinity(0)), MAX_SUPERVISORS)
        self.load: collections.Counter[int] = collections.Counter()  # supervisor -> how many numbers it has
        self.max_idle = max(4, 2 * len(os.sched_getaffinity(0)))  # more of them are ended after a while
        self.min_idle = 0
        self.apart = False  # whether each number has a supervisor of its own
        self.next_trim: float | None = None
        max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.max_lines = max(8, max_files - _SPARE_FILES)
        self.max_numbers = max(1, max_files // _FILES_OF_NUMBER - 1)

    # ---- giving ----

    def assign(self) -> int:
        """A number for a run: one that is idle, else a new one."""
        if not self.idle:
            return self._slot(self.records.add(self.boot)).file.number
        number = next(reversed(self.idle))  # the pages of its process are warm
        self._move(self.idle[number], "assign")
        self.min_idle = min(self.min_idle, len(self.idle))
        return number

    def give(self, number: int, run_id: str, request: bytes) -> bool:
        """Let the process of a number start a run; False if nobody can know whether the run was started."""
        if (slot := self.slots.get(number)) is None:
            if (file := self.records.file(number)) is None:
                return self._refuse(run_id)
            file.read()
            if file.boot != self.boot:
                return self._refuse(run_id)
            slot = self._slot(file)
        slot.file.awaited.discard(run_id)
        if run_id in slot.file.runs:
            self.watch(slot.file)
        if run_id in slot.file.runs or slot.run == run_id:
            return True
        if any(run_id == queued for queued, _ in slot.queue):
            return True
        if slot.run:
            # The present run was to follow this one, which was declined: it will be declined soon, too.
            slot.queue.append((run_id, request))
            if slot.line is not None:
                self._send(slot, request)
            return True
        self._ask(slot, run_id, request)
        if slot.line is None:
            self._fork(slot)
        else:
            slot.resumed = False
            self._send(slot, request)
        return True

    def _move(self, slot: WorkerSlot, event: str) -> None:
        """Move a slot to the state that follows from an event; the indexes by state follow it."""
        number, before = slot.file.number, slot.state
        state = slot.state = MOVES[event][before]
        if state is REQUESTED or state is PAUSED:
            self.untaken[number] = slot
        elif before is REQUESTED or before is PAUSED:
            del self.untaken[number]
        if state is FREE:
            self.idle[number] = slot
        elif before is FREE:
            del self.idle[number]

    def _ask(self, slot: WorkerSlot, run_id: str, request: bytes) -> None:
        self._move(slot, "ask")
        slot.run, slot.request = run_id, request
        slot.since, slot.answer_s, slot.tries = time.monotonic(), ANSWER_S, 0

    def _refuse(self, run_id: str, why: str = GONE) -> bool:
        self.refused[run_id] = why
        self.news.add(run_id)
        return False

    def give_next(self, number: int, run_id: str, request: bytes) -> bool:
        """Queue a run behind those of the process of a number; False if the process does not get it."""
        slot = self.slots.get(number)
        if slot is None or slot.line is None or not slot.run or slot.outbox:
            return False
        if slot.runs + len(slot.queue) + 2 >= MAX_RUNS or len(self.by_fd) > self.max_lines:
            return False
        slot.queue.append((run_id, request))
        self._send(slot, request)
        return True

    def _slot(self, file: RecordFile) -> WorkerSlot:
        slot = self.slots[file.number] = WorkerSlot(file)
        return slot

    def _fork(self, slot: WorkerSlot) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        number = slot.file.number
        with theirs, contextlib.ExitStack() as undone:
            undone.callback(ours.close)
            self.poll.register(ours, select.EPOLLIN)  # first: nobody gets a line that is not read
            index = self._choose_supervisor(slot)
            server = self.live_server()
            if not server.hand(number, index, theirs):
                server = self.replace_server()
                if not server.hand(number, index, theirs):
                    raise RuntimeUnavailable("the launcher dies as it starts", fix="see launcher.log")
            undone.pop_all()
        self._move(slot, "fork")
        slot.server = server
        slot.line, slot.pid, slot.rest, slot.outbox, slot.waits = ours, 0, b"", b"", False
        slot.tries += 1
        slot.file.reported = ""
        self.by_fd[ours.fileno()] = slot
        slot.resumed = False
        self._send(slot, slot.request, *(request for _, request in slot.queue))

    def _choose_supervisor(self, slot: WorkerSlot) -> int:
        """The supervisor that has the fewest numbers, of about one for each CPU, at most MAX_SUPERVISORS.

        There are more if each would have too many files open. If tags cannot be set, each number has a
        supervisor of its own, because a supervisor could not tell which run a daemon belongs to; also if ``apart``.
        """
        self._release_supervisor(slot)
        if self.apart or resource.getrlimit(processes.TAG)[1] != resource.RLIM_INFINITY:
            return slot.file.number
        indexes = range(max(self.supervisors, self.load.total() // self.max_numbers + 1))
        slot.supervisor = min(indexes, key=self.load.__getitem__)
        self.load[slot.supervisor] += 1
        return slot.supervisor

    def _release_supervisor(self, slot: WorkerSlot) -> None:
        if slot.supervisor is not None:
            self.load[slot.supervisor] -= 1
            slot.supervisor = None

    def _send(self, slot: WorkerSlot, *requests: bytes) -> None:
        for request in requests:
            slot.outbox += frames.frame(request)
        self._flush(slot)

    def _flush(self, slot: WorkerSlot) -> None:
        assert slot.line is not None
        try:
            slot.outbox = slot.outbox[slot.line.send(slot.outbox, socket.MSG_NOSIGNAL) :]
        except (BrokenPipeError, ConnectionResetError):
            return  # it was killed, which reading from the line shows
        except OSError as error:
            if error.errno not in _LATER:
                raise
        if slot.waits != bool(slot.outbox):
            self.poll.modify(slot.line, select.EPOLLIN | (select.EPOLLOUT if slot.outbox else 0))
            slot.waits = bool(slot.outbox)
        if not slot.outbox and len(self.by_fd) > self.max_lines:
            self._hang_up(slot)  # it carries out this run and ends; its file shows how
            self.watch(slot.file)

    def live_server(self) -> ForkServer:
        """The launcher, replaced if it is dead."""
        if self.server is None or self.server.is_dead():
            return self.replace_server()
        return self.server

    def replace_server(self) -> ForkServer:
        """Another launcher in place of one that is dead or stuck."""
        failed, self.server = self.server, None
        if failed is not None:
            if not failed.is_dead():
                for slot in self.untaken.values():
                    if slot.server is failed and slot.line is not None:
                        slot.tries -= 1  # its line may lie in this launcher
            failed.abandon()
        self.server = ForkServer(self.records.home, self.keeper)
        return self.server

    # ---- hearing ----

    def hear(self, ready: list[tuple[int, int]]) -> None:
        """Read the messages of supervisors. ``ready``: descriptors and events of ``poll``."""
        for fd, events in ready:
            if (slot := self.by_fd.get(fd)) is None:
                continue
            if events & select.EPOLLOUT:
                self._flush(slot)
            if events & ~select.EPOLLOUT and slot.line is not None:
                self._listen(slot)

    def _listen(self, slot: WorkerSlot) -> None:
        assert slot.line is not None
        try:
            data = slot.line.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._hang_up(slot)
            self._handle_end(slot)
            return
        changed, slot.rest = slot.file.feed(slot.rest + data, on_line=True)
        self.news |= changed
        self.update(slot)

    def update(self, slot: WorkerSlot) -> None:
        """Update a number from what is known of its run, and of the runs queued behind it."""
        while slot.run:
            entry = slot.file.runs.get(slot.run)
            if entry is None and slot.run not in slot.file.declined:
                return
            if entry is not None:
                if slot.state is not BUSY:
                    self._move(slot, "take")
                    slot.request = b""
                slot.pid = entry.supervisor[0]
                if entry.exit is None or not entry.proved:
                    return
                slot.runs += 1
            self._end(slot)
            if not slot.run and entry is None:
                return  # the declined run keeps the number until it is launched again or taken back
            self.free(slot)

    def _end(self, slot: WorkerSlot) -> None:
        """The run of a slot is over, declined or given up; the next one in its queue is its run."""
        self._move(slot, "end")
        slot.run, slot.request = "", b""
        if slot.queue:
            self._ask(slot, *slot.queue.popleft())

    def drop(self, slot: WorkerSlot, run_id: str) -> None:
        """Remove a run that is over or declined from its number, whose process may not report that."""
        if slot.run != run_id:
            slot.queue = deque(queued for queued in slot.queue if queued[0] != run_id)
        elif not slot.queue:
            self.retire(slot)
        else:
            self._end(slot)
            if slot.line is None:
                self._pause(slot, 0.0)
            self.update(slot)

    def free(self, slot: WorkerSlot) -> None:
        """Make a number idle, unless a run has it, or waits to be launched by it or taken back."""
        if slot.state is not ASSIGNED or slot.file.declined or slot.file.awaited:
            return
        if slot.runs < MAX_RUNS and slot.line is not None:
            self._move(slot, "free")
        else:
            self.retire(slot)

    def _handle_end(self, slot: WorkerSlot) -> None:
        """Handle the end of a number's process, or a failed fork; the next one gets a request not taken."""
        if not slot.run:
            self.retire(slot)
            return
        slot.file.read()
        for run_id, _ in slot.queue:  # their requests are lost
            slot.file.declined.add(run_id)
            self.news.add(run_id)
        slot.queue.clear()
        self.news.add(slot.run)
        self.watch(slot.file)  # another process may have taken it
        self.update(slot)
        if slot.request and slot.file.boot != self.boot:
            self._refuse(slot.run)  # its record file is gone, so no process starts it
            self.retire(slot)
        elif slot.request and slot.tries >= MAX_TRIES and self._takes_itself(slot):
            self._refuse(slot.run, f"{slot.tries} supervisors ended before they took it: see launcher.log")
            self.retire(slot)
        elif slot.request:
            pause_s = 0 if slot.tries < 2 else _FIRST_PAUSE_S * 2**slot.tries
            self._pause(slot, min(_LONGEST_PAUSE_S, pause_s))
        else:
            self.retire(slot)

    def _takes_itself(self, slot: WorkerSlot) -> bool:
        """Record a run as taken that is never started; False if a process has the file, or has taken the run."""
        if slot.file.holder() is not None:
            return False
        run_id = os.fsencode(slot.run)
        rest = b"%d 0 %b" % (
            os.getpid(),
            self.boot.encode(),
        )  # no process starts at 0: nobody seems to run it
        try:
            file = lines.Writer(os.fsencode(slot.file.path))
        except FileNotFoundError:
            return True
        except (lines.Busy, OSError):
            return False
        try:
            return file.take(run_id, lines.line(lines.TAKEN, run_id, rest))
        except OSError:
            return False  # the disk is full
        finally:
            file.close()

    def _pause(self, slot: WorkerSlot, pause_s: float) -> None:
        """Let a slot wait before it gets another process for its request."""
        self._move(slot, "lose")
        slot.due = time.monotonic() + pause_s

    def _hang_up(self, slot: WorkerSlot) -> None:
        if slot.line is not None:
            self.by_fd.pop(slot.line.fileno(), None)
            self.poll.unregister(slot.line)
            slot.line.close()
            slot.line = None

    def retire(self, slot: WorkerSlot) -> None:
        """Give no more runs to a number; its process ends when it has nothing to do."""
        if slot.state is RETIRED:
            return
        self._hang_up(slot)
        self._release_supervisor(slot)
        self._move(slot, "retire")
        self.slots.pop(slot.file.number, None)
        self.retired.add(slot.file.number)

    # ---- looking after them ----

    def maintain(self) -> None:
        """Replace processes that do not take their requests; end idle supervisors that are not needed."""
        now = time.monotonic()
        for slot in list(self.untaken.values()):
            if slot.state is PAUSED:
                if slot.due <= now:
                    slot.since = now
                    self._fork(slot)
            elif now - slot.since > slot.answer_s:
                self._insist(slot)
            elif not slot.resumed and now - slot.since > RESUME_S:
                slot.resumed = True
                if slot.pid:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(slot.pid, signal.SIGCONT)
        self._trim(now)

    def _insist(self, slot: WorkerSlot) -> None:
        """Read the file of a request that seems not taken; if it is not, resume or replace its process."""
        slot.file.read()
        self.update(slot)
        if not slot.request:
            self.news.add(slot.run)
            self.watch(slot.file)  # it was taken by a process that may have no line to us
            return
        slot.since, slot.answer_s = time.monotonic(), min(2 * slot.answer_s, _LONGEST_ANSWER_S)
        if (holder := slot.file.holder()) is None:
            if slot.server is self.server:  # else another slot has replaced the launcher meanwhile
                self.replace_server()
            self._hang_up(slot)
            self._fork(slot)
        else:
            processes.send(holder, signal.SIGCONT)  # it may be stopped, and has the runs of other numbers too
            if slot.outbox and slot.line is not None:
                self._flush(slot)  # there was no memory to wait for it

    def _trim(self, now: float) -> None:
        """End idle supervisors that were not needed lately."""
        if len(self.idle) <= self.max_idle:
            self.next_trim = None
        elif self.next_trim is None or now >= self.next_trim:
            if self.next_trim is not None:
                count = max(0, self.min_idle - self.max_idle)
                for slot in list(self.idle.values())[:count]:  # those idle the longest
                    self.retire(slot)
            self.next_trim, self.min_idle = now + _REST_S, len(self.idle)

    def settle(self, assigned: Collection[int]) -> None:
        """Make numbers without a run idle. An idle one may be assigned, by a commit that seemed to fail."""
        for number, slot in self.slots.items():
            if slot.state is FREE and number in assigned:
                self._move(slot, "assign")
            elif slot.state is ASSIGNED and number not in assigned:
                self._move(slot, "free")

    def retire_idle(self) -> None:
        """Give no more runs to the idle numbers: their files are gone."""
        for slot in list(self.idle.values()):
            self.retire(slot)

    def due_s(self, rest_s: float) -> float:
        """Seconds until the next ``maintain``, at most ``rest_s``; 0 if there is news that was not fetched."""
        due = [0.0 if self.news else rest_s]
        now = time.monotonic()
        for slot in self.untaken.values():
            answers = slot.since + (slot.answer_s if slot.resumed else RESUME_S)
            due.append(max(0.0, (slot.due if slot.state is PAUSED else answers) - now))
        if self.next_trim is not None:
            due.append(max(0.0, self.next_trim - now))
        return min(due)

    def close(self) -> None:
        """Close the lines to all supervisors; those that have a run carry it out and end."""
        for slot in list(self.by_fd.values()):
            self._hang_up(slot)
        if self.server is not None:
            self.server.close()
        self.server = None
        self.slots.clear()
        self.untaken.clear()
        self.idle.clear()
