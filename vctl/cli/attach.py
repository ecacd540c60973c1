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
from collections.abc import Iterator, Sequence

from vctl import ops
from vctl.cli.call import Call
from vctl.cli.command_client import INTERRUPTED
from vctl.errors import TimedOut
from vctl.runtime.attach_socket import AttachSocket
from vctl.runtime.relay import DATA, SIZE, frame

POLL_S = 0.1
SAY_SO_AFTER_S = 1.0
STARTS_WITHIN_S = 30.0
"""How long the main process of a job that runs may take to be there."""
OF_THE_TERMINAL = ("TERM", "COLORTERM")
ENDED_BY = tuple(128 + number for number in (signal.SIGHUP, signal.SIGKILL, signal.SIGTERM))
"""The exit codes of a command that somebody, perhaps the end of its job, has ended."""
SOON_OVER_S = 0.5
"""How long after such an end the one of the job may be recorded."""
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


def beside(call: Call, ref: str, words: Sequence[str]) -> int:
    """Run a command beside a running job until it ends, or the job does; returns its exit code."""
    from vctl.client.handles import Local, Task

    has_terminal = os.isatty(0)
    mode = "terminal" if has_terminal else "beside"
    env = {name: os.environ[name] for name in OF_THE_TERMINAL if has_terminal and name in os.environ}
    with AttachSocket(call.home) as listener:
        give_up = time.monotonic() + STARTS_WITHIN_S
        relay = mode, os.fspath(listener.path)
        while (form := ops.attaching.attach(call.store, ref, words, relay, env)) is None:
            if time.monotonic() > give_up:
                raise TimedOut(
                    f"the process of job {ref} is not there after {STARTS_WITHIN_S:g} s", fix="try it again"
                )
            time.sleep(POLL_S)
        local = Local(call.config)
        task = Task(local, form["task_id"])
        try:
            while (line := listener.opened(POLL_S)) is None and not local.wait("tasks", task.ref, 0)[0]:
                continue
            if line is not None:
                with line:
                    _share(line, listener, has_terminal=has_terminal)
        except KeyboardInterrupt:
            task.cancel()
            return INTERRUPTED
        code, form = task.wait(), task.info()
        if code in ENDED_BY and local.wait("jobs", str(form["job_id"]), SOON_OVER_S)[0]:
            call.note(f"job {ref} has ended, and with it this command")
        elif line is None:
            call.note(f"the command did not start: {form['message'] or form['state_reason']}")
        return code


def _share(line: socket.socket, listener: AttachSocket, *, has_terminal: bool) -> None:
    """Give a command this terminal, or the three standard files, until it has ended."""
    if has_terminal:
        with _raw() as size_changed:
            _pump(line, size_changed)
    else:
        listener.hand_over_files(line)
        with contextlib.suppress(ConnectionResetError):
            line.recv(1)  # the other side closes it


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
