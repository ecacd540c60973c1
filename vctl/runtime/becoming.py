"""How a script that stands before a command becomes it, gives up, and ends as it ended. Stand-alone."""

import errno
import os

MYPY = False
if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py


def fail(message: str, code: int) -> None:
    """Write a message to standard error and exit with the code."""
    os.write(2, f"vctl: {message}\n".encode(errors="surrogateescape"))
    os._exit(code)


def execute(command: list[str]) -> None:
    """Become the command (exec)."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}", 127 if error.errno == errno.ENOENT else 126)


def end_as(status: int) -> None:
    """End as the command ended: with its exit code, or by its signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
