"""Starts processes of users for a shared service, where the supervisor is root (decision 0031).

Whom it may become, and how, is decided by vctl/privileged, which knows nothing of runs. Here that meets the plan of a
run: its log, which root makes in a directory of root, and its directory and program, which the user opens.

Stand-alone, like processes.py. Loaded only by the launcher of a shared service.
"""

import errno
import os
import stat

MYPY = False
if MYPY or __package__:
    from vctl.privileged import accounts, child
    from vctl.runtime import logfile, spawning
else:
    import accounts
    import child
    import logfile
    import spawning

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_ANSWER = 8192
_LOGS, _STATE_LOGS, _OBJECTS = b"/logs", b"/logs", b"/jobs/objects"
_OBJECTS_VARIABLE = b"VCTL_OBJECT_DIR"
_SHARED_FOLDER = 0o2770  # a user's, in which the service may work, too: what is made there has its group


class Becoming:
    """A process that is becoming a program: its pid, the pipe that says when, and its log where that is bounded."""

    __slots__ = ("log", "pid", "pipe")

    def __init__(self, pid: int, pipe: int, log: int) -> None:
        self.pid, self.pipe, self.log = pid, pipe, log

    def is_over(self) -> bool:
        """Whether the program runs, or never will. Raises NotStarted then, with what the child has said."""
        if self.pipe < 0:
            return True
        try:
            words = os.read(self.pipe, _MAX_ANSWER)
        except BlockingIOError:
            return False
        os.close(self.pipe)
        self.pipe = -1
        if words:
            raise _unpacked(words)
        return True


class UserProcesses:
    """The shared service of a supervisor. ``state``: its state directory, ``home``: where root's directories are."""

    def __init__(self, state: bytes, home: bytes, uid: int, gid: int) -> None:
        self.state, self.home, self.gid = state, home, gid
        self.objects = home + _OBJECTS
        self.as_account = child.AsAccount(uid, gid)
        self.accounts = accounts.Accounts(uid, accounts.allowed_groups())

    def start(self, plan: spawning.Plan, uid: int, *, keeps_log: bool) -> Becoming:
        """Start a process of a user in a session of its own. Raises NotStarted."""
        argv, env, cwd, log_path, cpus = plan
        name = b"%d" % uid
        try:
            account = self.accounts.account(uid)
        except accounts.UserRefused as error:
            raise spawning.SpawnError(126, "cannot start a process of uid", name, error) from None
        except OSError as error:
            raise spawning.SpawnError(
                126, "cannot look up uid", name, error, passes=spawning.passes(error)
            ) from None
        if objects := env.get(_OBJECTS_VARIABLE):
            self._give(objects, account)
        log = self._open_log(log_path, account)
        try:
            env = {**env, **account.variables()}
            pid, pipe = child.start(
                account, log, (), _nothing, lambda: _packed((argv, env, cwd, log_path, cpus))
            )
        except OSError as error:
            os.close(log)
            raise spawning.SpawnError(
                126, "cannot fork for", argv[0] if argv else b"", error, passes=spawning.passes(error)
            ) from None
        if not keeps_log:
            os.close(log)
            log = -1
        return Becoming(pid, pipe, log)

    def _give(self, path: bytes, account: "accounts.UserAccount") -> None:
        """Give the user the directory for his objects, which the account has made. Raises SpawnError."""
        folder = -1
        try:
            if os.path.dirname(path) != self.objects:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            with self.as_account:
                folder = os.open(path, _FOLDER)
            owner = os.fstat(folder).st_uid
            if owner == self.as_account.uid:
                os.fchown(folder, account.uid, self.gid)
                os.fchmod(folder, _SHARED_FOLDER)
            elif owner != account.uid:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        except (OSError, ValueError) as error:
            problem = "cannot give the user his directory"
            raise spawning.SpawnError(126, problem, path, error, passes=spawning.passes(error)) from None
        finally:
            if folder >= 0:
                os.close(folder)

    def _open_log(self, path: bytes, account: "accounts.UserAccount") -> int:
        """Open a log in the directory of logs, which is root's, above the standard files. Raises SpawnError."""
        folder = -1
        try:
            above, name = os.path.split(path)
            if above != self.state + _STATE_LOGS or not name or name.startswith(b"."):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            folder = os.open(self.home + _LOGS, _FOLDER)
            info = os.fstat(folder)
            if info.st_uid != 0 or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            return logfile.open_for_writing(name, folder, (account.uid, self.gid))
        except (OSError, ValueError) as error:
            raise spawning.no_log(path, error) from None
        finally:
            if folder >= 0:
                os.close(folder)


def _nothing() -> None:
    return


def _packed(plan: spawning.Plan) -> bytes:
    """In the child: become the program; else the error as bytes."""
    error = spawning.become(plan)
    return b"%d %d %d %b" % (
        error.exit_code,
        error.errno,
        error.passes,
        str(error).encode(errors="surrogateescape"),
    )


def _unpacked(words: bytes) -> spawning.NotStarted:
    code, number, passes, message = words.split(b" ", 3)
    return spawning.NotStarted(
        int(code), int(number), message.decode(errors="surrogateescape"), passes=passes == b"1"
    )
