"""The keeper of a shared service: root's process, which starts all others, and starts again what has ended.

Run as a script, ``python -I -S keeper.py HOME SOCKET ACCOUNT``, by ``vctl daemon --shared``. It makes the places
(places.py), binds the socket, and starts two processes under the account: the scheduler and the server. Each has a
line to the keeper as its standard input, and the sockets that it answers at from descriptor 3 on. A process ends when
its line does, so both end with their keeper; jobs go on.

On a line come messages of JSON, one a packet, with at most one descriptor, which the keeper closes when it is done:

    ["launcher"]             start a launcher (root) whose channel the descriptor is; from the scheduler only
    ["remove log", NAME]     remove HOME/logs/NAME

Anything else is dropped. The keeper holds the sockets for as long as it lives, so what comes while the server is
started again waits. It opens no database and reads nothing that a user has written.
"""

import fcntl
import json
import os
import re
import select
import signal
import socket
import sys
import time

MYPY = False
if MYPY or __package__:
    from vctl.privileged import places
else:
    # Behind the standard library, whose names must win over those of this directory.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import places

SCHEDULER, SERVER, CHECK = "scheduler", "server", "check"
LINE, FIRST = 0, 3
"""In a process of the account: the descriptor of its line, and of the first socket that it answers at."""
MODULE = "vctl.cli.service"
"""The module that is the scheduler or the server, by the word behind it; or it checks that it can be."""
MAX_BYTES = 4096
MAX_LAUNCHERS = 16
"""The most launchers at a time: an account that was broken into must not fill the table of processes as root."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.log")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""The pause before a process is started again; it doubles with each one that has lived for less than the longest."""
END_S = 15.0
"""The time in which a process must end after SIGTERM."""
PARTING_S = 0.2
KEPT = ("LD_LIBRARY_PATH", "PATH", "TZ")
"""The variables that launcher and supervisors get."""
_LAUNCHER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runtime", "launcher.py"
)
_HIGH = 100
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NEW_FILE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def say(text: str) -> None:
    """Write a line to the log of the service."""
    try:
        sys.stderr.write(f"vctl keeper: {text}\n")
        sys.stderr.flush()
    except OSError:
        return  # nobody reads it: a full disk, or a terminal that was closed


class ServiceProcess:
    """One of the processes that run under the account."""

    def __init__(self, name: str, listening: "list[socket.socket]") -> None:
        self.name, self.listening = name, listening
        self.pid = 0
        self.line: socket.socket | None = None
        self.began = 0.0
        self.pause_s = FIRST_PAUSE_S
        self.due = 0.0
        """When it is to be started again."""


