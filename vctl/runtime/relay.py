"""Runs between a supervisor and a command that needs a terminal, a standard input, or labelled lines.

Run as a script, `python -I -S relay.py MODE SOCKET -- COMMAND`, as the main process of a run:

    label     every line of the command's output gets the rank of the process in front: "3: line"
    stdin     the command gets the standard input of the submitting program, as a descriptor over SOCKET
    beside    the command gets the standard files of that program over SOCKET, and ends when it has ended
    hold      no command: waits until the program that submitted the job sends an exit code, or has ended
    terminal  the command gets a terminal of its own; its input and output are exchanged over SOCKET

SOCKET is a unix socket in the state directory, of the program that submitted the job. When that program is
killed, the input of `stdin` stays open, and `terminal` hangs up: the command gets SIGHUP and the job ends.
When this process is killed, the supervisor ends the remaining processes, and the other side sees its socket
close.
"""

import errno
import os
import select
import signal
import socket
import sys
import time

MYPY = False
if MYPY or __package__:
    from vctl.runtime.becoming import end_as, execute, fail
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from becoming import end_as, execute, fail

if MYPY:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    T = TypeVar("T")

# messages on SOCKET to the command's terminal: a kind, the length of the content in 4 bytes, the content
DATA, SIZE = b"d", b"s"
HEAD_BYTES = 5
HUNG_UP = 128 + signal.SIGHUP
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 16
_HANG_UP_S = 1.0
_RETRY_S = 1
_SENT = ("VCTL_", "VIRTUAL_CLUSTER_ID", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_WITHHELD = ("VCTL_RUN_ID", "VCTL_HOME")  # VCTL_RUN_ID marks the processes of a run; the program is none
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_HANDLED = (signal.SIGTERM, *_FORWARDED)


def main(words: list[str]) -> None:
    """Carry out a mode; never returns."""
    mode, path, _, *command = words
    if mode == "label":
        label(os.environ.get("RANK", "0"), command)
    line = connect(path)
    if mode == "hold":
        hold(line)
    if mode == "stdin":
        take_stdin(line, command)
    if mode == "beside":
        stand_beside(line, command)
    Terminal(line, command).serve()


def frame(kind: bytes, content: bytes) -> bytes:
    """One message to the terminal of the command."""
    return kind + len(content).to_bytes(HEAD_BYTES - 1, "little") + content


def address(path: str) -> tuple[int, str]:
    """A short name for a socket with a path of any length, and a descriptor to keep open while it is used.

    The path of a unix socket is limited to 107 bytes.
    """
    folder, name = os.path.split(path)
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return held, f"/proc/self/fd/{held}/{name}"


def connect(path: str) -> socket.socket:
    """Connect to the program that submitted the job."""
    line = socket.socket(socket.AF_UNIX)
    try:
        held, name = address(path)
        line.connect(name)
        os.close(held)
    except OSError:
        fail("the command that submitted this job has ended, and with it the input of the job", HUNG_UP)
    return line


def take_stdin(line: socket.socket, command: list[str]) -> None:
    """Become the command, with the standard input that comes over the line."""
    _, handed, _, _ = socket.recv_fds(line, 1, 1)
    if not handed:
        fail("the command that submitted this job has ended, and with it the input of the job", HUNG_UP)
    os.dup2(handed[0], 0)
    os.close(handed[0])
    line.close()
    execute(command)


def stand_beside(line: socket.socket, command: list[str]) -> None:
    """Run the command with the three standard files that come over the line, as long as the line is open."""
    _, handed, _, _ = socket.recv_fds(line, 1, 3)
    if len(handed) < 3:
        os._exit(HUNG_UP)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # until they are ignored here
    child = os.fork()
    if child == 0:
        for number, fd in enumerate(handed):
            os.dup2(fd, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        execute(command)
    for fd in handed:
        os.close(fd)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # for a stop, all processes of the run get it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, line.fileno()], [], [])[0]:
        _kill(child, signal.SIGHUP)
        if not select.select([ended], [], [], _HANG_UP_S)[0]:
            os._exit(HUNG_UP)  # the supervisor ends the command
    end_as(os.waitpid(child, 0)[1])


def hold(line: socket.socket) -> None:
    """Send the program the variables of a process of this job, then wait for the exit code that it sends."""
    import json
    import struct

    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_SENT) and name not in _WITHHELD
    }
    line.sendall(json.dumps(variables).encode(errors="surrogateescape") + b"\n")
    peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    try:
        program = os.pidfd_open(struct.unpack("3i", peer)[0])
    except ProcessLookupError:
        os._exit(HUNG_UP)
    # forks of the program have the line too, so killing the program alone does not close it
    ready = select.select([line.fileno(), program], [], [])[0]
    word = line.recv(3) if line.fileno() in ready else b""
    os._exit(int(word) if word else HUNG_UP)


