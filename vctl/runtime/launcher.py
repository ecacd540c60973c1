"""The fork server: a small process that forks supervisors.

Run as a script, `python -I -S launcher.py`, with the channel to the scheduler as its standard input. Each message is
the number of a supervisor and, as a file descriptor, its line to the scheduler; the supervisor is forked and gets its
requests on that line. A fork of Python costs more than all that a supervisor does for a short job, so a supervisor
carries out many runs, and the launcher has no part in them.

When the channel ends the launcher ends; supervisors end when they have nothing to do and their line ends. Killing the
launcher loses nothing: the scheduler sees the lines that were on their way close, and sends them to the next one.
"""

import _ctypes
import _socket  # the public module builds enums at import
import gc
import marshal
import os
import resource  # noqa: F401 - os.wait4 needs it, and each supervisor would import it for itself
import sys

MYPY = False
if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py

if MYPY or __package__:
    from vctl.runtime import gate, lines, processes, supervisor
else:
    # Behind the standard library, whose names must win over those of this directory.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import gate
    import lines
    import processes
    import supervisor

CHANNEL = 0
NUMBER_BYTES = 8
_MOST_FILES = 1 << 20
_REHEARSALS = 12  # Python changes a function when it is called for the 9th time
_LONGEST_REHEARSAL_S = 0.5
_FD_BYTES = 4
# What ctypes is made of, without its 3 ms of import.
_PRCTL = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
# Handled by waiting (supervisor) or not at all: a stray kill or a closed terminal must not end supervision.
_BLOCKED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A look-up in a module writes to memory that a supervisor shares with the launcher until then.
_setsid, _dup2, _close_range, _signal = os.setsid, os.dup2, os.closerange, signal.signal
_SIGCHLD, _DEFAULT, _NAME = signal.SIGCHLD, signal.SIG_DFL, supervisor.NAME
_LINE, _GATE = supervisor.LINE, supervisor.GATE
_live = supervisor.live
_call = _ctypes.call_function
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    """Fork supervisors until the scheduler closes the channel or dies."""
    close_inherited()
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *_IGNORED_BY_PYTHON}:
        signal.signal(number, signal.SIG_DFL)  # what a job's process gets, whatever the scheduler ignored
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our supervisors
    home, boot = os.fsencode(sys.argv[1]), processes.boot_id().encode()
    starts = gate.made(supervisor.GATE)
    os.dup2(
        os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), _LINE
    )  # so no line gets this number here: see settle()
    rehearse(home, boot, starts)
    _close_range(_GATE + 1, _MOST_FILES)
    _prctl(_PR_SET_NAME, b"vctl-launcher")
    gc.disable()  # a collection in a supervisor would copy every page it touches
    gc.freeze()
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, CHANNEL)
    capacity = _socket.CMSG_SPACE(_FD_BYTES)
    while True:
        message, handed, _, _ = channel.recvmsg(NUMBER_BYTES, capacity)
        if not message:
            return
        for _, _, data in handed:
            line = int.from_bytes(data[:_FD_BYTES], sys.byteorder)
            fork(home, int.from_bytes(message, "little"), boot, line, starts)


def fork(home: bytes, number: int, boot: bytes, line: int, starts: gate.Gate) -> None:
    """Fork a supervisor with a number and a line. When the kernel refuses, the record of its run says so."""
    try:
        child = os.fork()
    except OSError as error:
        refuse(home, number, boot, line, starts, error)
        return
    if child:
        os.close(line)
        return
    status = 70
    try:
        settle(line)
        _live(home, number, boot, _LINE, starts)
        status = 0
    except BaseException as error:  # noqa: BLE001 - nothing may leave the child but by _exit
        if not supervisor.is_disk_trouble(error):  # the scheduler sends the request again while that lasts
            sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def settle(line: int) -> None:
    """In a new supervisor: a session of its own, nothing inherited but the standard files, its line and the gate."""
    _setsid()
    _prctl(_PR_SET_NAME, _NAME)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _signal(_SIGCHLD, _DEFAULT)
    # /dev/null is the job's standard input, inherited as it is; it also takes the channel away from us.
    _dup2(_LINE, CHANNEL)
    _dup2(line, _LINE, False)  # noqa: FBT003
    _close_range(_GATE + 1, _MOST_FILES)


