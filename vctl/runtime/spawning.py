"""Starts one process exactly as requested; an error has a shell's exit code, the system's reason, and a remedy.

Stand-alone, like processes.py: runs in a supervisor, a fork of the launcher. Knows nothing of runs and
records.
"""

import errno
import os

MYPY = False
if MYPY or __package__:
    from vctl.runtime import logfile
else:
    import logfile

if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py

# argv, env, working directory, log path, cpu ids
Plan = tuple[tuple[bytes, ...], dict[bytes, bytes], bytes, bytes, tuple[int, ...] | None]

_PASSING = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOBUFS,
)  # fmt: skip
_DEFAULT_PATH = os.fsencode(os.defpath)
# Python ignores SIGPIPE and SIGXFSZ. The others are listed because posix_spawn of glibc makes a system call
# to query the action of each signal that is not.
_RESET = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class NotStarted(Exception):
    """The process could not be started: a shell's exit code, errno, and a message. ``passes``: see ``passes``."""

    def __init__(self, exit_code: int, number: int, words: str, *, passes: bool = False) -> None:
        super().__init__(words)
        self.exit_code, self.errno, self.passes = exit_code, number, passes


class SpawnError(NotStarted):
    """What was to be done, with which path, and what the system said."""

    def __init__(
        self,
        exit_code: int,
        problem: str,
        path: bytes,
        error: OSError | ValueError,
        remedy: str = "",
        *,
        passes: bool = False,
    ) -> None:
        number = getattr(error, "errno", None) or errno.EINVAL
        reason = os.strerror(number) if isinstance(error, OSError) else str(error)
        if number == errno.EAGAIN:
            reason = f"{reason} (a limit of processes is reached)"
        words = f"{problem} {os.fsdecode(path)}: {reason}{remedy}"
        super().__init__(exit_code, number, words, passes=passes)


def spawn(plan: Plan, home: bytes) -> int:
    """Start the process in a session of its own by vfork and exec; its pid. Raises SpawnError.

    The process inherits the limits and the standard input of the caller. The CPUs are set in the caller, who
    has to restore its own.
    """
    argv, env, cwd, log_path, cpu_ids = plan
    if not argv or not argv[0]:
        raise _no_command(cwd)
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        raise _no_directory(cwd, error) from None
    log = -1
    try:
        try:
            log = _open_log(log_path, home)
        except (OSError, ValueError) as error:
            raise no_log(log_path, error) from None
        if cpu_ids is not None:
            try:
                os.sched_setaffinity(0, cpu_ids)
            except (OSError, ValueError) as error:
                raise _no_cpus(cpu_ids, argv, error) from None
        return _started(argv, env, cwd, log)
    finally:
        if log >= 0:
            os.close(log)
        _leave()


def _leave() -> None:
    """Keep no directory or mount in use that the job has left."""
    try:
        os.chdir(b"/")
    except OSError:
        return  # no memory: the next start leaves it; the process of this one runs


def foreseen(argv: tuple[bytes, ...], env: dict[bytes, bytes], cwd: bytes) -> SpawnError | None:
    """The error with which a start would fail as files are now, as far as a look at them tells; starts nothing."""
    try:
        os.stat(os.path.join(cwd, b"."))
    except OSError as error:
        return _no_directory(cwd, error)
    path = _find(argv[0], env, cwd)
    file = os.path.join(cwd, path)
    try:
        os.stat(file)
        if not _is_program(file):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if interpreter := _interpreter(file):
            os.stat(os.path.join(cwd, interpreter))
    except OSError as error:
        return _not_started(argv, path, cwd, error)
    return None


def _interpreter(file: bytes) -> bytes | None:
    """The program that the first line of a script names; None for other files."""
    try:
        with open(file, "rb") as stream:
            first = stream.read(256).partition(b"\n")[0]
    except OSError:  # it may be executed, but not read
        return None
    words = first[2:].split()
    return words[0] if first.startswith(b"#!") and words else None


def _no_command(cwd: bytes) -> SpawnError:
    return SpawnError(127, "cannot run an empty command in", cwd, FileNotFoundError(errno.ENOENT, ""))


def no_log(path: bytes, error: OSError | ValueError) -> SpawnError:
    """The error of a log that cannot be opened."""
    return SpawnError(126, "cannot open log", path, error, passes=passes(error))


def _no_cpus(cpu_ids: tuple[int, ...], argv: tuple[bytes, ...], error: OSError | ValueError) -> SpawnError:
    return SpawnError(126, f"cannot set CPUs {cpu_ids} for", argv[0], error, passes=passes(error))


