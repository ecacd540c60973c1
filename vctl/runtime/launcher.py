"""The fork server: a small process that forks supervisors, and hands numbers to them.

Run as a script, `python -I -S launcher.py`, with the channel to the scheduler as its standard input. Each message is a
number, the place where it is to be carried out and, as a file descriptor, the line of the number to the scheduler. In
each place is one supervisor, forked when the first number comes that is for it. It gets its requests on the lines: a
fork of Python costs more than all that a supervisor does for a short job, so the launcher has no part in those.

When the channel ends the launcher ends; supervisors end when they have nothing to do and their lines end. Killing the
launcher loses nothing: the scheduler sees the lines that were on their way close, and sends them to the next one.
"""

import _ctypes
import _socket  # the public module builds enums at import
import gc
import os
import sys

MYPY = False
if MYPY:
    import signal
    from typing import NoReturn
else:
    import _signal as signal  # see processes.py

if MYPY or __package__:
    from vctl.runtime import processes, supervisor
else:
    # Behind the standard library, whose names must win over those of this directory.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import processes
    import supervisor

CHANNEL = 0
_UPWARDS = 3  # the channel of a supervisor to its launcher
MESSAGE_BYTES = 2 * supervisor.NUMBER_BYTES
_MOST_FILES = 1 << 20
# What ctypes is made of, without its 3 ms of import.
_PRCTL = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
# Waited for (supervisor) or not handled at all: a stray kill or a closed terminal must not end supervision.
_BLOCKED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    """Fork supervisors and hand out numbers until the scheduler closes the channel or dies."""
    close_inherited()
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *_IGNORED_BY_PYTHON}:
        signal.signal(signo, signal.SIG_DFL)  # what a job's process gets, whatever the scheduler ignored
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our supervisors
    home, boot = os.fsencode(sys.argv[1]), processes.boot_id().encode()
    _prctl(_PR_SET_NAME, b"vctl-launcher")
    gc.freeze()
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, CHANNEL)
    capacity = _socket.CMSG_SPACE(supervisor.FD_BYTES)
    places: dict[bytes, _socket.socket] = {}
    while True:
        message, handed, _, _ = channel.recvmsg(MESSAGE_BYTES, capacity, _socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        number, place = message[: supervisor.NUMBER_BYTES], message[supervisor.NUMBER_BYTES :]
        for _, _, data in handed:
            line = int.from_bytes(data[: supervisor.FD_BYTES], sys.byteorder)
            if not (place in places and _hand(places[place], number, line)):
                try:
                    places[place] = fork(home, boot)
                    _hand(places[place], number, line)
                except OSError as error:
                    places.pop(place, None)
                    if not any(_hand(one, number, line) for one in places.values()):
                        sys.stderr.write(f"cannot fork: {error.strerror}\n")
            os.close(line)  # where nobody got it the scheduler hears that it has ended


def _hand(to: _socket.socket, number: bytes, line: int) -> bool:
    """Give a number to a supervisor; False when that has ended, or does not read what it gets."""
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, line.to_bytes(supervisor.FD_BYTES, sys.byteorder))]
    try:
        to.sendmsg([number], rights, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def fork(home: bytes, boot: bytes) -> _socket.socket:
    """Fork a supervisor; the channel on which it gets numbers. Raises OSError when the kernel refuses."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        if os.fork() == 0:
            _live(home, boot, theirs.fileno())
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours


def _live(home: bytes, boot: bytes, channel: int) -> "NoReturn":
    """The life of a supervisor."""
    status = 70
    try:
        settle(channel)
        supervisor.Supervisor(home, boot, _UPWARDS).serve()
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may leave the child but by _exit
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def settle(channel: int) -> None:
    """In a new supervisor: a session of its own, nothing inherited but the standard files and its channel."""
    os.setsid()
    step_back()
    _prctl(_PR_SET_NAME, supervisor.NAME)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if channel != _UPWARDS:
        os.dup2(channel, _UPWARDS, inheritable=False)
    # The job's standard input, inherited as it is; it also takes the launcher's channel away from us.
    os.dup2(os.open("/dev/null", os.O_RDWR), CHANNEL)
    os.closerange(_UPWARDS + 1, _MOST_FILES)


def step_back() -> None:
    """Let the scheduler go first where both want a CPU: what it does gives all supervisors their next runs.

    Else it falls behind where many short jobs run, until no supervisor has a run and CPUs stand still. The weight is
    that of the session, and jobs have sessions of their own, so it is not theirs.
    """
    try:
        with open("/proc/self/autogroup", "wb", buffering=0) as file:
            file.write(b"5")
    except OSError:
        return  # a kernel without, or somebody did this a moment ago


def close_inherited() -> None:
    """Keep nothing but the three standard files: a lock held here would outlive the scheduler."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed the directory


def _prctl(option: int, value: int | bytes) -> None:
    if _ctypes.call_function(_PRCTL, (option, value, 0, 0, 0)) != 0:
        raise OSError(f"prctl({option}) failed")


if __name__ == "__main__":
    main()
