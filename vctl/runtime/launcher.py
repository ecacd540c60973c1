"""The fork server: a small process that forks supervisors, and hands numbers to them.

Run as a script, `python -I -S launcher.py STATE`, with the channel to the scheduler as its standard input.
Each message is a number, its place (the index of a supervisor) and, as a file descriptor, the line (a
socket) of the number to the scheduler. There is one supervisor for each place; the launcher forks it when
the first number for the place comes. The supervisor gets its requests on the lines, so the launcher takes no
part in starting jobs: a fork of Python costs more than all other work of a supervisor for a short job.

`python -I -S launcher.py STATE --shared HOME UID GID` is the launcher of a shared service, as root; the scheduler is
UID's. Any other message is then a question with the socket for its answer (questions.py).

The launcher ends when the channel ends. A supervisor ends when it has nothing to do and its lines have ended.
Killing the launcher loses nothing: the lines in transit close, and the scheduler sends new ones to the next
launcher.
"""

import _ctypes
import _socket  # the public module builds enums at import
import errno
import gc
import os
import select
import sys

MYPY = False
if MYPY:
    import signal
    from typing import NoReturn

    from vctl.runtime import user_processes
    from vctl.runtime.questions import Questions
else:
    import _signal as signal  # see processes.py

if MYPY or __package__:
    from vctl.runtime import frames, processes, spawning, supervisor
else:
    # Behind the standard library, whose names must win over those of this directory.
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path += _folder, os.path.join(os.path.dirname(_folder), "privileged")
    import frames
    import processes
    import spawning
    import supervisor

CHANNEL = 0
_UPWARDS = 3  # the descriptor of the channel between a supervisor and its launcher
MESSAGE_BYTES = 2 * supervisor.NUMBER_BYTES
_MAX_FILES = 1 << 20
_MAX_QUESTION = 4096
_RETRY_MS = 1000
MOST_SUPERVISORS = 128
"""The most supervisors of one launcher of a shared service, as the number of root's processes is not the account's."""
Life = tuple[bytes, bytes, "user_processes.UserProcesses | None"]
"""What a supervisor needs to know: the state directory, the boot, and the shared service if there is one."""
# The C extension of ctypes, because importing ctypes takes 3 ms.
_PRCTL = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
# The supervisor reads the first two from a signalfd. The others only stay blocked: a stray kill or a closed
# terminal must not end supervision.
_BLOCKED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    """Fork supervisors and hand out numbers until the scheduler closes the channel or dies."""
    close_inherited()
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *_IGNORED_BY_PYTHON}:
        signal.signal(signo, signal.SIG_DFL)  # the scheduler may ignore some
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the supervisors
    home, boot = os.fsencode(sys.argv[1]), processes.boot_id().encode()
    service = _service_of(home, sys.argv[2:])
    questions = None if service is None else _questions_to(service)
    _prctl(_PR_SET_NAME, b"vctl-launcher")
    life = home, boot, service
    gc.freeze()
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, CHANNEL)
    channels: dict[bytes, _socket.socket] = {}
    said = ""
    while True:
        message, given = frames.receive(channel, MESSAGE_BYTES if questions is None else _MAX_QUESTION)
        if not message:
            return
        if questions is not None and len(message) != MESSAGE_BYTES:
            for line in given:
                questions.answer(message, line)
                os.close(line)
            continue
        number, index = message[: supervisor.NUMBER_BYTES], message[supervisor.NUMBER_BYTES :]
        for line in given:
            if not (index in channels and _hand(channels[index], number, line)):
                channels.pop(index, None)
                while (problem := _fork_and_hand(life, channels, index, number, line)) is not None:
                    if said != problem:
                        sys.stderr.write(f"{problem}\n")
                        sys.stderr.flush()
                        said = problem
                    if _has_ended(channel):
                        return
            os.close(line)  # if no supervisor got the line, this ends it, which the scheduler sees


