"""Hands a new job to the scheduler, which writes the job and its start in one commit instead of two.

A command server has a socket to its scheduler. It sends the job, and one end of a socket pair for the answer:

    T    the scheduler takes the job: it has the write lock, and has written nothing yet
    W    the job is written and durable

If T does not come in time, the command server shuts its own end down for reading, and writes the job itself.
After that the scheduler cannot send T, and without T it writes nothing. So no job is written twice, even if a
process is slow, suspended or killed. If T came and W did not, the result is unknown: the command server then
looks for the job under the write lock. The id of the job is new, so a row with this id is this job.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from contextlib import suppress
from socket import AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD, SOCK_SEQPACKET, socket, socketpair

from vctl.core.values import replace
from vctl.engine import codec
from vctl.engine.changes import Change, JobSubmitted, Launch
from vctl.ops import submitting
from vctl.runtime import frames
from vctl.store import ahead, observed, settings
from vctl.store.store import Store

LINE = 3
"""The descriptor of the socket to the scheduler, in the command server."""
MOST_BYTES = 1 << 16
TAKEN, WRITTEN = b"T", b"W"
TAKE_S = 0.05
"""Seconds to wait for T; a scheduler that does not answer by then is busy."""
WRITE_S = 30.0
_STRANGE = (ValueError, KeyError, TypeError, AttributeError, AssertionError, EOFError)


class Handed:
    """A job that a command server has handed over, and the socket for the answer.

    ``capacity``: the version of the capacity at which the job was judged feasible; None if that is stored
    already.
    """

    def __init__(self, change: JobSubmitted, capacity: int | None, line: socket) -> None:
        self.change, self.capacity, self._line = change, capacity, line

    def take(self) -> bool:
        """Send T, inside a transaction. False if the command server waits no more; it writes the job."""
        return self._tell(TAKEN)

    def answer(self) -> None:
        """Send W: the job is written."""
        self._tell(WRITTEN)
        self.drop()

    def drop(self) -> None:
        """Close the socket; without W, the command server does not know the result."""
        self._line.close()

    def _tell(self, word: bytes) -> bool:
        try:
            return self._line.send(word, MSG_DONTWAIT | MSG_NOSIGNAL) == len(word)
        except OSError:  # the command server does not wait any more
            return False


def hand_over(line: socket, change: JobSubmitted, capacity: int | None) -> bool:
    """Hand a job over. True if the scheduler confirms that it is written; after False that is unknown."""
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
                frames.send(line, message, [theirs.fileno()])
            except OSError:  # the scheduler is gone, or its receive buffer is full
                return False
        ours.settimeout(TAKE_S)
        try:
            said = ours.recv(1)
        except TimeoutError:
            ours.shutdown(SHUT_RD)
            said = ours.recv(1)  # a T that arrived before the shutdown
        ours.settimeout(WRITE_S)
        with suppress(OSError):
            return said == TAKEN and ours.recv(1) == WRITTEN
    return False


def received(line: socket) -> list[Handed]:
    """The jobs that were handed over since the last call."""
    handed = []
    with suppress(BlockingIOError, ConnectionResetError):  # none, or of a server that was killed
        while True:
            message, answering = frames.receive(line, MOST_BYTES, waits=False)
            if not answering:  # no descriptor was free here, so the other side sees a closed socket
                continue
            answers = socket(fileno=answering[0])
            try:
                text, parts, capacity = marshal.loads(message)
                change = codec.decode(text)
                assert isinstance(change, JobSubmitted)
                handed.append(Handed(replace(change, launch=Launch(*parts)), capacity, answers))
            except _STRANGE:  # a message of another version of vctl
                answers.close()
    return handed


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
