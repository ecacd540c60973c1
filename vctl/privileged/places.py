"""The places of a shared service on the disk, and the account that it runs under.

``HOME`` and what is directly in it belongs to root, so that nobody else can rename or replace it; only ``HOME/state``
and ``HOME/jobs`` are the account's. What exists already is not changed: it is refused unless it is as it would be made.
"""

import fcntl
import grp
import os
import pwd
import socket
import stat

MYPY = False
if MYPY:
    from typing import NamedTuple

    class Account(NamedTuple):
        """The account that a service runs under."""

        name: str
        uid: int
        gid: int

else:
    from collections import namedtuple

    Account = namedtuple("Account", "name uid gid")

HOME, SOCKET, ACCOUNT = "/var/lib/vctl", "/run/vctl/vctl.sock", "vctl"
WORDS = "words.sock"
"""The socket beside the first one, at which the service takes the words of commands."""
STATE, LOGS, JOBS, LOCK, ERRORS = "state", "logs", "jobs", "keeper.lock", "launcher.log"
MAKE_ACCOUNT = "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin"
NO_ACCOUNT = 4
"""The exit code where there is no account."""
BACKLOG = 2048
"""The most connections that wait until the server accepts them, also while it is started again."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Refused(Exception):
    """A place that is not as it has to be, and how to correct it; ``code``: the exit code."""

    def __init__(self, problem: str, fix: str, code: int = 8) -> None:
        super().__init__(problem)
        self.problem, self.fix, self.code = problem, fix, code


def account_of(name: str) -> Account:
    """The account of a service."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise Refused(
            f"there is no account {name!r} for the service to run under",
            f"{MAKE_ACCOUNT} {name}",
            NO_ACCOUNT,
        ) from None
    if entry.pw_uid == 0 or entry.pw_gid == 0:
        raise Refused(
            f"the service does not run under {name}, which has rights of root",
            "name an account of its own with --account",
        )
    return Account(name, entry.pw_uid, entry.pw_gid)


def prepare(home: str, account: Account) -> None:
    """Make the directories of a service that are missing, and check those that exist. Raises Refused."""
    check_above(home)
    _folder(home, 0, 0, 0o755)
    _folder(f"{home}/{STATE}", account.uid, account.gid, 0o700)
    _folder(f"{home}/{LOGS}", 0, account.gid, 0o750)
    _folder(f"{home}/{JOBS}", account.uid, account.gid, 0o711)


def check_above(path: str) -> None:
    """Refuse a path that somebody but root could replace: above it are directories of root that only root writes to."""
    above = os.path.dirname(path)
    os.makedirs(above, mode=0o755, exist_ok=True)
    if os.path.realpath(above) != above:
        raise Refused(
            f"{path}: the path has a symbolic link in it",
            f"write {os.path.realpath(above)}/{os.path.basename(path)}",
        )
    folder = above
    while True:
        info = os.lstat(folder)
        if info.st_uid != 0 or (info.st_mode & _OTHERS and not info.st_mode & stat.S_ISVTX):
            raise Refused(
                f"{path}: others than root may rename what is in {folder}",
                f"chown root {folder}; chmod go-w {folder}; or choose another directory",
            )
        if folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


def _folder(path: str, uid: int, gid: int, mode: int) -> None:
    """Make a directory, or check that it is as it would be made."""
    try:
        os.mkdir(path, 0o700)
        made = True
    except FileExistsError:
        made = False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{path} is no directory ({error.strerror})", "move it away, and start again") from None
    try:
        if made:
            os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            return
        info = os.fstat(fd)
    finally:
        os.close(fd)
    if (info.st_uid, info.st_gid) != (uid, gid):
        raise Refused(
            f"{path} belongs to {_names(info.st_uid, info.st_gid)}, not to {_names(uid, gid)}",
            f"if all of it is the service's: chown {_names(uid, gid)} {path}; else choose another --home",
        )
    if stat.S_IMODE(info.st_mode) != mode:
        raise Refused(
            f"{path} has mode {stat.S_IMODE(info.st_mode):04o}, not {mode:04o}",
            f"look at what others may have put there, then: chmod {mode:04o} {path}",
        )


def _names(uid: int, gid: int) -> str:
    """An owner and a group as ``chown`` takes them."""
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    try:
        return f"{owner}:{grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"{owner}:{gid}"


def lock(home: str) -> int:
    """Be the only keeper of a service, until the descriptor is closed. Raises Refused."""
    fd = os.open(f"{home}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise Refused(
            f"a service is running already in {home} (pid {pid})", "use that one, or stop it first", 5
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def bind(path: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A listening socket to which every user can connect. Raises Refused."""
    check_above(path)
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISSOCK(info.st_mode) or info.st_uid != 0:
            raise Refused(f"{path} exists, and is no socket of root", "remove it, or choose another --socket")
        with socket.socket(socket.AF_UNIX, kind) as probe:
            if probe.connect_ex(path) == 0:
                raise Refused(f"a server answers at {path} already", "choose another --socket", 5)
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o111)
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        problem = "the path is too long" if error.errno is None else error.strerror
        raise Refused(f"cannot listen at {path}: {problem}", "choose another --socket", 5) from None
    finally:
        os.umask(before)
    return listening
