"""A submit on its way to the scheduler, which writes it together with its start: one commit, not two.

A process that answers commands has a line to its scheduler. It sends the job, and one end of a line for the answer:

    T    the scheduler takes it: it has the write lock, and nothing is written yet
    W    it is written, and durable

Who does not get the T in time closes that end for reading, and writes the job itself. From then on no T can be sent,
and without one the scheduler writes nothing; so no job is written twice, whoever is slow, suspended or killed. Where T
was sent and W did not come, nobody knows: whoever submits looks for the job under the write lock. Its id is its own.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable
from contextlib import suppress
from socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SCM_RIGHTS,
    SHUT_RD,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    socket,
    socketpair,
)

from vctl.core.values import replace
from vctl.engine import codec
from vctl.engine.changes import Change, JobSubmitted, Launch
from vctl.ops import submitting
from vctl.store import ahead, observed, settings
from vctl.store.store import Store

LINE = 3
"""The descriptor that leads to the scheduler, in the process that answers commands."""
MOST_BYTES = 1 << 16
_FD_BYTES = 4
TAKEN, WRITTEN = b"T", b"W"
TAKE_S = 0.05
"""A scheduler that has not begun by then has something else to do."""
WRITE_S = 30.0
_STRANGE = (ValueError, KeyError, TypeError, AttributeError, AssertionError, EOFError)


class Handed:
    """A job that somebody waits for. ``capacity``: what there was when it was judged possible; None: known before."""

    def __init__(self, change: JobSubmitted, capacity: int | None, line: socket) -> None:
        self.change, self.capacity, self._line = change, capacity, line

    def take(self) -> bool:
        """Whether it is for us to write it; inside of a transaction."""
        return self._tell(TAKEN)

    def answer(self) -> None:
        """Say that it is written."""
        self._tell(WRITTEN)
        self.drop()

    def drop(self) -> None:
        """Say no more about it."""
        self._line.close()

    def _tell(self, word: bytes) -> bool:
        try:
            return self._line.send(word, MSG_DONTWAIT | MSG_NOSIGNAL) == len(word)
        except OSError:  # nobody waits any more
            return False


def hand_over(line: socket, change: JobSubmitted, capacity: int | None) -> bool:
    """Whether the scheduler at the other end has written a job; if not, it may have done so all the same."""
    assert change.launch is not None
    launch = change.launch
    parts = launch.entrypoint, launch.argv, launch.env, launch.cwd, launch.options
    message = marshal.dumps((codec.encode(change), parts, capacity))
    if len(message) > MOST_BYTES:
        return False
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    with ours:
        with theirs:
            try:
                files = theirs.fileno().to_bytes(_FD_BYTES, sys.byteorder)
                line.sendmsg([message], [(SOL_SOCKET, SCM_RIGHTS, files)], MSG_DONTWAIT | MSG_NOSIGNAL)
            except OSError:  # it is gone, or behind
                return False
        ours.settimeout(TAKE_S)
        try:
            said = ours.recv(1)
        except TimeoutError:
            ours.shutdown(SHUT_RD)
            said = ours.recv(1)  # if it was said before
        ours.settimeout(WRITE_S)
        with suppress(OSError):
            return said == TAKEN and ours.recv(1) == WRITTEN
    return False


def received(line: socket) -> list[Handed]:
    """All that was handed over since the last look."""
    found = []
    with suppress(BlockingIOError):
        while True:
            message, others, _, _ = line.recvmsg(
                MOST_BYTES, CMSG_SPACE(_FD_BYTES), MSG_DONTWAIT | MSG_CMSG_CLOEXEC
            )
            if not others:  # no more files can be opened: nobody waits then
                continue
            answers = socket(fileno=int.from_bytes(others[0][2], sys.byteorder))
            try:
                text, parts, capacity = marshal.loads(message)
                change = codec.decode(text)
                assert isinstance(change, JobSubmitted)
                found.append(Handed(replace(change, launch=Launch(*parts)), capacity, answers))
            except _STRANGE:  # of another version, which was installed meanwhile
                answers.close()
    return found


def enter(
    store: Store,
    change: JobSubmitted,
    judged: int | None,
    emit: Callable[[Change], None],
    take_back: Callable[[], None],
) -> None:
    """In the scheduler, inside its transaction: write a job that was handed over. Raises Conflict, NotFound."""
    job = submitting.numbered(store, change.job)
    if ahead.may_precede(store, job, lambda: settings.queue_of(store, job.parent_id).order):
        take_back()
    emit(replace(change, job=job))
    if judged is not None:
        observed.set_feasible(store, job.parent_id, job.shape, judged)
