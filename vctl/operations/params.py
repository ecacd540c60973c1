"""Parameters of declared verbs: options, types and ranges of their values, and the check of a value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Protocol,
    get_args,
    get_origin,
    runtime_checkable,
)

from vctl import spec
from vctl.errors import BadSpec, param

if TYPE_CHECKING:
    from vctl.operations.declare import Operation

PARAMETERS = "vctl_parameters"
"""The attribute of a verb's function that holds the function with its parameters, if it shares them."""
_TYPES: Mapping[object, tuple[Any, Any, str, str]] = {
    str: (str, (), "a string", "put it in quotes"),
    int: (int, bool, "a whole number", "write a number such as 1"),
    float: ((float, int), bool, "a number", "write a number such as 1.5"),
    bool: (bool, (), "true or false", "write True or False"),
    Sequence[str]: (Sequence, (str, bytes), "a list of strings", 'write it as ["a", "b"]'),
    Sequence[int]: (Sequence, (str, bytes), "a list of numbers", "write it as [16, 32]"),
    Sequence[Mapping[str, Any]]: (Sequence, (str, bytes), "a list of objects", "write it as [{}, {}]"),
    Mapping[str, str]: (Mapping, (), "an object", 'write it as {"NAME": "value"}'),
    type(None): (type(None), (), "null", "leave it out"),
}
"""Each checked type: the classes of its values, classes to exclude, and the problem and fix of an error."""
_DOCUMENTS = {
    "cluster spec": ("a cluster spec", '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}'),
    "resources": ("resources", '{"CPU": 1}'),
    "templates": ("replica_sets", '{"8c16g": 2}'),
    "label selector": ("a label selector", '{"name": "value"}'),
}
"""The name and an example of each kind of document, by its reader."""