def _no_directory(cwd: bytes, error: OSError | ValueError) -> SpawnError:
    return SpawnError(126, "cannot enter directory", cwd, error, passes=passes(error))


def _not_started(argv: tuple[bytes, ...], path: bytes, cwd: bytes, error: OSError | ValueError) -> SpawnError:
    file = os.path.join(cwd, path)
    missing = isinstance(error, FileNotFoundError)
    no_interpreter = missing and os.path.exists(file)
    problem = "cannot find the interpreter of" if no_interpreter else "cannot run"
    remedy = "" if no_interpreter else _remedy(argv, file, getattr(error, "errno", None))
    return SpawnError(127 if missing else 126, problem, path, error, remedy, passes=passes(error))


def _remedy(argv: tuple[bytes, ...], file: bytes, number: int | None) -> str:
    """What to write instead, for what people write most often."""
    name = os.fsdecode(argv[0])
    runner = {b".py": "python", b".sh": "sh"}.get(os.path.splitext(argv[0])[1])
    if number == errno.ENOENT:
        if b"--" in argv[1:]:
            return "; it stands before --: put a value with blanks in quotes"
        return f"; to set a variable, write env {name} before the command" if "=" in name else ""
    if number not in (errno.EACCES, errno.ENOEXEC):
        return ""
    if os.path.isdir(file):
        return "; it is a directory"
    if not os.path.isfile(file):
        return ""
    if runner:
        return f"; write {runner} {name}"
    return f"; make it executable: chmod +x {name}" if number == errno.EACCES else ""


def become(plan: Plan) -> NotStarted:
    """Enter the directory and become the program (exec), with the rights that this process has; why that failed."""
    argv, env, cwd, _, cpu_ids = plan
    if not argv or not argv[0]:
        return _no_command(cwd)
    if cpu_ids is not None:
        try:
            os.sched_setaffinity(0, cpu_ids)
        except (OSError, ValueError) as error:
            return _no_cpus(cpu_ids, argv, error)
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        return _no_directory(cwd, error)
    path = argv[0]
    try:
        path = _find(path, env, cwd)
        os.execve(path, argv, env)
    except (OSError, ValueError) as error:
        return _not_started(argv, path, cwd, error)


def _started(argv: tuple[bytes, ...], env: dict[bytes, bytes], cwd: bytes, log: int) -> int:
    path = argv[0]
    to_log = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    try:
        path = _find(path, env, cwd)
        # Without the resets, the process would inherit ignored and blocked signals, SIGTERM among them.
        return os.posix_spawn(
            path, argv, env, file_actions=to_log, setsid=True, setsigmask=(), setsigdef=_RESET
        )
    except (OSError, ValueError) as error:
        raise _not_started(argv, path, cwd, error) from None


def passes(error: BaseException) -> bool:
    """Whether an error may pass: a full disk, an I/O error, or no process, memory or open file left."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _PASSING)


def make_folder(folder: bytes, home: bytes) -> bool:
    """Make a removed subdirectory of the state directory again; whether it exists now.

    False if ``folder`` is not directly in the state directory, or if the state directory itself is gone.
    """
    if os.path.dirname(folder) != home:
        return False
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return True
    except FileNotFoundError:
        return False
    return True


def _open_log(path: bytes, home: bytes) -> int:
    try:
        return logfile.open_for_writing(path)
    except FileNotFoundError:
        if not make_folder(os.path.dirname(path), home):
            raise
        return logfile.open_for_writing(path)


def log_path(plan: Plan) -> bytes:
    """The path of the file for the output of a process."""
    return plan[3]


def _find(name: bytes, env: dict[bytes, bytes], cwd: bytes) -> bytes:
    """The path of a command on the job's own PATH, from its directory; a name with a slash is returned unchanged.

    If no directory has an executable file of this name, the first other file of this name, else the name.
    """
    if b"/" in name or not name:
        return name
    places = env.get(b"PATH", _DEFAULT_PATH).split(b":")
    for part in places:
        path = (part or b".") + b"/" + name
        if _is_program(path if path.startswith(b"/") else cwd + b"/" + path):
            return path
    paths = [(part or b".") + b"/" + name for part in places]
    return next((path for path in paths if os.path.isfile(os.path.join(cwd, path))), name)


def _is_program(file: bytes) -> bool:
    return os.access(file, os.X_OK) and not os.access(file + b"/", os.F_OK)