def _service_of(state: bytes, words: list[str]) -> "user_processes.UserProcesses | None":
    """The shared service of a launcher, from the words behind its state directory; None if it is one user's."""
    if not words:
        return None
    if MYPY or __package__:
        from vctl.runtime import user_processes
    else:
        import user_processes
    flag, home, uid, gid = words
    assert flag == "--shared", flag
    for signo in _IGNORED_BY_PYTHON:  # blocked does as well here, and the processes of users need no reset
        signal.pthread_sigmask(signal.SIG_BLOCK, (signo,))
        signal.signal(signo, signal.SIG_DFL)
    os.setgroups(())  # files of the account are opened with its group only
    os.umask(0o022)
    return user_processes.UserProcesses(state, os.fsencode(home), int(uid), int(gid))


def _questions_to(service: "user_processes.UserProcesses") -> "Questions":
    if MYPY or __package__:
        from vctl.runtime import questions
    else:
        import questions
    return questions.Questions(service.accounts, service.state, service.objects)


def _fork_and_hand(
    life: Life, channels: dict[bytes, _socket.socket], index: bytes, number: bytes, line: int
) -> str | None:
    """Fork the supervisor of a place for a number, else give the number to another one.

    Returns a message if there is none and the kernel has no process, memory or file left: that passes.
    """
    try:
        if life[2] is not None and not _has_room(channels):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        channels[index] = fork(life)
    except OSError as error:
        if any(_hand(other, number, line) for other in channels.values()):
            return None
        problem = f"cannot fork: {os.strerror(error.errno or 0)}"
        if spawning.passes(error):
            return f"{problem}; next try every {_RETRY_MS // 1000} s"
        sys.stderr.write(f"{problem}\n")
    else:
        _hand(channels[index], number, line)
    return None


def _has_room(channels: dict[bytes, _socket.socket]) -> bool:
    """Whether there may be one more supervisor; forgets those that have ended if there seem to be too many."""
    if len(channels) >= MOST_SUPERVISORS:
        ended = select.poll()
        for channel in channels.values():
            ended.register(channel, 0)
        gone = {descriptor for descriptor, _ in ended.poll(0)}
        for index in [index for index, channel in channels.items() if channel.fileno() in gone]:
            channels.pop(index).close()
    return len(channels) < MOST_SUPERVISORS


def _has_ended(channel: _socket.socket) -> bool:
    """Whether the scheduler has closed the channel; waits before the next try."""
    poll = select.poll()
    poll.register(channel, 0)
    return bool(poll.poll(_RETRY_MS))


def _hand(to: _socket.socket, number: bytes, line: int) -> bool:
    """Give a number to a supervisor; False if the supervisor has ended, or does not read its channel."""
    try:
        frames.send(to, number, [line])
    except OSError:
        return False
    return True


def fork(life: Life) -> _socket.socket:
    """Fork a supervisor; returns the channel for its numbers. Raises OSError if the kernel refuses."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        if os.fork() == 0:
            _live(life, theirs.fileno())
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours


def _live(life: Life, channel: int) -> "NoReturn":
    """Be a supervisor until it has nothing to do, then exit."""
    status = 70
    try:
        settle(channel)
        home, boot, service = life
        supervisor.Supervisor(home, boot, _UPWARDS, service).serve()
        status = 0
    except BaseException:  # noqa: BLE001 - the child may only end by _exit
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def settle(channel: int) -> None:
    """Prepare a new supervisor: a session of its own, with only the standard files and its channel open."""
    os.setsid()
    step_back()
    _prctl(_PR_SET_NAME, supervisor.NAME)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if channel != _UPWARDS:
        os.dup2(channel, _UPWARDS, inheritable=False)
    # /dev/null becomes the standard input of jobs; this also closes the channel of the launcher.
    os.dup2(os.open("/dev/null", os.O_RDWR), CHANNEL)
    os.closerange(_UPWARDS + 1, _MAX_FILES)


def step_back() -> None:
    """Give the scheduler priority for CPU time over this supervisor, by the autogroup of the session.

    With many short jobs the scheduler would otherwise fall behind, until supervisors have no runs and CPUs
    are idle. Jobs have sessions of their own, so they keep the normal weight.
    """
    try:
        with open("/proc/self/autogroup", "wb", buffering=0) as file:
            file.write(b"5")
    except OSError:
        return  # a kernel without autogroups, or one that refuses a second change so soon


def close_inherited() -> None:
    """Close all files but the three standard ones: a lock held here would outlive the scheduler."""
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
