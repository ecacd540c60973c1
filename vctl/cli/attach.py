"""Connects the terminal of this command to a job: the client side of ``runtime.relay``."""

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Iterator

from vctl.cli.call import Call
from vctl.cli.command_client import INTERRUPTED
from vctl.runtime.attach_socket import AttachSocket
from vctl.runtime.relay import DATA, SIZE, frame

POLL_S = 0.1
SAY_SO_AFTER_S = 1.0
END_OF_INPUT = b"\x04"
END_AGAIN_S = 0.5
"""Seconds until the end of the input is sent again: a shell that does not read yet may lose it."""
CHUNK = 1 << 14
NO_SIZE = b"\0" * 8


def converse(call: Call, listener: AttachSocket, submission_id: str) -> int:
    """Connect this terminal to a job until the job is over; returns its exit code."""
    from vctl.client.handles import Job, Local

    local = Local(call.config)
    job = Job(local, submission_id)
    began, has_said_so = time.monotonic(), False
    try:
        while (line := listener.opened(POLL_S)) is None:
            over, form = local.wait("jobs", submission_id, 0)
            form = form or job.info()
            if over:
                call.note(f"job {submission_id} {form['status']}: {form['message'] or form['state_reason']}")
                return job.wait()
            waits = form["status"] == "PENDING" and time.monotonic() - began > SAY_SO_AFTER_S
            if waits and not has_said_so:
                has_said_so = True
                call.note(f"{submission_id} waits: {form['message']}; Ctrl-C gives up")
    except KeyboardInterrupt:
        job.stop()
        return INTERRUPTED
    with line, _raw() as size_changed:
        _pump(line, size_changed)
    return job.wait()


@contextlib.contextmanager
def _raw() -> Iterator[int]:
    """Put the terminal into raw mode; yields a descriptor that becomes readable when the terminal is resized."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = termios.tcgetattr(0) if os.isatty(0) else None
    previous = signal.signal(signal.SIGWINCH, lambda *_: _wake(writing))
    try:
        if before is not None:
            tty.setraw(0)
        yield reading
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, previous)
        os.close(reading)
        os.close(writing)


def _wake(writing: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.write(writing, b".")


def _size() -> bytes:
    for fd in (0, 1):
        with contextlib.suppress(OSError):
            return fcntl.ioctl(fd, termios.TIOCGWINSZ, NO_SIZE)
    return NO_SIZE


def _pump(line: socket.socket, size_changed: int) -> None:
    """Copy typed input to the job and its output to the terminal, until the job closes the connection."""
    sys.stdout.flush()
    sources, pause_s = [line.fileno(), size_changed, 0], None
    try:
        line.sendall(frame(SIZE, _size()))
        while True:
            ready = select.select(sources, [], [], pause_s)[0]
            if not ready:
                line.sendall(frame(DATA, END_OF_INPUT))
            if size_changed in ready:
                os.read(size_changed, CHUNK)
                line.sendall(frame(SIZE, _size()))
            if line.fileno() in ready:
                if not (shown := line.recv(CHUNK)):
                    return
                while shown:
                    shown = shown[os.write(1, shown) :]
            if 0 in ready:
                typed = os.read(0, CHUNK)
                line.sendall(frame(DATA, typed or END_OF_INPUT))
                if not typed:
                    sources.remove(0)
                    pause_s = END_AGAIN_S
    except (ConnectionResetError, BrokenPipeError):
        return  # the process of the job has ended
