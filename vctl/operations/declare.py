"""Declarations of verbs, and the two backends that carry verbs out: a state directory, or a server.

A verb is one function; each parameter carries its option, help text and limits. The command line, the HTTP
routes, the calls of a remote client and the Python API read this declaration. The implementation is imported
only when the function runs, so a declaration is cheap.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from vctl import operations, ops, spec
from vctl.errors import VctlError, known
from vctl.spec.params import NOT_GIVEN, PARAMETERS, Fields, Param, params_of, positions_of

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.operations.connection import Connection
    from vctl.ops.background import Background
    from vctl.ops.waiting import Kind, Watched
    from vctl.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")


class Context:
    """The state directory on which a verb is carried out, and the settings."""

    def __init__(
        self,
        store: "Store",
        config: "Config",
        surroundings: Callable[[Mapping[str, str] | None], Mapping[str, str]] | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self._surroundings = surroundings

    def surroundings(self, environment: Mapping[str, str] | None) -> Mapping[str, str]:
        """The environment of the submitter: the given one, else that of this process."""
        if self._surroundings is not None:
            return self._surroundings(environment)
        return os.environ if environment is None else environment

    @property
    def units(self) -> frozenset[str]:
        """Resources that consist of numbered instances."""
        units: frozenset[str] = self.config.get("unit_resources")
        return units

    @overload
    def amounts(self, document: None, path: str, *, totals: bool = False) -> None: ...
    @overload
    def amounts(self, document: Mapping[str, Any], path: str, *, totals: bool = False) -> dict[str, int]: ...
    def amounts(self, document: object, path: str, *, totals: bool = False) -> dict[str, int] | None:
        """Read a resource map; None stays None."""
        if document is None:
            return None
        return spec.quantities.parse_resources(document, path, self.units, totals=totals)


class Backend(Protocol):
    """Carries verbs out: on a state directory, or at a server."""

    def call(self, operation: "Operation[P, R]", /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out one verb."""

    def log(self, kind: "Kind", ref: str, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """The present output of a job or task: from byte ``offset`` on, or its last ``tail`` lines."""

    def wait(self, kind: "Kind", ref: str, timeout_s: float | None = None) -> "Watched":
        """Wait until a job, a task or a cluster is over, at most ``timeout_s``; starts a scheduler if none runs."""

    def follow(
        self, kind: "Kind", ref: str, *, offset: int = 0, every_s: float | None = None
    ) -> Iterator[bytes]:
        """The output of a job or task from byte ``offset`` on, as it is written, until that is over.

        ``every_s``: after so many seconds without output comes an empty block.
        """


class Operation(Generic[P, R]):
    """One verb. ``drain(backend, "n1", reason="disk")`` carries it out."""

    def __init__(
        self,
        run: Callable[Concatenate[Context, P], R],
        name: str,
        route: str,
        right: str,
        items: str,
        service: str,
    ) -> None:
        self.run = run
        self.name = name
        """The words of its command."""
        self.method, _, self.path = route.removesuffix("?").partition(" ")
        self.in_query = self.method in ("GET", "DELETE") or route.endswith("?")
        """Whether parameters are sent in the query, else in the body; the first ones fill the path's {}."""
        self.items = items
        """The kind of the envelope around a list; empty if the reply is one document."""
        self.right = right
        """The right that it needs: a key of ``RIGHTS`` in ``vctl/ops/rights.py``, which says who has it."""
        self.service = service
        """The shared objects that the verb changes, if its right is ``service``; for the refusal."""
        self.help, _, rest = (run.__doc__ or "").strip().partition("\n")
        self.details = " ".join(rest.split())

    def __call__(self, backend: Backend, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry the verb out on a backend."""
        return backend.call(self, *args, **kwargs)

    def at(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry the verb out on a state directory. An error that a row in the tables causes names the row."""
        try:
            return context.store.settled(lambda: self._carry_out(context, *args, **kwargs))
        except VctlError as error:
            error.after(context.store.effect)
            raise
        except Exception as error:
            explanation = known(error) or ops.health.unreadable(context.store)
            if explanation is None:
                raise
            raise explanation.after(context.store.effect) from error

    def _carry_out(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.service:
            ops.rights.check_service(context.store, self.service.format_map(self.by_name(args, kwargs)))
        if context.store.identity is None:
            return self.run(context, *args, **kwargs)
        ops.rights.begin(context.store, self.right, self.name)
        try:
            reply: R = ops.privacy.veiled(context.store, self.run(context, *args, **kwargs))
        except VctlError as error:
            ops.privacy.veil_error(context.store, error)
            raise
        return reply

    @cached_property
    def params(self) -> list[Param]:
        """The parameters of the verb, without shared groups of options (``Together``)."""
        return [param for param in params_of(self.run).values() if isinstance(param, Param)]

    @cached_property
    def positions(self) -> tuple[str, ...]:
        """The names of the parameters that a call may give without their names."""
        return positions_of(self.run)

    def by_name(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The arguments of a call by the names of the parameters."""
        return {**dict(zip(self.positions, args, strict=False)), **kwargs}

    def check(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Refuse the values of a call that a server would not accept."""
        values = self.by_name(args, kwargs)
        for param in self.params:
            if param.name in values:
                param.check(values[param.name])

    def given(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[tuple[Param, object]]:
        """The parameters of a call with the values to send; defaults are left out."""
        params, values = self.params, self.by_name(args, kwargs)
        needed, known = {param.name for param in params if param.required}, {param.name for param in params}
        if odd := (needed - values.keys()) | (values.keys() - known):
            raise TypeError(f"{self.name}: missing or unknown arguments: {', '.join(sorted(odd))}")
        if len(args) > len(self.positions):
            raise TypeError(f"{self.name}: only these arguments need no name: {', '.join(self.positions)}")
        if twice := kwargs.keys() & self.positions[: len(args)]:
            raise TypeError(f"{self.name}: arguments given twice: {', '.join(sorted(twice))}")
        for param in params:
            value = values[param.name] if param.required else values.get(param.name, param.default)
            if value is NOT_GIVEN:
                continue
            if param.info.sent is not None:
                yield param, param.info.sent(value)
            elif param.required or value is not param.default:
                yield param, value

    @property
    def is_paged(self) -> bool:
        """Whether the reply is a pair: the items, and their number without the limit."""
        return str(self.run.__annotations__["return"]).startswith("tuple")

    def document(self, reply: Any) -> Any:
        """A reply as JSON."""
        if not self.items:
            return reply
        items, total = reply if self.is_paged else (reply, len(reply))
        return {"api_version": "vctl/v1", "kind": self.items, "items": list(items), "total": total}

    def reply(self, document: Any) -> R:
        """A reply from its JSON form."""
        if self.items:
            document = (document["items"], document["total"]) if self.is_paged else document["items"]
        result: R = document
        return result


def operation(
    name: str, route: str, *, right: str, items: str = "", service: str = ""
) -> Callable[[Callable[Concatenate[Context, P], R]], Operation[P, R]]:
    """Declare a function as a verb: ``@operation("node drain", "POST /nodes/{node}/drain", right="service")``."""

    def declare(run: Callable[Concatenate[Context, P], R]) -> Operation[P, R]:
        return Operation(run, name, route, right, items, service)

    return declare


def asks(run: Callable[..., R]) -> Callable[Concatenate[Context, ...], R]:
    """Give a verb the fields of a class as parameters: those of its parameter that is ``Annotated`` with ``Fields``."""
    annotated = (
        (name, kind.__metadata__[0])
        for name, kind in run.__annotations__.items()
        if name not in ("context", "return")
    )
    name, fields = next((name, info) for name, info in annotated if isinstance(info, Fields))

    def verb(context: Context, /, *args: Any, **kwargs: Any) -> R:
        given = {**dict(zip(positions_of(verb), args, strict=False)), **kwargs}
        own = fields.params
        values = {name: value for name, value in given.items() if name in own}
        rest = {name: value for name, value in given.items() if name not in own}
        return run(context, **{name: fields.read(context, values, given)}, **rest)

    setattr(verb, PARAMETERS, run)
    verb.__doc__, verb.__annotations__ = run.__doc__, {"return": run.__annotations__["return"]}
    return verb


class Holder(Protocol):
    """An object of the Python API with a backend that carries out its verbs."""

    @property
    def backend(self) -> Backend:
        """The backend."""


class Verb(Generic[P, R]):
    """A verb as a method: ``drain = Verb(nodes.drain)`` in the class of an object that has a backend."""

    def __init__(self, operation: Operation[P, R]) -> None:
        self.operation = operation
        self.__doc__ = operation.run.__doc__

    def __get__(self, holder: Holder, owner: type | None = None) -> Callable[P, R]:
        def verb(*args: P.args, **kwargs: P.kwargs) -> R:
            return holder.backend.call(self.operation, *args, **kwargs)

        verb.__name__, verb.__doc__ = self.operation.name.rpartition(" ")[2], self.__doc__
        return verb


class Local:
    """A state directory; ``opened`` opens it for one call."""

    def __init__(
        self,
        config: "Config",
        opened: Callable[[], "AbstractContextManager[Store]"],
        background: "Background | None" = None,
    ) -> None:
        self.config = config
        self._opened = opened
        self._background = background

    @property
    def background(self) -> "Background":
        """What starts a scheduler if none runs."""
        if self._background is None:
            self._background = ops.background.Background(self.config)
        return self._background

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out one verb in this process, with values as a server accepts them."""
        operation.check(args, kwargs)
        with self._opened() as store:
            return operation.at(Context(store, self.config), *args, **kwargs)

    def log(self, kind: "Kind", ref: str, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """The output, read from the log file."""
        with self._opened() as store:
            log = (ops.jobs.log if kind == "jobs" else ops.tasks.log)(store, ref)
        return log.read(offset=offset, tail=tail)

    def wait(self, kind: "Kind", ref: str, timeout_s: float | None = None) -> "Watched":
        """Wait for changes of the tables."""
        return ops.waiting.wait(self._opened, self.background, kind, ref, timeout_s)

    def follow(
        self, kind: "Kind", ref: str, *, offset: int = 0, every_s: float | None = None
    ) -> Iterator[bytes]:
        """Read the log file as it grows."""
        return ops.waiting.follow(self._opened, self.background, kind, ref, offset, every_s)


class Remote:
    """A server; ``connected`` connects to it for one call."""

    def __init__(self, connected: Callable[[], "AbstractContextManager[Connection]"]) -> None:
        self._connected = connected

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Let the server carry out one verb; values that it would refuse are refused here, as in `Local`."""
        operation.check(args, kwargs)
        given = operation.given(args, kwargs)
        path = operations.connection.at(
            *(str(next(given)[1]) if "{" in part else part for part in operation.path.split("/")[1:])
        )
        rest = {param.wire: value for param, value in given}
        with self._connected() as server:
            return operation.reply(server.ask(operation.method, path, rest, in_query=operation.in_query))

    def log(self, kind: "Kind", ref: str, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """The output, read from the server."""
        with self._connected() as server:
            yield from server.stream(operations.connection.at(kind, ref, "logs"), offset=offset, tail=tail)

    def wait(self, kind: "Kind", ref: str, timeout_s: float | None = None) -> "Watched":
        """Let the server wait, also across its restart."""
        with self._connected() as server:
            return operations.connection.wait(server, kind, ref, timeout_s)

    def follow(
        self, kind: "Kind", ref: str, *, offset: int = 0, every_s: float | None = None
    ) -> Iterator[bytes]:
        """Read what the server sends, also across its restart."""
        with self._connected() as server:
            yield from operations.connection.follow(server, kind, ref, offset, every_s)