class Opt:
    """One parameter: ``cluster: Annotated[str | None, Opt("-c", "--cluster", help="…")] = None``.

    ``off`` names the opposite of a flag, ``bare`` is the value of an option without a value, and
    ``complete`` names the completions of the shell: jobs, clusters, nodes, after, states, causes, file or
    dir. ``reads`` names the reader that turns the text of the command line into the value (``READERS`` in
    ``vctl/cli/declare.py``). ``waits``: with this option a command waits (True) or answers at once (False);
    ``lasts``: with it the command uses the terminal.

    ``wire`` is the name of the parameter for a server. A server refuses numbers below ``least``, above
    ``most`` or not above ``above``, and texts and lists longer than ``longest``. ``kernel``: the value may
    be any bytes (a path, an argument, a variable), not only Unicode text. ``sent`` converts a value to the
    one that a remote client sends. ``each``: the value is a list of documents, each with the parameters of
    this verb as its fields.
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
        waits: bool | None = None,
        lasts: bool = False,
        reads: str = "",
        wire: str | None = None,
        least: float | None = None,
        most: float | None = None,
        above: float | None = None,
        longest: int | None = None,
        pattern: str | None = None,
        kernel: bool = False,
        sent: Callable[[Any], object] | None = None,
        each: Operation[..., Any] | None = None,
    ) -> None:
        self.names, self.help, self.metavar = names, help, metavar
        self.choices, self.complete = tuple(choices), complete
        self.off, self.bare, self.reads, self.wire = off, bare, reads, wire
        self.waits, self.lasts = waits, lasts
        self.least, self.most, self.above, self.longest = least, most, above, longest
        self.pattern, self.kernel, self.sent, self.each = pattern, kernel, sent, each


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
    def of(cls, operation: Operation[..., Any], *, optional: Collection[str] = ()) -> Together:
        """The arguments and options of a verb, for a command with further options, which replace ``optional`` ones."""
        found = cls()
        found.params = [
            Param(param.name, param.annotation, default=None) if param.name in optional else param
            for param in operation.params
            if param.is_argument or param.info.names
        ]
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
        self.kinds: tuple[Any, ...] = get_args(kind) if get_origin(kind) is UnionType else (kind,)
        """The types that its value may have."""
        kind = next(one for one in self.kinds if one is not type(None))
        self.document = _DOCUMENTS.get(self.info.reads) if kind == Mapping[str, Any] else None
        self.many = get_origin(kind) in (list, Sequence) and not self.info.reads
        self.is_text = kind is str
        self.type: type = str if self.info.reads else get_args(kind)[0] if self.many else kind
        self.is_flag = self.type is bool
        self.to_kernel = self.info.kernel or self.info.complete in ("file", "dir", "command")

    @property
    def absent(self) -> Any:
        """The value for a command line without the parameter.

        None for an option whose text a reader converts, and for an option that may be repeated.
        """
        return None if self.info.reads or (self.many and not self.is_argument) else self.default

    @property
    def metavar(self) -> str:
        """The word that stands for the value in help: the choices, the given word, or the type."""
        if self.info.metavar:
            return self.info.metavar
        return "|".join(self.info.choices) or {int: "N", float: "NUMBER"}.get(self.type, "TEXT")

    @property
    def references(self) -> tuple[str, ...]:
        """The names for it in errors: its name, and for a duration also the name without ``_s``."""
        return self.name, self.name.removesuffix("_s")

    @property
    def spelled(self) -> str:
        """The name in messages: the longest option name, or the word of the argument."""
        return max(self.info.names, key=len) if self.info.names else self.metavar

    def check(self, value: Any) -> None:
        """Refuse a value of a wrong type or out of range; readers check amounts and the contents of documents."""
        if value is None and self.required and type(None) not in self.kinds:
            raise spec.fields.refuse(param(self.name), "a value is needed, not null", "give one")
        if self.document and not (value is None or isinstance(value, (Mapping, Written))):
            spec.fields.as_mapping(value, param(self.name), *self.document)
        is_amount = float in self.kinds and str in self.kinds
        if value is self.default or is_amount or any(kind not in _TYPES for kind in self.kinds):
            return
        if self.info.longest is not None and isinstance(value, Sequence) and len(value) > self.info.longest:
            problem = f"{len(value)} are too many" if self.many else f"{len(value)} characters are too many"
            raise spec.fields.refuse(param(self.name), problem, f"write at most {self.info.longest}")
        kind = next((kind for kind in self.kinds if _is(value, kind)), None)
        if kind is None:
            raise _refuse(value, self.kinds[0], param(self.name))
        if kind is int or kind is float:
            self._check_range(value)
        elif kind == Mapping[str, str]:
            self._check_texts(value)
        elif kind == Sequence[str] or kind == Sequence[int]:
            inside = get_args(kind)[0]
            for number, inner in enumerate(value):
                if not _is(inner, inside):
                    raise _refuse(inner, inside, f"{param(self.name)}[{number}]")
                if inside is int:
                    self._check_range(inner)

    def _check_texts(self, value: Mapping[Any, Any]) -> None:
        if {*map(type, value), *map(type, value.values())} <= {str}:  # an environment has many
            return
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _refuse(key, str, param(self.name))
            if not isinstance(inner, str):
                raise _refuse(inner, str, spec.fields.child(param(self.name), key))

    def _check_range(self, value: float) -> None:
        least, above, most = self.info.least, self.info.above, self.info.most
        if (
            (least is not None and not value >= least)
            or (above is not None and not value > above)
            or (most is not None and not value <= most)
        ):
            bounds = (("above", above), ("from", least), ("to" if above is None else "up to", most))
            words = " ".join(f"{word} {bound:.0f}" for word, bound in bounds if bound is not None)
            problem = f"{spec.fields.show(value)} is out of range"
            raise spec.fields.refuse(param(self.name), problem, f"write a number {words}")


def _is(value: object, kind: object) -> bool:
    classes, others, _, _ = _TYPES[kind]
    return isinstance(value, classes) and not isinstance(value, others)


def _refuse(value: object, kind: object, path: str) -> BadSpec:
    _, _, what, fix = _TYPES[kind]
    return spec.fields.refuse(path, f"{spec.fields.show(value)} is not {what}", fix)


NOT_GIVEN: Any = type("NotGiven", (), {"__repr__": lambda _: "NOT_GIVEN"})()
"""The default of a parameter that may be None: without a value, the field is not changed."""


@runtime_checkable
class Written(Protocol):
    """A document as an object of the Python API."""

    def as_dict(self) -> dict[str, Any]:
        """Its JSON form."""


def document_of(given: object) -> object:
    """The JSON form of a document; other values are returned unchanged, and their reader refuses them."""
    return given.as_dict() if given is not None and isinstance(given, Written) else given


def values_of(fields: Mapping[str, Param], document: object, what: str, example: str) -> dict[str, Any]:
    """The values of the parameters of a verb, by name, from a document; ``fields`` are the parameters by field."""
    given = spec.fields.as_mapping(document, "", what, example)
    spec.text.check_document(given, kernel=spec.text.KERNEL_FIELDS)
    values: dict[str, Any] = {}
    for field, value in given.items():
        if (param := fields.get(field)) is None:
            raise spec.fields.refuse(
                spec.fields.child("", field), "unknown field", spec.fields.did_you_mean(field, fields)
            )
        param.check(value)
        if param.info.choices and value not in param.info.choices:
            problem = f"{spec.fields.show(value)} is not one of the choices"
            raise spec.fields.refuse(field, problem, f"possible: {', '.join(param.info.choices)}")
        values[param.name] = value
    for field, param in fields.items() if len(values) < len(fields) else ():
        if param.required and field not in given:
            raise spec.fields.refuse(field, "it is missing", f"write it as in {example}")
    return values


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


def positions_of(run: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of a function after its first that need no name, in their order."""
    code: CodeType = getattr(run, PARAMETERS, run).__code__
    return code.co_varnames[1 : code.co_argcount]


Filters = Annotated[
    Sequence[str], Opt(wire="filter", longest=50, help="key=value or key!=value; repeatable.")
]
Limit = Annotated[int | None, Opt(least=0, most=2**31, help="Maximum number of entries.")]