def forked(fork: "Callable[[], T]", blocked: "Iterable[int]" = ()) -> "T":
    """Fork; while there is no process or memory left, say so and try again. ``blocked`` signals end the wait."""
    is_said = False
    while True:
        try:
            return fork()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM):
                fail(f"cannot fork: {error.strerror}", 126)
            if not is_said:
                os.write(2, f"vctl: cannot fork: {error.strerror}; next try every {_RETRY_S} s\n".encode())
            is_said = True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        time.sleep(_RETRY_S)
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)


def label(rank: str, command: list[str]) -> None:
    """Run the command with its rank in front of every line that it writes."""
    reading, writing = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # until the handlers are set
    child = forked(os.fork, _HANDLED)
    if child == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        execute(command)
    os.close(writing)
    os.set_blocking(reading, False)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # for a stop, all processes of the run get it
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(ended, select.POLLIN)
    mark, rest = f"{rank}: ".encode(), b""
    while True:
        over = any(fd == ended for fd, _ in poll.poll())  # checked first: then the pipe has all of its output
        rest, closed = _marked(reading, mark, rest)
        if over:
            break
        if closed:
            poll.unregister(reading)
    if rest:
        os.write(1, mark + rest + b"\n")
    _, status = os.waitpid(child, 0)
    end_as(status)


def _marked(reading: int, mark: bytes, rest: bytes) -> tuple[bytes, bool]:
    """Write complete lines with the mark in front; the incomplete rest, and whether the pipe has ended."""
    while True:
        try:
            chunk = os.read(reading, _CHUNK)
        except BlockingIOError:
            return rest, False
        if not chunk:
            return rest, True
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        if lines:
            os.write(1, b"".join(mark + text + b"\n" for text in lines))


class Terminal:
    """The command on a terminal of its own, and the connection to the user's terminal."""

    def __init__(self, line: socket.socket, command: list[str]) -> None:
        import pty

        self.line = line
        self.child, self.master = forked(pty.fork)
        if self.child == 0:
            execute(command)
        os.set_blocking(self.master, False)
        line.settimeout(0)
        self.received, self.typed, self.shown = bytearray(), bytearray(), bytearray()
        self.hung_up = False
        for number in (signal.SIGTERM, signal.SIGHUP):  # a stop; interactive shells ignore SIGTERM
            signal.signal(number, lambda *_: self.hang_up())

    def hang_up(self) -> None:
        """Send SIGHUP to the processes of the terminal: the user's side is gone, or the job is to end."""
        if not self.hung_up:
            self.hung_up = True
            _kill(-self.child, signal.SIGHUP)
            _kill(-self.child, signal.SIGCONT)

    def serve(self) -> None:
        """Serve until the command has ended, then end as it did."""
        ended = os.pidfd_open(self.child)
        while not self.hung_up:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.register(self.line, select.POLLIN | (select.POLLOUT if self.shown else 0))
            asks = (0 if self.shown else select.POLLIN) | (select.POLLOUT if self.typed else 0)
            poll.register(self.master, asks)
            ready = dict(poll.poll())
            if self.master in ready:
                self.exchange()
            if self.line.fileno() in ready and not self.hear():
                self.hang_up()
            self.send()
            if ended in ready:
                break
        self.finish(ended)

    def exchange(self) -> None:
        """Pass the user's input to the command's terminal, and read the terminal's output."""
        try:
            if self.typed:
                del self.typed[: os.write(self.master, self.typed)]
            if not self.shown:
                self.shown += os.read(self.master, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # no process has the terminal open: the command is about to end
                raise
            select.select([], [], [], 0.01)

    def hear(self) -> bool:
        """Read the messages of the user's side; False if it is gone."""
        try:
            chunk = self.line.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.received += chunk
        while len(self.received) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(self.received[1:HEAD_BYTES], "little")
            if len(self.received) < end:
                break
            kind, content = bytes(self.received[:1]), bytes(self.received[HEAD_BYTES:end])
            del self.received[:end]
            if kind == SIZE:
                self.resize(content)
            else:
                self.typed += content
        return bool(chunk)

    def resize(self, size: bytes) -> None:
        """Give the terminal the size of the user's terminal; the kernel sends the command SIGWINCH."""
        import fcntl
        import termios

        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def send(self) -> None:
        """Send the output to the user's side, as far as the socket takes it."""
        try:
            if self.shown:
                del self.shown[: self.line.send(self.shown)]
        except BlockingIOError:
            return
        except OSError:
            self.hang_up()

    def finish(self, ended: int) -> None:
        """Send the rest of the output, and end as the command ended."""
        if not select.select([ended], [], [], _HANG_UP_S if self.hung_up else None)[0]:
            os._exit(HUNG_UP)  # the supervisor ends the command
        self.line.settimeout(_HANG_UP_S)
        try:
            while True:
                if self.shown:
                    self.line.sendall(bytes(self.shown))
                self.shown = bytearray(os.read(self.master, _CHUNK))
                if not self.shown:
                    break
        except OSError:
            pass  # no more output, or the user's side is gone
        self.line.close()
        end_as(os.waitpid(self.child, 0)[1])


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main(sys.argv[1:])
