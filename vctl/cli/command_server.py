"""The process that has everything imported and waits for commands; each is carried out by a fork of it.

``python -m vctl.cli.command_server HOME``, started by a scheduler, ends with the scheduler: its standard input ends
then. It has no database open (SQLite does not survive a fork) and holds no lock. Its other end is ``command_client``.
"""

import gc
import os
import select
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from socket import AF_UNIX, MSG_CTRUNC, MSG_TRUNC, SO_PEERCRED, SOCK_SEQPACKET, SOL_SOCKET, recv_fds, socket

from vctl import SOCKET, spec
from vctl.cli import command_client
from vctl.cli.command_client import stamp
from vctl.core.text import visible
from vctl.engine.changes import JobSubmitted
from vctl.store.store import Store

LIFE = 0
"""The descriptor that ends with the scheduler."""
MOST_BYTES = 1 << 18
BACKLOG = 128
MODULES = (
    "vctl.cli.app", "vctl.cli.completion", "vctl.cli.output", "vctl.cli.submission",
    "vctl.ops.views", "vctl.ops.overview", "vctl.ops.jobs", "vctl.ops.submitting", "vctl.ops.feasible",
    "vctl.ops.background", "vctl.ops.why", "vctl.store.store", "vctl.engine.apply", "vctl.store.write",
    "vctl.operations.declare", "vctl.spec.job_request", "vctl.spec.cluster_spec", "vctl.spec.shape", "json",
    "vctl.cli.columns", "vctl.cli.words", "atexit", "termios",
)  # fmt: skip
"""What commands import; the command modules are added."""


def main() -> None:
    """Listen until the scheduler is gone."""
    from vctl.cli import catalog

    for name in MODULES:
        import_module(name)
    for _, modules in (*catalog.GROUPS.values(), *catalog.WORDS.values()):
        for name in modules.split():
            import_module(f"vctl.cli.commands.{name}")
    rehearse(sys.argv[1])
    try:
        listening = listen(sys.argv[1])
    except OSError as error:  # a full disk, or one without sockets
        sys.exit(f"commands run in processes of their own for now: {error.strerror}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects who has answered
    hand_over_jobs(sys.argv[1])
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    mine = stamp()
    poll = select.poll()
    poll.register(LIFE, 0)  # its end is all that can come from there
    poll.register(listening, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if LIFE in ready:
            return
        with suppress(OSError):
            line, _ = listening.accept()
            with line:
                if os.fork() == 0:
                    answer(line, mine)


def rehearse(home: str) -> None:
    """Have built what is built at first use, else every fork does that, which takes as long as the rest of a submit."""
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
            raise InterruptedError  # which takes it back
        command_client.carry_out(["job", "status", "last", "-o", "json", "--home", home])


def hand_over_jobs(home: str) -> None:
    """Have the scheduler of this state directory write what is submitted to it."""
    from vctl.ops import handing, submitting

    os.set_inheritable(handing.LINE, False)  # noqa: FBT003
    line, own = socket(fileno=handing.LINE), os.stat(home)

    def hand_over(store: Store, change: JobSubmitted, judged: int | None) -> bool:
        return os.path.samestat(os.stat(store.home), own) and handing.hand_over(line, change, judged)

    submitting.hand_over = hand_over


def listen(home: str) -> socket:
    """A socket in the state directory, where nobody else's can be: its scheduler holds the lock."""
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    path = f"/proc/self/fd/{folder}/{SOCKET}"  # short, as the address of a socket has to be
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket(AF_UNIX, SOCK_SEQPACKET)
    os.umask(0o077)
    listening.bind(path)
    listening.listen(BACKLOG)
    os.close(folder)
    return listening


def answer(line: socket, mine: bytes) -> None:
    """In the fork: carry one command out, if the same user asks; does not return."""
    code = 70
    gc.disable()  # it does not live for long
    try:
        if int.from_bytes(line.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder) != os.geteuid():
            return
        line.send(b"%d %s" % (os.getpid(), mine))
        message, files, flags, _ = recv_fds(line, MOST_BYTES, 3)
        if flags & (MSG_TRUNC | MSG_CTRUNC) or len(files) != 3:
            return  # it does without, or is another installation
        code = carry_out(message.split(b"\0"), files)
        answer_with(line, code)
    except KeyboardInterrupt:  # before the command could say so itself
        code = 130
        answer_with(line, code)
    except BaseException as error:  # noqa: BLE001 - nothing may leave a fork but by _exit
        sys.stderr.write(f"a message is no command: {type(error).__name__}: {visible(str(error))}\n")
    finally:
        os._exit(code)


def answer_with(line: socket, code: int) -> None:
    """Send the exit code; a client that was interrupted may have ended before."""
    with suppress(BrokenPipeError):
        line.send(b"%d" % code)


def carry_out(parts: list[bytes], files: list[int]) -> int:
    """Become the process that asked, as far as a command can tell, and run its words."""
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
    code = command_client.carry_out(sys.argv[1:])
    with suppress(BrokenPipeError):  # what an interrupted command leaves, where the reader has ended too
        sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
