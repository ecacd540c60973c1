"""The command server: a process that has everything imported, and its forks, which carry commands out.

A scheduler starts it with ``python -m vctl.cli.command_server HOME``. It ends with the scheduler, when its
standard input is closed. It has no open database (SQLite does not survive a fork) and holds no lock. Its
client is ``command_client``.

A fork is made before its command comes. If all goes well, it takes further commands: half of the time of its
first command goes into copying the memory pages that it writes to.

A fork carries out no command that uses the terminal or is about this machine, as declarations say; it says so before
it has begun one. One that waits leaves the server first: it may outlive the scheduler, and takes no further command.
A fork ends with its client, whatever either of them does: the kernel kills it when the client's end of the line closes.
"""

import fcntl
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from socket import (
    AF_UNIX,
    MSG_CTRUNC,
    MSG_TRUNC,
    SO_PEERCRED,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    recv_fds,
    socket,
    socketpair,
)
from typing import Any

from vctl import SOCKET, spec
from vctl.cli import catalog
from vctl.cli.call import Call
from vctl.cli.command_client import INTERRUPTED, NOT_HERE, WAITS, stamp
from vctl.cli.entry import carry_out
from vctl.cli.user_fork import UserForks, end_with
from vctl.core.text import visible
from vctl.daemon.command_server import WORDS
from vctl.engine.changes import JobSubmitted
from vctl.store import write
from vctl.store.store import Store

LIFE = 0
"""The descriptor (standard input) whose other end closes when the scheduler ends."""
MAX_BYTES = 1 << 18
BACKLOG = 128
STAY_S = 5.0
"""Seconds for which a fork waits for its next command, and before that for the end of the client."""
MAX_COMMANDS = 1000
"""The most commands that one fork carries out."""
FILES = "/proc/self/fd"
READY, TAKEN = b"+", b"-"
"""The messages of a fork: it waits for a command; it does not wait any more."""
MODULES = (
    "vctl.cli.app", "vctl.cli.completion", "vctl.cli.output", "vctl.cli.submission",
    "vctl.ops.views", "vctl.ops.overview", "vctl.ops.jobs", "vctl.ops.submitting", "vctl.ops.feasible",
    "vctl.ops.arrays", "vctl.ops.background", "vctl.ops.dependencies", "vctl.ops.matching", "vctl.ops.turns",
    "vctl.ops.why", "vctl.store.store", "vctl.engine.apply",
    "vctl.engine.changes", "vctl.store.write", "vctl.operations.declare", "vctl.spec.job_request",
    "vctl.spec.cluster_spec", "vctl.spec.shape", "vctl.spec.source", "vctl.scheduler.orders", "json",
    "vctl.cli.columns", "vctl.cli.words", "vctl.cli.screen", "atexit", "termios", "vctl.cli.waiting", "vctl.cli.help",
    "vctl.ops.waiting", "vctl.cli.why_view", "vctl.cli.status_view", "vctl.spec.queue_settings", "rich.console",
    "rich.progress_bar", "rich.table", "rich.tree",
)  # fmt: skip
"""The modules that commands import, apart from the modules of the commands themselves."""
REHEARSED = ("status", "ps --limit 1", "status -o json", "ps --limit 1 -o json", "job status last -o json")
"""The queries that a server carries out once, none of which reads all jobs."""


