"""The fork server: a small process that forks one supervisor per run it is asked to launch.

Run as a script, `python -I -S launcher.py`, with the channel to the scheduler as its standard input. Requests
come length-prefixed, one after the other, and are not answered: the files a supervisor writes are the answer.
When the channel ends the launcher ends; its supervisors live on. It holds no state, so killing it loses
nothing but requests that no supervisor has taken up, and those are sent again to the next launcher.
"""

import _ctypes
import gc
import marshal
import os
import sys

MYPY = False
if MYPY:
    import signal
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
PREFIX_BYTES = 4
_CHUNK_BYTES = 1 << 18
# What ctypes is made of, without its 3 ms of import.
_PRCTL = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
# Handled by waiting (supervisor) or not at all: a stray kill or a closed terminal must not end supervision.
_BLOCKED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    """Serve launch requests until the scheduler closes the channel or dies."""
    close_inherited()
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our supervisors
    _prctl(_PR_SET_NAME, b"vctl-launcher")
    gc.disable()  # a collection in a supervisor would copy every page it touches
    gc.freeze()
    boot_id = processes.boot_id()
    received = bytearray()
    while chunk := os.read(CHANNEL, _CHUNK_BYTES):
        received += chunk
        while len(received) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(received[:PREFIX_BYTES], "little")
            if len(received) < end:
                break
            request = bytes(received[PREFIX_BYTES:end])
            del received[:end]
            launch(request, boot_id)


def close_inherited() -> None:
    """Keep nothing but the three standard files: a lock held here would outlive the scheduler."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed the directory


def launch(request: bytes, boot_id: str) -> None:
    """Fork the supervisor of one run. When the kernel refuses, the run's exit record says so."""
    try:
        if os.fork() > 0:
            return
    except OSError as error:
        refused = supervisor.Supervisor(marshal.loads(request), boot_id)
        if refused.claim():
            refused.record_exit(126, launch_errno=error.errno or 0, message=f"cannot fork: {error.strerror}")
            os.close(refused.lock)
        return
    status = 70
    try:
        os.setsid()
        _prctl(_PR_SET_NAME, supervisor.NAME)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The job's standard input, inherited as it is; it also takes the channel away from us.
        os.dup2(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), CHANNEL)
        supervisor.Supervisor(marshal.loads(request), boot_id).run()
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may leave the child but by _exit
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _prctl(option: int, value: int | bytes) -> None:
    if _ctypes.call_function(_PRCTL, (option, value, 0, 0, 0)) != 0:
        raise OSError(f"prctl({option}) failed")


if __name__ == "__main__":
    main()
