"""The supervisors of a scheduler, by their numbers: which are free, their requests, and their messages.

A number is a record file. The process that has the file locked starts the runs of the number, each only if
the file does not record it as taken. So several processes, one after the other, can get the same request, and
the run starts only once. A process that does not take a request is replaced; the run keeps its number.
"""

import collections
import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection

from vctl.runtime import processes
from vctl.runtime.forkserver import ForkServer
from vctl.runtime.protocol import RuntimeUnavailable
from vctl.runtime.records import RecordFile, Records
from vctl.runtime.seat import ANSWER_S, WorkerSlot
from vctl.runtime.supervisor import PREFIX_BYTES

MOST_RUNS = 1000
"""The most runs of one number; after them the number gets no more, and its file is removed when unused."""
RESUME_S = 0.05
"""A process that has not taken a request after this time may be stopped, and gets SIGCONT."""
_LONGEST_ANSWER_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 30.0  # between processes of a number that take no request
MOST_TRIES = 10
"""The most processes of a number that may end without taking their request; all of them take 20 seconds."""
GONE = "its records are gone"
"""The problem of a run of which nobody knows whether it was started."""
MOST_SUPERVISORS = 16
"""A scheduler cannot start runs fast enough to need more, and each takes a MiB or two."""
_REST_S = 5.0  # idle supervisors unused for this long are ended; a fork costs as much as several short jobs
_SPARE_FILES = 256  # open files that are reserved for the rest of the scheduler
_FILES_OF_NUMBER = 4  # its line, its records, its log, and one that is passed on or read
_CHUNK_BYTES = 1 << 16


