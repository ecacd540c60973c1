"""The near side of ``runtime.relay``: hands this command's standard input, or its terminal, to the job it submitted."""

import contextlib
import fcntl
import os
import secrets
import select
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from pathlib import Path

from vctl.cli.call import Call
from vctl.cli.common import INTERRUPTED
from vctl.runtime.relay import DATA, SIZE, address, frame

FOLDER = "attach"
LOOK_S = 0.05
SAY_SO_AFTER_S = 1.0
END_OF_INPUT = b"\x04"
CHUNK = 1 << 14
NO_SIZE = b"\0" * 8


class Door:
    """A socket at which the process of the job knocks; nobody else can reach its directory."""

    def __init__(self, home: Path) -> None:
        folder = home / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / secrets.token_hex(8)
        self.listening = socket.socket(socket.AF_UNIX)
        held, name = address(os.fspath(self.path))
        try:
            self.listening.bind(name)
        finally:
            os.close(held)
        self.listening.listen()

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self.listening.close()
        self.path.unlink(missing_ok=True)

    def hand_over_stdin(self) -> None:
        """Give the standard input to the job as soon as it starts, while this command goes on."""

        def wait() -> None:
            with contextlib.suppress(OSError):  # closed: the job is over
                line, _ = self.listening.accept()
                with line:
                    socket.send_fds(line, [b"."], [0])

        threading.Thread(target=wait, daemon=True).start()

    def opened(self, within_s: float) -> socket.socket | None:
        """The line to the job once it has started."""
        if not select.select([self.listening], [], [], within_s)[0]:
            return None
        return self.listening.accept()[0]


def converse(call: Call, door: Door, submission_id: str) -> int:
    """Be the terminal of a job until it is over; its exit code."""
    from vctl.client.handles import Job
    from vctl.client.place import Local
    from vctl.core.jobs import FINAL

    place = Local(call.config)
    job = Job(place, submission_id)
    waited, said = 0.0, False
    try:
        with place.waiting("jobs", submission_id) as pause:
            while (line := door.opened(LOOK_S)) is None:
                form = job.info()
                if form["status"] in FINAL:
                    call.note(
                        f"job {submission_id} {form['status']}: {form['message'] or form['state_reason']}"
                    )
                    return job.wait()
                if form["status"] == "PENDING":
                    pause(LOOK_S)
                    waited += LOOK_S
                    if waited > SAY_SO_AFTER_S and not said:
                        said = True
                        call.note(f"{submission_id} waits: {form['message']}; Ctrl-C gives up")
    except KeyboardInterrupt:
        job.stop()
        return INTERRUPTED
    with line, _raw() as size_changed:
        _pump(line, size_changed)
    return job.wait()


@contextlib.contextmanager
def _raw() -> Iterator[int]:
    """The terminal hands on every key while this lasts; gives a descriptor that tells of a new size."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = termios.tcgetattr(0) if os.isatty(0) else None
    heard = signal.signal(signal.SIGWINCH, lambda *_: _wake(writing))
    try:
        if before is not None:
            tty.setraw(0)
        yield reading
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, heard)
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
    """What is typed goes to the job, what it shows comes back, until it hangs up."""
    sys.stdout.flush()
    sources = [line.fileno(), size_changed, 0]
    try:
        line.sendall(frame(SIZE, _size()))
        while True:
            ready = select.select(sources, [], [])[0]
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
    except (ConnectionResetError, BrokenPipeError):
        return  # the process of the job was ended
