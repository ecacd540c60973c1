"""Where verbs are carried out: on the tables of a state directory, or by a server that is asked."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from vctl import operations, ops
from vctl.operations.declare import Here, Operation, P, R

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.operations.connection import Connection
    from vctl.store.store import Store


class Local:
    """The tables of a state directory; ``opened`` gives them for one call."""

    def __init__(self, config: "Config", opened: Callable[[], "AbstractContextManager[Store]"]) -> None:
        self.config = config
        self._opened = opened

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out one verb here."""
        with self._opened() as store:
            return operation.run(Here(store, self.config), *args, **kwargs)

    def log(self, kind: str, ref: str, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """From the file."""
        with self._opened() as store:
            path = (ops.jobs.log_path if kind == "jobs" else ops.tasks.log_path)(store, ref)
        return ops.logs.read_log(path, offset=offset, tail=tail)


class Remote:
    """A server; ``connected`` gives the connection for one call."""

    def __init__(self, connected: Callable[[], "AbstractContextManager[Connection]"]) -> None:
        self._connected = connected

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Have a server carry out one verb."""
        given = operation.given(args, kwargs)
        path = operations.connection.at(
            *(str(next(given)[1]) if "{" in part else part for part in operation.path.split("/")[1:])
        )
        rest = {param.wire: value for param, value in given}
        with self._connected() as server:
            return operation.reply(server.ask(operation.method, path, rest, in_query=operation.in_query))

    def log(self, kind: str, ref: str, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """From the server."""
        with self._connected() as server:
            yield from server.stream(operations.connection.at(kind, ref, "logs"), offset=offset, tail=tail)
