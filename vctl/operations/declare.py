"""Declarations of verbs, and the two backends that carry verbs out: a state directory, or a server.

A verb is one function; each parameter carries its option, help text and limits. The command line, the HTTP routes, the
calls of a remote client and the Python API read this declaration. The body of the function imports its implementation,
so a declaration costs nothing until it is called.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    overload,
    runtime_checkable,
)

from vctl import operations, ops, spec
from vctl.errors import VctlError, known

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.operations.connection import Connection
    from vctl.store.store import Store

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
PARAMETERS = "vctl_parameters"
"""The attribute that names the function with the parameters of a verb, where these are shared."""


class Opt:
    """One parameter: ``cluster: Annotated[str | None, Opt("-c", "--cluster", help="…")] = None``.

    ``off`` names the opposite of a flag, ``bare`` is the value of an option without a value, and ``complete``
    names the words that the shell offers: jobs, clusters, nodes, file or dir. ``reads`` names the reader that
    turns the text of the command line into the value (``READERS`` in ``vctl/cli/declare.py``).

    A server knows the parameter as ``wire`` and refuses numbers below ``least``, above ``most``, not above ``above``,
    and texts and lists with more than ``longest`` parts. ``kernel``: the value is any bytes (a path, an argument, a
    variable), not only Unicode text. ``sent`` converts a value to the value that a remote client sends.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        choices: Sequence[str] = (),
        complete: str | None = None,
        off: str | None = None,
        bare: str | None = None,
        reads: str = "",
        wire: str | None = None,
        least: float | None = None,
        most: float | None = None,
        above: float | None = None,
        longest: int | None = None,
        pattern: str | None = None,
        kernel: bool = False,
        sent: Callable[[Any], object] | None = None,
    ) -> None:
        self.names, self.help, self.metavar = names, help, metavar
        self.choices, self.complete = tuple(choices), complete
        self.off, self.bare, self.reads, self.wire = off, bare, reads, wire
        self.least, self.most, self.above, self.longest = least, most, above, longest
        self.pattern, self.kernel, self.sent = pattern, kernel, sent


class Arg(Opt):
    """One positional argument; ``Arg("JOB", help="…")``."""

    def __init__(self, metavar: str, **given: Any) -> None:
        super().__init__(metavar=metavar, **given)


class Together:
    """Options that several commands share; the function gets the given options as one map by name.

    ``queue: Annotated[Given, Together(order=Order, weight=Weight)] = None``
    """

    def __init__(self, **options: Any) -> None:
        self.params = [Param(name, annotation, default=None) for name, annotation in options.items()]

    @classmethod
    def of(cls, operation: "Operation[..., Any]") -> "Together":
        """The arguments and options of a verb, for a command with further options."""
        found = cls()
        found.params = [param for param in operation.params if param.is_argument or param.info.names]
        return found


Given = Mapping[str, Any] | None
"""The map of the given options of a ``Together``."""


class Param:
    """An option or argument together with its type and default."""

    def __init__(self, name: str, annotation: Any, *, default: Any, required: bool = False) -> None:
        self.name = name
        self.annotation = annotation
        self.info: Opt = annotation.__metadata__[0]
        self.default = default
        self.required = required
        self.wire = self.info.wire or name
        self.is_argument = isinstance(self.info, Arg)
        kind = annotation.__origin__
        if get_origin(kind) is UnionType:
            kind = next(part for part in get_args(kind) if part is not type(None))
        self.many = get_origin(kind) in (list, Sequence) and not self.info.reads
        self.is_text = kind is str
        self.type: type = str if self.info.reads else get_args(kind)[0] if self.many else kind
        self.is_flag = self.type is bool
        self.to_kernel = self.info.kernel or self.info.complete in ("file", "dir", "command")

    @property
    def absent(self) -> Any:
        """The value where a command line does not have the parameter; None where a text is read or collected first."""
        return None if self.info.reads or (self.many and not self.is_argument) else self.default

    @property
    def metavar(self) -> str:
        """The word that stands for the value in help: the choices, the given word, or the type."""
        if self.info.metavar:
            return self.info.metavar
        return "|".join(self.info.choices) or {int: "N", float: "NUMBER"}.get(self.type, "TEXT")

    @property
    def spelled(self) -> str:
        """The name in messages: the longest option name, or the word of the argument."""
        return max(self.info.names, key=len) if self.info.names else self.metavar


NOT_GIVEN: Any = type("NotGiven", (), {"__repr__": lambda _: "NOT_GIVEN"})()
"""The default of a parameter that may be None and that is left as it is without a value."""


@runtime_checkable
class Written(Protocol):
    """A document as an object of the Python API."""

    def as_dict(self) -> dict[str, Any]:
        """Its JSON form."""


def document_of(given: object) -> object:
    """The JSON form of a document; other values stay as they are, and are refused where they are read."""
    return given.as_dict() if isinstance(given, Written) else given