def main() -> None:
    """Listen until the scheduler is gone: ``HOME``, and of a shared service ``HOME ADDRESS``."""
    home, address = sys.argv[1], sys.argv[2:]
    prepare(home)
    try:
        listening = socket(fileno=WORDS) if address else listen(home)
    except OSError as error:  # a full disk, or a filesystem without sockets
        sys.exit(f"commands run in processes of their own for now: {error.strerror}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps forks that have ended
    hand_over_jobs(home)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    Forks(listening, os.stat(home), UserForks(home, address[0]) if address else None).serve()


def prepare(home: str) -> None:
    """Import and build what commands need, so that the forks do not have to."""
    for name in MODULES:
        import_module(name)
    for made in catalog.load_all().values():
        _ = made.params
    write.load_all()
    rehearse(home)


def rehearse(home: str) -> None:
    """Carry out a submit and some queries, to build what is built at first use.

    Otherwise every fork does that, which takes as long as the rest of a submit.
    """
    from vctl.ops import submitting

    with (
        suppress(Exception, SystemExit), open(os.devnull, "w") as nothing,
        redirect_stdout(nothing), redirect_stderr(nothing),
    ):  # fmt: skip
        with (
            Store.open(Path(home), create=False, lock_timeout_s=1) as store,
            suppress(InterruptedError), store.together(),
        ):  # fmt: skip
            submitting.submit(store, spec.job_request.JobRequest(argv=("true",), cwd="/"), environment={})
            raise InterruptedError  # which rolls the submit back
        for line in REHEARSED:
            carry_out([*line.split(), "--home", home])


def hand_over_jobs(home: str) -> None:
    """Let the scheduler write the jobs that commands submit to its state directory; see ``ops.handing``."""
    from vctl.ops import handing, submitting

    os.set_inheritable(handing.LINE, False)  # noqa: FBT003
    line, own = socket(fileno=handing.LINE), os.stat(home)

    def hand_over(store: Store, change: JobSubmitted, judged: int | None) -> bool:
        return os.path.samestat(os.stat(store.home), own) and handing.hand_over(line, change, judged)

    submitting.hand_over = hand_over


def listen(home: str) -> socket:
    """A socket in the state directory. It replaces an older one, whose server ended with its scheduler."""
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    path = f"/proc/self/fd/{folder}/{SOCKET}"  # short, because the address of a socket is limited
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket(AF_UNIX, SOCK_SEQPACKET)
    os.umask(0o077)
    listening.bind(path)
    listening.listen(BACKLOG)
    os.close(folder)
    return listening


class Forks:
    """The living forks: at most one of them waits for a command, the others carry one out."""

    def __init__(self, listening: socket, home: os.stat_result, users: UserForks | None = None) -> None:
        self.listening = listening
        self.home = home
        self.users = users
        """Of a shared service: what its forks do, each for another user."""
        listening.settimeout(0)  # another process may accept a connection first
        self.lines: dict[int, socket] = {}
        self.ready: int | None = None
        self.poll = select.poll()
        self.poll.register(LIFE, 0)  # reports only its end

    def serve(self) -> None:
        """Keep a fork ready until the scheduler is gone."""
        self.make()
        while True:
            self.poll.register(self.listening, select.POLLIN if self.ready is None else 0)
            news = [fd for fd, _ in self.poll.poll()]
            if LIFE in news:
                return
            for fd in news:
                if fd in self.lines:
                    self.hear(fd)
            is_asked = self.ready is None and self.listening.fileno() in news
            if is_asked and not (self.has_room() and self.make()):
                with suppress(OSError):
                    self.listening.accept()[0].close()  # the client carries its command out itself

    def has_room(self) -> bool:
        """Whether another fork may be made: the users of a service may ask for any number."""
        return self.users is None or len(self.lines) < self.users.MOST

    def make(self) -> bool:
        """Make a fork that is ready for a command; False if no process can be made."""
        try:
            ours, theirs = socketpair()
        except OSError:  # too many open files
            return False
        with theirs:
            try:
                if os.fork() == 0:
                    for inherited in (ours, *self.lines.values()):
                        inherited.close()
                    if self.users is not None:
                        self.users.work(self.listening, theirs, LIFE)
                    work(self.listening, theirs, self.home)
            except OSError:
                ours.close()
                return False
        self.ready = ours.fileno()
        self.lines[self.ready] = ours
        self.poll.register(ours, select.POLLIN)
        return True

    def hear(self, fd: int) -> None:
        """Handle a message or the end of a fork. If two forks are ready, one of them is told to end."""
        said, was_ready = self.lines[fd].recv(1), self.ready == fd
        if was_ready:
            self.ready = None
        if said == READY and self.ready is None:
            self.ready = fd
        elif said == TAKEN and self.users is not None:
            self.users.admit(self.lines[fd])
        elif said != TAKEN:
            if self.users is not None:
                self.users.ended(self.lines[fd])
            self.poll.unregister(fd)
            self.lines.pop(fd).close()
            if self.ready is None and not was_ready:  # a ready fork was killed: a command makes another
                self.make()


def work(listening: socket, line: socket, home: os.stat_result) -> None:
    """In a fork: take commands until none comes, one fails, or one leaves files open; never returns."""
    try:
        gc.disable()  # garbage of a command is collected after its answer
        mine, own = stamp(), [os.dup(fd) for fd in (0, 1, 2)]
        files = len(os.listdir(FILES))
        poll = select.poll()
        stay_ms: float | None = None
        poll.register(listening, select.POLLIN)
        for end in (LIFE, line):
            poll.register(end, 0)
        for _ in range(MAX_COMMANDS):
            if [event for _, event in poll.poll(stay_ms)] != [select.POLLIN]:
                break
            with suppress(BlockingIOError):
                asks, _ = listening.accept()
                line.send(TAKEN)
                with asks:
                    served = ServingFork(home, asks, listening, line)
                    is_fit = answer(asks, mine, own, served) and len(os.listdir(FILES)) == files + 1
                    if served.waits:
                        return
                    if not is_fit or not has_ended(asks):
                        break
                gc.collect()
                line.send(READY)
            stay_ms = STAY_S * 1000
        line.send(TAKEN)
    except (BrokenPipeError, KeyboardInterrupt):  # the server wants no fork, or Ctrl-C came after the answer
        return
    except BaseException as error:  # noqa: BLE001 - nothing may leave a fork but by _exit
        sys.stderr.write(f"a message is no command: {type(error).__name__}: {visible(str(error))}\n")
    finally:
        os._exit(0)


class ServingFork:
    """A fork, for the command that it carries out."""

    def __init__(self, home: os.stat_result, asks: socket, listening: socket, line: socket) -> None:
        self.home = home
        self.waits = False
        self._asks, self._listening, self._line = asks, listening, line

    def takes(self, call: Call, _: Mapping[str, Any], *, lasts: bool, waits: bool) -> bool:
        """Whether it carries a command out: one about this state directory that has no process of its own."""
        if lasts or not call.is_about(self.home):
            return False
        if waits:
            self.begin_to_wait()
        return True

    def begin_to_wait(self) -> None:
        """Let the client pass its signals on, and leave the server: only the client is needed from now on.

        Nobody would accept connections to a socket that is still open here when the server has ended.
        """
        self._asks.send(b"%d" % WAITS)
        self.waits = True
        self._listening.close()
        self._line.close()
        gc.enable()


def answer(line: socket, mine: bytes, own: list[int], served: ServingFork) -> bool:
    """Carry one command out, if it is of the same user; False after a failure."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if int.from_bytes(line.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder) != os.geteuid():
        return False
    line.send(b"%d %s" % (os.getpid(), mine))
    message, files, flags, _ = recv_fds(line, MAX_BYTES, 3)
    if flags & (MSG_TRUNC | MSG_CTRUNC) or len(files) != 3:
        return False  # the client carries its command out itself, or is of another installation
    end_with(line)
    try:
        code = carry_out_for(message.split(b"\0"), files, served)
    except KeyboardInterrupt:  # before the command could handle it
        code = INTERRUPTED
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) & ~os.O_ASYNC)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd, file in enumerate(own):
        os.dup2(file, fd)  # close the files of the client: the reader of its output waits for that
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    os.chdir("/")
    with suppress(BrokenPipeError):  # a client that was interrupted may have ended before
        line.send(b"%d" % code)
    return code in (0, NOT_HERE)


def has_ended(asks: socket) -> bool:
    """Whether the client ends within ``STAY_S``. Until then its Ctrl-C might interrupt the next command."""
    with suppress(ConnectionResetError):
        return bool(select.select([asks], [], [], STAY_S)[0]) and not asks.recv(1)
    return True


def carry_out_for(parts: list[bytes], files: list[int], served: ServingFork) -> int:
    """Take over the standard files, environment and directory of the client, and run its words."""
    folder, encoding, mask, count = parts[0], parts[1].decode(), int(parts[2]), int(parts[3])
    words, variables = parts[4 : 4 + count], parts[4 + count :]
    for fd, given in enumerate(files):
        os.dup2(given, fd)
        os.close(given)
    os.environb.clear()
    for pair in variables:
        name, _, value = pair.partition(b"=")
        os.environb[name] = value
    os.chdir(folder)
    os.umask(mask)
    time.tzset()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [sys.argv[0], *map(os.fsdecode, words)]
    sys.stdin = os.fdopen(0, encoding=encoding, closefd=False)
    sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    code = carry_out(sys.argv[1:], served)
    with suppress(BrokenPipeError):
        if code != INTERRUPTED:  # the rest of interrupted output may wait for a reader that does not read
            sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