def rehearse(home: bytes, boot: bytes, starts: gate.Gate) -> None:
    """Carry out runs that start nothing, so that supervisors find done what Python does at the first uses of code.

    Python replaces instructions by faster ones, and remembers where it found names, in memory that a supervisor shares
    with the launcher until one of them writes to it. What is written here is not written by each supervisor: that
    nearly halves what each has of its own.
    """
    signal.signal(signal.SIGALRM, _give_up)  # a supervisor waits as long as a disk is full
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_REHEARSAL_S, _LONGEST_REHEARSAL_S)
    place = home + b"/rehearsal"
    folders, record = (place, place + b"/records"), place + b"/records/0"
    logs = [b"%b/%d" % (place, number) for number in range(_REHEARSALS)]
    try:
        try:
            for folder in folders:
                os.mkdir(folder, 0o700)
            os.close(os.open(record, os.O_WRONLY | os.O_CREAT, 0o600))
            for log in logs:
                _rehearse_once(place, boot, starts, log)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # inside: the alarm may come until then
    except (OSError, lines.Busy):
        pass  # a full disk, or another launcher does the same: all works without it, in more memory
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for remove, paths in ((os.unlink, (record, *logs)), (os.rmdir, folders[::-1])):
        for path in paths:
            try:
                remove(path)
            except OSError:
                continue


def _give_up(_number: int, _frame: object) -> None:
    raise TimeoutError


def _rehearse_once(place: bytes, boot: bytes, starts: gate.Gate, log: bytes) -> None:
    """A run whose command cannot be passed on to the kernel, and the wait for one that has ended at once."""
    request = marshal.dumps(
        (os.path.basename(log), 0, 0, ((b"sh", b"\0"), {}, b"/", log, None, 0), b"", marshal.dumps({}))
    )
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    line = theirs.fileno()
    ours.send(len(request).to_bytes(supervisor.PREFIX_BYTES, "little") + request)
    ours.shutdown(_socket.SHUT_WR)
    _live(place, 0, boot, line, starts)
    own = supervisor.Supervisor(place, 0, boot, line, starts)
    run = supervisor.Supervision(own, marshal.loads(request))
    run.unwritten = lines.line(lines.STARTED, run.name, b"0 0 0")
    run.record_start()
    os.kill(os.getpid(), supervisor.STOP_SIGNAL)  # is blocked: it ends the wait
    run.wait()
    ours.close()
    theirs.close()


def refuse(home: bytes, number: int, boot: bytes, line: int, starts: gate.Gate, cause: OSError) -> None:
    """The kernel refuses another process: say so in the record of the run that waits on the line."""
    try:
        own = supervisor.Supervisor(home, number, boot, line, starts)
    except (OSError, lines.Busy):
        os.close(line)  # the scheduler tries again
        return
    try:
        request = own.next_request()
        run = supervisor.Supervision(own, marshal.loads(request)) if request else None
        if run is not None and own.take_now(run.name):
            run.record_end(126, launch_errno=cause.errno or 0, why=f"cannot fork: {cause.strerror}")
    except OSError as error:
        if not supervisor.is_disk_trouble(error):
            raise
    finally:
        own.file.close()
        os.close(line)


def close_inherited() -> None:
    """Keep nothing but the three standard files: a lock held here would outlive the scheduler."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed the directory


def _prctl(option: int, value: int | bytes) -> None:
    if _call(_PRCTL, (option, value, 0, 0, 0)) != 0:
        raise OSError(f"prctl({option}) failed")


if __name__ == "__main__":
    main()