class Here:
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
        found: frozenset[str] = self.config.get("unit_resources")
        return found

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

    def log(self, kind: str, ref: str, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """The output of one of ``jobs`` or ``tasks`` as it is now: after so many bytes, or its last lines."""


class Operation(Generic[P, R]):
    """One verb. ``drain(backend, "n1", reason="disk")`` carries it out."""

    def __init__(
        self, run: Callable[Concatenate[Here, P], R], name: str, route: str, items: str, service: str
    ) -> None:
        self.run = run
        self.name = name
        """The words of its command."""
        self.method, _, self.path = route.removesuffix("?").partition(" ")
        self.in_query = self.method in ("GET", "DELETE") or route.endswith("?")
        """How a server is asked: the first parameters fill the braces of the path, the others are query or body."""
        self.items = items
        """The kind of the envelope around a list; empty where the answer is one document."""
        self.service = service
        """The shared objects that it changes, which a job may not; empty where ``ops`` checks the rights."""
        self.help, _, rest = (run.__doc__ or "").strip().partition("\n")
        self.details = " ".join(rest.split())

    def __call__(self, backend: Backend, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry it out."""
        return backend.call(self, *args, **kwargs)

    def at(self, here: Here, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry it out on a state directory. A failure that comes from a row that cannot be read names the row."""
        try:
            return here.store.settled(lambda: self._carry_out(here, *args, **kwargs))
        except VctlError:
            raise
        except Exception as error:
            found = known(error) or ops.health.unreadable(here.store)
            if found is None:
                raise
            raise found from error

    def _carry_out(self, here: Here, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.service:
            named = zip((param.name for param in self.params), args, strict=False)
            ops.rights.check_service(here.store, self.service.format_map({**dict(named), **kwargs}))
        return self.run(here, *args, **kwargs)

    @property
    def params(self) -> list[Param]:
        """Its parameters."""
        return [param for param in params_of(self.run).values() if isinstance(param, Param)]

    def given(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[tuple[Param, object]]:
        """The parameters of a call with the values to send; defaults are left out."""
        params = self.params
        values = {**dict(zip((param.name for param in params), args, strict=False)), **kwargs}
        for param in params:
            value = values[param.name] if param.required else values.get(param.name, param.default)
            if param.info.sent is not None:
                yield param, param.info.sent(value)
            elif param.required or value is not param.default:
                yield param, value

    @property
    def is_paged(self) -> bool:
        """Whether it replies with items and their number without a limit."""
        return str(self.run.__annotations__["return"]).startswith("tuple")

    def document(self, reply: Any) -> Any:
        """A reply as JSON."""
        if not self.items:
            return reply
        found, total = reply if self.is_paged else (reply, len(reply))
        return {"api_version": "vctl/v1", "kind": self.items, "items": list(found), "total": total}

    def reply(self, document: Any) -> R:
        """A reply from its JSON form."""
        if self.items:
            document = (document["items"], document["total"]) if self.is_paged else document["items"]
        found: R = document
        return found


def operation(
    name: str, route: str, *, items: str = "", service: str = ""
) -> Callable[[Callable[Concatenate[Here, P], R]], Operation[P, R]]:
    """Declare a function as a verb: ``@operation("node drain", "POST /nodes/{node}/drain")``."""

    def declare(run: Callable[Concatenate[Here, P], R]) -> Operation[P, R]:
        return Operation(run, name, route, items, service)

    return declare


def asks(
    request: Callable[Concatenate[Here, P], Q],
) -> Callable[[Callable[[Here, Q], R]], Callable[Concatenate[Here, P], R]]:
    """Give a verb the parameters of a function; the body of the verb gets the result of that function."""

    def wrap(run: Callable[[Here, Q], R]) -> Callable[Concatenate[Here, P], R]:
        def asked(here: Here, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return run(here, request(here, *args, **kwargs))

        setattr(asked, PARAMETERS, request)
        asked.__doc__, asked.__annotations__ = run.__doc__, {"return": run.__annotations__["return"]}
        return asked

    return wrap


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


def params_of(run: Callable[..., Any]) -> dict[str, Param | Together]:
    """The parameters of a function after its first; read without ``inspect``, whose import is slow."""
    run = getattr(run, PARAMETERS, run)
    code: CodeType = run.__code__
    defaults = run.__defaults__ or ()
    values = dict(
        zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    )
    values.update(run.__kwdefaults__ or {})
    found: dict[str, Param | Together] = {}
    for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]:
        annotation = run.__annotations__[name]
        together = annotation.__metadata__[0]
        if isinstance(together, Together):
            found[name] = together
        else:
            found[name] = Param(name, annotation, default=values.get(name), required=name not in values)
    return found


Filters = Annotated[
    Sequence[str], Opt(wire="filter", longest=50, help="key=value or key!=value; repeatable.")
]
Limit = Annotated[int | None, Opt(least=0, most=2**31, help="Maximum number of entries.")]


class Local:
    """A state directory; ``opened`` opens it for one call."""

    def __init__(self, config: "Config", opened: Callable[[], "AbstractContextManager[Store]"]) -> None:
        self.config = config
        self._opened = opened

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out one verb in this process."""
        with self._opened() as store:
            return operation.at(Here(store, self.config), *args, **kwargs)

    def log(self, kind: str, ref: str, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """From the file."""
        with self._opened() as store:
            path = (ops.jobs.log_path if kind == "jobs" else ops.tasks.log_path)(store, ref)
        return ops.logs.read_log(path, offset=offset, tail=tail)


class Remote:
    """A server; ``connected`` connects to it for one call."""

    def __init__(self, connected: Callable[[], "AbstractContextManager[Connection]"]) -> None:
        self._connected = connected

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Let the server carry out one verb."""
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
