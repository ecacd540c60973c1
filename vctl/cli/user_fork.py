"""The forks of the command server of a shared service: each carries one command of a user out, under the account.

The user's process sends words and a few variables, and gets back what it is to write. It sends no descriptor, and no
path that it names is opened here: what needs a file, a terminal or a directory of the user, or waits, is answered with
NOT_HERE before it has begun, and the user's process carries it out itself, over HTTP. The kernel says who the user is;
verbs and rights are those of a request over HTTP.
"""

import fcntl
import gc
import io
import os
import re
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import Any

from vctl.cli import app
from vctl.cli.call import Call
from vctl.cli.command_client import EXIT_CODE, NOT_HERE, PART, TO_SERVICE, TO_STDERR, TO_STDOUT, stamp
from vctl.cli.declare import Command
from vctl.config import Config, load
from vctl.core.caller import Caller
from vctl.core.identity import Identity
from vctl.errors import NotPermitted, VctlError
from vctl.operations.declare import Context, Local, Operation, P, R
from vctl.operations.jobs import OURS
from vctl.ops import logs, privacy
from vctl.ops.background import KeptScheduler
from vctl.ops.users import Users, peer_of
from vctl.spec import source
from vctl.spec.params import NOT_GIVEN
from vctl.store.store import Store

MAX_BYTES = 1 << 18
MESSAGE_S = 2.0
"""The time in which a user's process must send its command."""
_NUMBER_BYTES = 4
_TAKEN, _YES, _NO = b"-", b"y", b"n"
_ZONE = re.compile(rb"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
"""A name of a time zone: TZ could also name a file, which the C library would open."""
_PLACES = ("file", "dir")
_OF_THE_PROCESS = ("config show", "config path")
"""Commands about the settings of the user's process."""


class UserForks:
    """What the forks of a shared service do, and how many of them one user may have."""

    MOST, MOST_OF_ONE = 48, 8

    def __init__(self, home: str, address: str) -> None:
        self.home, self.address = Path(home), address
        self._users = Users()
        self._config = load(cwd="/", flags={"home": home, "autostart": False})
        self._mine = stamp()
        self._of_user: Counter[int] = Counter()
        self._admitted: dict[int, int] = {}

    # ---- in the server ----

    def admit(self, line: socket) -> None:
        """Say whether a fork that has been taken may go on, by the number of forks of its user."""
        uid = int.from_bytes(line.recv(_NUMBER_BYTES), "little")
        if may := self._of_user[uid] < self.MOST_OF_ONE:
            self._of_user[uid] += 1
            self._admitted[line.fileno()] = uid
        with suppress(OSError):
            line.send(_YES if may else _NO)

    def ended(self, line: socket) -> None:
        """A fork has ended."""
        if (uid := self._admitted.pop(line.fileno(), None)) is not None:
            self._of_user[uid] -= 1
            if not self._of_user[uid]:
                del self._of_user[uid]

    # ---- in a fork ----

    def work(self, listening: socket, line: socket, life: int) -> None:
        """Take one command, and carry it out; never returns."""
        try:
            gc.disable()
            poll = select.poll()
            poll.register(listening, select.POLLIN)
            for end in (life, line):
                poll.register(end, 0)
            while [event for _, event in poll.poll()] == [select.POLLIN]:
                with suppress(BlockingIOError):
                    asks, _ = listening.accept()
                    listening.close()
                    self._serve(asks, line)
                    return
        except (NotPermitted, OSError):
            return  # the user's process goes on over HTTP, which says why; or it has ended
        except BaseException as error:  # noqa: BLE001 - nothing may leave a fork but by _exit
            os.write(2, f"a command of a user failed: {type(error).__name__}\n".encode())
        finally:
            os._exit(0)

    def _serve(self, asks: socket, line: socket) -> None:
        peer = peer_of(asks)
        line.send(_TAKEN + peer.uid.to_bytes(_NUMBER_BYTES, "little"))
        if line.recv(1) != _YES:
            return
        asks.settimeout(MESSAGE_S)
        asks.send(b"%d %s" % (os.getpid(), self._mine))
        message = asks.recv(MAX_BYTES + 1)
        if not message or len(message) > MAX_BYTES:
            return
        asks.settimeout(None)
        fork = UserFork(asks, message, self._users.identity(peer), self._config, self.address)
        asks.send(EXIT_CODE + b"%d" % fork.carry_out())


class UserFork:
    """One command of a user, as ``vctl.cli.app`` carries it out."""

    def __init__(
        self, asks: socket, message: bytes, identity: Identity, config: Config, address: str
    ) -> None:
        self._asks, self._identity, self._config, self._address = asks, identity, config, address
        head, folder, *rest = message.split(b"\0")
        to_terminal, errors_to_terminal, width, height, count = map(int, head.split())
        size = width, height
        self.words = [os.fsdecode(word) for word in rest[:count]]
        pairs = [pair.partition(b"=") for pair in rest[count:]]
        self._own = {name: text for name, _, text in pairs if name in TO_SERVICE}
        self.folder = os.fsdecode(folder)
        self.environment = {os.fsdecode(name): os.fsdecode(text) for name, _, text in pairs}
        self._out = SentText(asks, TO_STDOUT, size if to_terminal else None)
        self._err = SentText(asks, TO_STDERR, size if errors_to_terminal else None)
        self._store: Store | None = None

    def carry_out(self) -> int:
        """The exit code, or NOT_HERE."""
        zone = self._own.get(b"TZ")
        if (zone and not _ZONE.fullmatch(zone)) or self.words[:1] == ["__complete"]:
            return NOT_HERE
        end_with(self._asks)
        os.environb.clear()
        os.environb.update(
            {**self._own, b"VCTL_ADDRESS": os.fsencode(self._address), b"HOME": b"/nonexistent"}
        )
        time.tzset()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        source.read_here = False
        sys.stdin, sys.stdout, sys.stderr = NoInput(), self._out, self._err
        logs.write_out = self._out.write_out
        try:
            code = app.run(self.words, self)
            sys.stdout.flush()
            sys.stderr.flush()
        except source.NotReadHere:
            if self._store is not None and self._store.effect:
                raise
            return NOT_HERE
        return code

    def takes(self, call: Call, values: Mapping[str, Any], *, lasts: bool, waits: bool) -> bool:
        """Whether it carries a command out with these values of its options."""
        if lasts or waits or call.command.path in _OF_THE_PROCESS or names_a_place(call.command, values):
            return False
        if call.config.origins["home"] != "default":
            return False
        call.act_on(UsersBackend(self, self._config))
        return True

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The state, for the user."""
        if self._store is None:
            wait_s = self._config.get("lock_timeout")
            store = Store.open(self._config.home(), create=False, lock_timeout_s=wait_s)
            store.caller, store.identity, store.address = Caller.of(os.environ), self._identity, self._address
            store.local_node = self._config.local_node
            self._store = KeptScheduler(self._config).attend(store)
        try:
            yield self._store
        except VctlError as error:
            privacy.veil_error(self._store, error)
            raise


def names_a_place(command: Command, values: Mapping[str, Any]) -> bool:
    """Whether an option names a file, a directory, or a variable of the user's process."""
    given = [(param, values[param.name]) for param in command.params if values.get(param.name) is not None]
    if any(param.info.complete in _PLACES or param.name == "runtime_env_json" for param, _ in given):
        return True
    return any(param.name == "env" and any("=" not in pair for pair in value) for param, value in given)


class UsersBackend(Local):
    """Carries verbs out for a user as the server does, with the directory and the variables of his process."""

    def __init__(self, fork: UserFork, config: Config) -> None:
        super().__init__(config, fork.opened, KeptScheduler(config))
        self._fork = fork

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out one verb."""
        operation.check(args, kwargs)
        fork, values = self._fork, operation.by_name(args, kwargs)
        of_process: dict[str, Any] = {
            "cwd": fork.folder,
            "environment": {name: text for name, text in fork.environment.items() if name not in OURS},
        }
        for param in operation.params:
            takes = (
                param.name in of_process and param.default is not NOT_GIVEN
            )  # a change leaves both as they are
            if takes and values.get(param.name) is None:
                values[param.name] = of_process[param.name]
        with fork.opened() as store:
            context = Context(store, self.config, lambda given: given or {})
            return operation.at(context, **values)  # type: ignore[call-arg, arg-type]  # those of the call, by name


class NoInput(io.StringIO):
    """The standard input of the user, which only his own process reads."""

    @property
    def buffer(self) -> io.BytesIO:
        """Nothing."""
        raise source.NotReadHere

    def read(self, _: int | None = None, /) -> str:
        """Nothing."""
        raise source.NotReadHere


class _Sender(io.RawIOBase):
    """Sends what is written to the user's process."""

    def __init__(self, line: socket, kind: bytes) -> None:
        self._line, self._kind = line, kind

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        part = bytes(memoryview(data)[:PART])
        self._line.send(self._kind + part)
        return len(part)


class SentText(io.TextIOWrapper):
    """The standard output or error of a user's process; ``size``: of its terminal."""

    def __init__(self, line: socket, kind: bytes, size: tuple[int, int] | None) -> None:
        is_lined = size is not None or kind == TO_STDERR
        buffer = io.BufferedWriter(_Sender(line, kind))
        super().__init__(buffer, "utf-8", "backslashreplace", line_buffering=is_lined)
        self.size = size

    def isatty(self) -> bool:
        """Whether it is a terminal there."""
        return self.size is not None

    def write_out(self, data: bytes) -> None:
        """Write bytes of a log."""
        self.buffer.write(data)
        self.buffer.flush()


def end_with(line: socket) -> None:
    """Let the kernel kill this process as soon as the client has ended, whatever is going on here.

    By SIGKILL, because one that is suspended gets no other signal.
    """
    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(line, 0)
    if poll.poll(0):  # it ended before that
        os.kill(os.getpid(), signal.SIGKILL)