class Supervisors:
    """All supervisors of one scheduler."""

    def __init__(self, records: Records, boot: str, watch: Callable[[RecordFile], None]) -> None:
        """``watch`` is called with each record file whose supervisor has no line to this process."""
        self.records, self.boot = records, boot
        self.watch = watch
        self.server: ForkServer | None = None
        self.poll = select.epoll()
        self.seats: dict[int, WorkerSlot] = {}
        self.by_fd: dict[int, WorkerSlot] = {}
        self.untaken: dict[int, WorkerSlot] = {}
        self.idle: list[WorkerSlot] = []  # the last one was busy most recently: its pages are warm
        self.left: set[int] = set()  # numbers that get no more runs
        self.news: set[str] = set()  # runs with news
        self.refused: dict[str, str] = {}  # runs that nobody will start -> why
        self.places = min(len(os.sched_getaffinity(0)), MOST_SUPERVISORS)
        self.load: collections.Counter[int] = collections.Counter()  # place -> how many numbers it has
        self.most_idle = max(4, 2 * len(os.sched_getaffinity(0)))  # more of them are ended after a while
        self.least_idle = 0
        self.next_look: float | None = None
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most_lines = max(8, most_files - _SPARE_FILES)
        self.most_numbers = max(1, most_files // _FILES_OF_NUMBER - 1)

    # ---- giving ----

    def assign(self) -> int:
        """A number for a run: one that is idle, else a new one."""
        if self.idle:
            seat = self.idle.pop()
            self.least_idle = min(self.least_idle, len(self.idle))
        else:
            seat = self._seat(self.records.add(self.boot))
        return seat.file.number

    def give(self, number: int, run_id: str, request: bytes) -> bool:
        """Let the process of a number start a run; False if nobody can know whether the run was started."""
        if (seat := self.seats.get(number)) is None:
            if (file := self.records.file(number)) is None:
                return self._refuse(run_id)
            file.read()
            if file.boot != self.boot:
                return self._refuse(run_id)
            seat = self._seat(file)
        seat.file.awaited.discard(run_id)
        if run_id in seat.file.runs:
            self.watch(seat.file)
        if run_id in seat.file.runs or (seat.run == run_id and seat.request):
            return True
        if any(run_id == one for one, _ in seat.queue):
            return True
        if seat.run and seat.run != run_id:
            # The present run was to follow this one, which was declined: it will be declined soon, too.
            seat.queue.append((run_id, request))
            if seat.line is not None:
                self._send(seat, request)
            return True
        seat.run, seat.request, seat.since, seat.due = run_id, request, time.monotonic(), None
        seat.answer_s, seat.tries = ANSWER_S, 0
        self.untaken[number] = seat
        if seat.line is None:
            self._fork(seat)
        else:
            seat.resumed = False
            self._send(seat, request)
        return True

    def _refuse(self, run_id: str, why: str = GONE) -> bool:
        self.refused[run_id] = why
        self.news.add(run_id)
        return False

    def give_next(self, number: int, run_id: str, request: bytes) -> bool:
        """Queue a run behind those of the process of a number; False if the process does not get it."""
        seat = self.seats.get(number)
        if seat is None or seat.line is None or not seat.run or seat.outbox:
            return False
        if seat.runs + len(seat.queue) + 2 >= MOST_RUNS or len(self.by_fd) > self.most_lines:
            return False
        seat.queue.append((run_id, request))
        self._send(seat, request)
        return True

    def _seat(self, file: RecordFile) -> WorkerSlot:
        seat = self.seats[file.number] = WorkerSlot(file)
        return seat

    def _fork(self, seat: WorkerSlot) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        number = seat.file.number
        with theirs, contextlib.ExitStack() as undone:
            undone.callback(ours.close)
            place = self._place(seat)
            if not self.live_server().hand(number, place, theirs):
                if not self._replace_server().hand(number, place, theirs):
                    raise RuntimeUnavailable("the launcher dies as it starts", fix="see launcher.log")
            undone.pop_all()
        seat.line, seat.pid, seat.rest, seat.outbox, seat.due = ours, 0, b"", b"", None
        seat.waits = False
        seat.tries += 1
        seat.file.heard = ""
        self.by_fd[ours.fileno()] = seat
        self.poll.register(ours, select.EPOLLIN)
        seat.resumed = False
        self._send(seat, seat.request, *(request for _, request in seat.queue))

    def _place(self, seat: WorkerSlot) -> int:
        """The supervisor that has the fewest numbers, of about one for each CPU, at most MOST_SUPERVISORS.

        There are more if each would have too many files open. If tags cannot be set, each number has a
        supervisor of its own, because a supervisor could not tell which run a daemon belongs to.
        """
        self._displace(seat)
        if resource.getrlimit(processes.TAG)[1] != resource.RLIM_INFINITY:
            return seat.file.number
        places = range(max(self.places, self.load.total() // self.most_numbers + 1))
        seat.place = min(places, key=self.load.__getitem__)
        self.load[seat.place] += 1
        return seat.place

    def _displace(self, seat: WorkerSlot) -> None:
        if seat.place is not None:
            self.load[seat.place] -= 1
            seat.place = None

    def _send(self, seat: WorkerSlot, *requests: bytes) -> None:
        for request in requests:
            seat.outbox += len(request).to_bytes(PREFIX_BYTES, "little") + request
        self._flush(seat)

    def _flush(self, seat: WorkerSlot) -> None:
        assert seat.line is not None
        try:
            seat.outbox = seat.outbox[seat.line.send(seat.outbox, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            return  # it was killed, which reading from the line shows
        if seat.waits != bool(seat.outbox):
            seat.waits = bool(seat.outbox)
            self.poll.modify(seat.line, select.EPOLLIN | (select.EPOLLOUT if seat.waits else 0))
        if not seat.outbox and len(self.by_fd) > self.most_lines:
            self._hang_up(seat)  # it carries out this run and ends; its file shows how
            self.watch(seat.file)

    def live_server(self) -> ForkServer:
        """The launcher, replaced if it is dead."""
        if self.server is None or self.server.is_dead():
            return self._replace_server()
        return self.server

    def _replace_server(self) -> ForkServer:
        failed, self.server = self.server, None
        if failed is not None:
            failed.abandon()
        self.server = ForkServer(self.records.home)
        return self.server

    # ---- hearing ----

    def hear(self, ready: list[tuple[int, int]]) -> None:
        """Read the messages of supervisors. ``ready``: descriptors and events of ``poll``."""
        for fd, events in ready:
            if (seat := self.by_fd.get(fd)) is None:
                continue
            if events & select.EPOLLOUT:
                self._flush(seat)
            if events & ~select.EPOLLOUT and seat.line is not None:
                self._listen(seat)

    def _listen(self, seat: WorkerSlot) -> None:
        assert seat.line is not None
        try:
            data = seat.line.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._hang_up(seat)
            self._gone(seat)
            return
        told, seat.rest = seat.file.feed(seat.rest + data, heard=True)
        self.news |= told
        self.look(seat)

    def look(self, seat: WorkerSlot) -> None:
        """Update a number from what is known of its run, and of the runs queued behind it."""
        while seat.run:
            entry = seat.file.runs.get(seat.run)
            if entry is None and seat.run not in seat.file.declined:
                return
            declined = seat.run if entry is None else ""
            if seat.request:
                seat.request = b""
                self.untaken.pop(seat.file.number, None)
            if entry is not None:
                seat.pid = entry.supervisor[0]
                if entry.exit is None or not entry.heard:
                    return
                seat.runs += 1
            seat.run = ""
            if seat.queue:
                self._next(seat)
            elif declined:
                return  # the run keeps the number until it is launched again or taken back
            else:
                self.free(seat)

    def _next(self, seat: WorkerSlot) -> None:
        seat.run, seat.request = seat.queue.popleft()
        seat.since, seat.answer_s, seat.tries = time.monotonic(), ANSWER_S, 0
        self.untaken[seat.file.number] = seat

    def drop(self, seat: WorkerSlot, run_id: str) -> None:
        """Remove a run that is over or declined from its number, whose process may not report that."""
        if seat.run != run_id:
            seat.queue = deque(one for one in seat.queue if one[0] != run_id)
        elif not seat.queue:
            self.leave(seat)
        else:
            self._next(seat)
            if seat.line is None:
                seat.due = seat.since
            self.look(seat)

    def free(self, seat: WorkerSlot) -> None:
        """Make a number idle, unless a run has it, or waits to be launched by it or taken back."""
        if seat.run or seat.file.declined or seat.file.awaited or seat in self.idle:
            return
        if seat.runs < MOST_RUNS and seat.line is not None:
            self.idle.append(seat)
        else:
            self.leave(seat)

    def _gone(self, seat: WorkerSlot) -> None:
        """Handle the end of a number's process, or a failed fork; the next one gets a request not taken."""
        if not seat.run:
            self.leave(seat)
            return
        seat.file.read()
        for run_id, _ in seat.queue:  # their requests are lost
            seat.file.declined.add(run_id)
            self.news.add(run_id)
        seat.queue.clear()
        self.news.add(seat.run)
        self.watch(seat.file)  # another process may have taken it
        self.look(seat)
        if seat.request and seat.file.boot != self.boot:
            self._refuse(seat.run)  # its record file is gone, so no process starts it
            self.leave(seat)
        elif seat.request and seat.tries >= MOST_TRIES and seat.file.holder() is None:
            self._refuse(seat.run, f"{seat.tries} supervisors ended before they took it: see launcher.log")
            self.leave(seat)
        elif seat.request:
            pause_s = 0 if seat.tries < 2 else _FIRST_PAUSE_S * 2**seat.tries
            seat.due = time.monotonic() + min(_LONGEST_PAUSE_S, pause_s)
        else:
            self.leave(seat)

    def _hang_up(self, seat: WorkerSlot) -> None:
        if seat.line is not None:
            self.by_fd.pop(seat.line.fileno(), None)
            self.poll.unregister(seat.line)
            seat.line.close()
            seat.line = None

    def leave(self, seat: WorkerSlot) -> None:
        """Give no more runs to a number; its process ends when it has nothing to do."""
        self._hang_up(seat)
        self._displace(seat)
        self.seats.pop(seat.file.number, None)
        self.untaken.pop(seat.file.number, None)
        if seat in self.idle:
            self.idle.remove(seat)
        self.left.add(seat.file.number)

    # ---- looking after them ----

    def tend(self) -> None:
        """Replace processes that do not take their requests; end idle supervisors that are not needed."""
        now = time.monotonic()
        for seat in list(self.untaken.values()):
            if seat.due is not None:
                if seat.due <= now:
                    seat.since = now
                    self._fork(seat)
            elif now - seat.since > seat.answer_s:
                self._insist(seat)
            elif not seat.resumed and now - seat.since > RESUME_S:
                seat.resumed = True
                if seat.pid:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(seat.pid, signal.SIGCONT)
        self._trim(now)

    def _insist(self, seat: WorkerSlot) -> None:
        """Read the file of a request that seems not taken; if it is not, resume or replace its process."""
        seat.file.read()
        self.look(seat)
        if not seat.request:
            self.news.add(seat.run)
            self.watch(seat.file)  # it was taken by a process that may have no line to us
            return
        seat.since, seat.answer_s = time.monotonic(), min(2 * seat.answer_s, _LONGEST_ANSWER_S)
        if (holder := seat.file.holder()) is None:
            self._hang_up(seat)
            self._replace_server()
            self._fork(seat)
        else:
            processes.send(holder, signal.SIGCONT)  # it may be stopped, and has the runs of other numbers too

    def _trim(self, now: float) -> None:
        """End idle supervisors that were not needed lately."""
        if len(self.idle) <= self.most_idle:
            self.next_look = None
        elif self.next_look is None or now >= self.next_look:
            if self.next_look is not None:
                for seat in self.idle[: max(0, self.least_idle - self.most_idle)]:  # those idle the longest
                    self.leave(seat)
            self.next_look, self.least_idle = now + _REST_S, len(self.idle)

    def settle(self, assigned: Collection[int]) -> None:
        """Make numbers without a run idle. An idle one may be assigned, by a commit that seemed to fail."""
        self.idle = [seat for seat in self.idle if seat.file.number not in assigned]
        for number, seat in list(self.seats.items()):
            if not seat.run and number not in assigned and seat not in self.idle:
                self.idle.append(seat)

    def leave_idle(self) -> None:
        """Give no more runs to the idle numbers: their files are gone."""
        for seat in list(self.idle):
            self.leave(seat)

    def due_s(self, rest_s: float) -> float:
        """Seconds until the next ``tend``, at most ``rest_s``; 0 if there is news that was not fetched."""
        due = [0.0 if self.news else rest_s]
        now = time.monotonic()
        for seat in self.untaken.values():
            answer_s = seat.answer_s if seat.resumed else RESUME_S
            due.append(max(0.0, (seat.due or seat.since + answer_s) - now))
        if self.next_look is not None:
            due.append(max(0.0, self.next_look - now))
        return min(due)

    def close(self) -> None:
        """Close the lines to all supervisors; those that have a run carry it out and end."""
        for seat in list(self.by_fd.values()):
            self._hang_up(seat)
        if self.server is not None:
            self.server.close()
        self.server = None
        self.seats.clear()
        self.untaken.clear()
        self.idle.clear()