class ServiceKeeper:
    """The processes of one service."""

    def __init__(self, home: str, path: str, account: places.Account) -> None:
        self.home, self.path, self.account = home, path, account
        self.groups = os.getgrouplist(account.name, account.gid)
        self.launchers: set[int] = set()
        self.signalled = False
        self._ready, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _ENDING:
            signal.signal(number, self._end)
        self.logs = os.open(
            f"{home}/{places.LOGS}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        self.errors = os.open(f"{home}/{places.ERRORS}", _NEW_FILE, 0o600)
        os.dup2(_write_only(2), 2, inheritable=False)
        self.check()
        self.listening = places.bind(path)  # last, as commands use the service from now on
        self.words = places.bind(f"{os.path.dirname(path)}/{places.WORDS}", socket.SOCK_SEQPACKET)
        self.kept = [ServiceProcess(SCHEDULER, [self.words]), ServiceProcess(SERVER, [self.listening])]

    def _end(self, *_: object) -> None:
        self.signalled = True

    def serve(self) -> None:
        """Keep the processes running until a signal, then end them: the server first, which asks the scheduler."""
        while not self.signalled:
            for kept in self.kept:
                if not kept.pid and time.monotonic() >= kept.due:
                    self.start(kept)
            due = [kept.due for kept in self.kept if not kept.pid]
            self._wait(max(0.0, min(due) - time.monotonic()) if due else None)
        for kept in reversed(self.kept):
            self._send_away(kept)
        for listening in (self.listening, self.words):
            name = listening.getsockname()
            listening.close()
            os.unlink(name)

    def _wait(self, within_s: float | None) -> None:
        """Wait for messages and ends of processes, and handle them."""
        poll = select.poll()
        poll.register(self._ready, select.POLLIN)
        lines = {kept.line.fileno(): kept for kept in self.kept if kept.line is not None}
        for fd in lines:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(None if within_s is None else within_s * 1000):
            if fd == self._ready:
                os.read(fd, 512)
            else:
                self.hear(lines[fd])
        self._collect()

    # ---- the processes of the account ----

    def start(self, kept: ServiceProcess) -> None:
        """Start one of the kept processes."""
        try:
            kept.pid, kept.line = self._fork(kept.name, kept.listening)
        except OSError as error:
            say(f"cannot start the {kept.name}: {error.strerror}")
            self._later(kept)
            return
        kept.line.setblocking(False)  # noqa: FBT003
        kept.began = time.monotonic()

    def check(self) -> None:
        """See that the account can run the program. Raises Refused."""
        pid, line = self._fork(CHECK, [])
        _, status = os.waitpid(pid, 0)
        line.close()
        if status:
            raise places.Refused(
                f"the account {self.account.name} cannot run {sys.executable} -m {MODULE}, as said above",
                "install vctl with all it needs where every user can read it, such as in a venv in /opt/vctl",
                1,
            )

    def _fork(self, name: str, listening: "list[socket.socket]") -> "tuple[int, socket.socket]":
        """Start a process under the account; its pid and its line."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                if (pid := os.fork()) == 0:
                    self._become(name, theirs, listening)
            except OSError:
                ours.close()
                raise
        return pid, ours

    def _become(self, name: str, line: socket.socket, listening: "list[socket.socket]") -> None:
        """In the new process: give up root for good, and run the module. Never returns."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            os.chdir("/")
            os.umask(0o077)
            given = [line.fileno(), 2, 2, *(one.fileno() for one in listening)]
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in given]  # above all that dup2 writes over
            for fd, file in enumerate(high):
                os.dup2(file, fd)
            os.closerange(len(given), 1 << 20)
            os.setgroups(self.groups)
            os.setresgid(self.account.gid, self.account.gid, self.account.gid)
            os.setresuid(self.account.uid, self.account.uid, self.account.uid)
            if os.getresuid() != (self.account.uid,) * 3 or os.getresgid() != (self.account.gid,) * 3:
                raise PermissionError("the rights of root are still there")
            try:
                os.setresuid(0, 0, 0)
            except PermissionError:
                pass
            else:
                raise PermissionError("the rights of root can be had back")
            words = [sys.executable, "-P", "-m", MODULE, name, self.home, self.path]
            os.execve(words[0], words, {**os.environ, "HOME": f"{self.home}/{places.STATE}"})
        except BaseException as error:  # noqa: BLE001 - the child may only end by _exit
            say(f"cannot become the {name}: {error}")
        finally:
            os._exit(70)

    def _collect(self) -> None:
        """Note which processes have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.launchers.discard(pid)
            for kept in self.kept:
                if kept.pid == pid:
                    code = os.waitstatus_to_exitcode(status)
                    if not self.signalled:
                        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                        say(f"the {kept.name} ({pid}) ended {how}, and is started again")
                    self._later(kept)

    def _later(self, kept: ServiceProcess) -> None:
        """Let a process be started again after a pause."""
        if kept.line is not None:
            kept.line.close()
        now = time.monotonic()
        if kept.pid and now - kept.began > LONGEST_PAUSE_S:
            kept.pause_s = FIRST_PAUSE_S
        kept.pid, kept.line, kept.due = 0, None, now + kept.pause_s
        kept.pause_s = min(2 * kept.pause_s, LONGEST_PAUSE_S)

    def _send_away(self, kept: ServiceProcess) -> None:
        """End a process: by SIGTERM, and after a while by SIGKILL. Its messages are heard until then."""
        give_up, pid = time.monotonic() + END_S, kept.pid
        if pid:
            os.kill(pid, signal.SIGTERM)
        while kept.pid == pid and pid:
            if time.monotonic() > give_up:
                os.kill(pid, signal.SIGKILL)
            self._wait(PARTING_S)

    # ---- messages ----

    def hear(self, kept: ServiceProcess) -> None:
        """Carry out the next message of a process; one that is not as it has to be is dropped."""
        assert kept.line is not None
        try:
            body, given, flags, _ = socket.recv_fds(kept.line, MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            body, given, flags = b"", [], 0
        try:
            if not body:  # its end, which the kernel tells by a signal, too
                kept.line.close()
                kept.line = None
                return
            try:
                words = json.loads(body) if not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) else None
            except (ValueError, RecursionError):
                words = None
            if words == ["launcher"] and len(given) == 1 and kept.name == SCHEDULER:
                self._launch(given[0])
            elif name := _to_remove(words):
                self._remove(name)
            else:
                say(f"a message of the {kept.name} is none that the keeper knows, and was dropped")
        finally:
            for fd in given:
                os.close(fd)

    def _launch(self, channel: int) -> None:
        """Start a launcher."""
        if len(self.launchers) >= MAX_LAUNCHERS:
            say(f"no launcher was started: {MAX_LAUNCHERS} are running")
            return
        account = [str(self.account.uid), str(self.account.gid)]
        words = [sys.executable, "-I", "-S", _LAUNCHER, f"{self.home}/{places.STATE}", "--shared", self.home]
        files = [
            (os.POSIX_SPAWN_DUP2, channel, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, self.errors, 2),
        ]
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        try:
            pid = os.posix_spawn(sys.executable, [*words, *account], env, file_actions=files, setsid=True)
        except OSError as error:
            say(f"cannot start a launcher: {error.strerror}")
            return
        self.launchers.add(pid)

    def _remove(self, name: str) -> None:
        """Remove a log."""
        try:
            os.unlink(name, dir_fd=self.logs)
        except FileNotFoundError:
            return
        except OSError as error:
            say(f"cannot remove the log {name}: {error.strerror}")


def _to_remove(words: object) -> str:
    """The log that a message asks to remove, or nothing; a name has no slash, so it names nothing elsewhere."""
    if not isinstance(words, list) or len(words) != 2 or words[0] != "remove log":
        return ""
    return words[1] if isinstance(words[1], str) and NAME.fullmatch(words[1]) else ""


def _write_only(fd: int) -> int:
    """A descriptor of the same file that cannot be read: the account must not read what root types at a terminal."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # a socket, such as that of systemd's journal
        return os.dup(fd)


def ready() -> None:
    """Tell systemd that the service answers."""
    if address := os.environ.pop("NOTIFY_SOCKET", ""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.connect("\0" + address[1:] if address.startswith("@") else address)
            line.send(b"READY=1")


def main() -> int:
    """Keep a service; returns the exit code."""
    home, path, name = sys.argv[1:4]
    os.umask(0o022)
    os.chdir("/")
    try:
        account = places.account_of(name)
        places.prepare(home, account)
        held = places.lock(home)
        keeper = ServiceKeeper(home, path, account)
    except places.Refused as error:
        sys.stderr.write(f"Error: {error.problem}\nFix: {error.fix}\n")
        return error.code
    ready()
    say(f"{os.getpid()} serves users at {path}, in {home} as {account.name}")
    keeper.serve()
    say(f"{os.getpid()} ends; running jobs go on")
    os.close(held)
    return 0


if __name__ == "__main__":
    sys.exit(main())
