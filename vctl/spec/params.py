"""Parameters: options, types and ranges of values, the check of a value, and classes whose fields are parameters.

A class of requests declares each field once: its type, and beside it the option, the help and the limits, or the
parameters of which the field is made. The parameters of its verbs, the reading of their values, the check of limits
and the command line that makes the same request follow from that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property
from types import CodeType, UnionType
from typing import Annotated, Any, Generic, Protocol, TypeVar, get_args, get_origin, runtime_checkable

from vctl import spec
from vctl.core.values import MISSING, fields, replace
from vctl.errors import BadSpec, param

T = TypeVar("T")

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


LONGEST_S = 100 * 366 * 86400
"""A hundred years; a longer time is a mistake and would overflow dates."""
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31


class Asking(Protocol):
    """A verb, as far as its parameters are concerned."""

    @property
    def name(self) -> str:
        """The words of its command."""

    @property
    def params(self) -> list[Param]:
        """Its parameters."""


class Opt:
    """One parameter: ``cluster: Annotated[str | None, Opt("-c", "--cluster", help="…")] = None``.

    ``off`` names the opposite of a flag, ``bare`` is the value of an option without a value, and
    ``complete`` names the completions of the shell: jobs, clusters, nodes, after, states, causes, private,
    file or dir. ``reads`` names the reader that turns the text of the command line into the value (``READERS`` in
    ``vctl/cli/declare.py``). ``waits``: with this option a command waits (True) or answers at once (False);
    ``lasts``: with it the command uses the terminal.

    ``wire`` is the name of the parameter for a server. A server refuses numbers below ``minimum``, above
    ``maximum`` or not above ``above``, and texts and lists longer than ``longest``. ``kernel``: the value may
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
        minimum: float | None = None,
        maximum: float | None = None,
        above: float | None = None,
        longest: int | None = None,
        pattern: str | None = None,
        kernel: bool = False,
        sent: Callable[[Any], object] | None = None,
        each: Asking | None = None,
    ) -> None:
        self.names, self.help, self.metavar = names, help, metavar
        self.choices, self.complete = tuple(choices), complete
        self.off, self.bare, self.reads, self.wire = off, bare, reads, wire
        self.waits, self.lasts = waits, lasts
        self.minimum, self.maximum, self.above, self.longest = minimum, maximum, above, longest
        self.pattern, self.kernel, self.sent, self.each = pattern, kernel, sent, each

    def check_range(self, value: float, path: str) -> None:
        """Refuse a number out of range."""
        minimum, above, maximum = self.minimum, self.above, self.maximum
        if (
            (minimum is not None and not value >= minimum)
            or (above is not None and not value > above)
            or (maximum is not None and not value <= maximum)
        ):
            bounds = (("above", above), ("from", minimum), ("to" if above is None else "up to", maximum))
            words = " ".join(f"{word} {bound:.0f}" for word, bound in bounds if bound is not None)
            raise spec.fields.refuse(
                path, f"{spec.fields.show(value)} is out of range", f"write a number {words}"
            )


class Arg(Opt):
    """One positional argument; ``Arg("JOB", help="…")``."""

    def __init__(self, metavar: str, **given: Any) -> None:
        super().__init__(metavar=metavar, **given)


class Together:
    """Options that several commands share; the function gets the given options as one map by name.

    ``queue: Annotated[Given, Together(order=Order, weight=Weight)] = None``
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._verb: Asking | None = None
        self._optional: Collection[str] = ()
        self._but: Collection[str] = ()

    @classmethod
    def of(cls, operation: Asking, *, optional: Collection[str] = (), but: Collection[str] = ()) -> Together:
        """The arguments and options of a verb, for a command with further options, which replace ``optional`` ones.

        ``but``: parameters that the command has in another form.
        """
        group = cls()
        group._verb, group._optional, group._but = operation, optional, but
        return group

    @cached_property
    def params(self) -> list[Param]:
        """The options; those of a verb are read at first use, because its class may be expensive to import."""
        if self._verb is None:
            return [Param(name, annotation, default=None) for name, annotation in self._options.items()]
        return [
            Param(param.name, param.annotation, default=None) if param.name in self._optional else param
            for param in self._verb.params
            if (param.is_argument or param.info.names) and param.name not in self._but
        ]


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
        kind = next(alternative for alternative in self.kinds if alternative is not type(None))
        self.document = _DOCUMENTS.get(self.info.reads) if kind == Mapping[str, Any] else None
        self.many = get_origin(kind) in (list, Sequence) and not self.info.reads
        self.is_text = kind is str
        self.type: type = str if self.info.reads else get_args(kind)[0] if self.many else kind
        self.is_flag = self.type is bool
        self.to_kernel = self.info.kernel or self.info.complete in ("file", "dir", "command")

    def of_change(self) -> Param:
        """The same parameter of a verb that changes what has a value already: without a value, nothing changes."""
        from copy import copy

        changed, info = copy(self), copy(self.info)
        info.sent = None  # it would send a default
        changed.info, changed.default, changed.required = info, NOT_GIVEN, False
        return changed

    @property
    def takes_away(self) -> bool:
        """Whether ``none`` on a command line takes its value away: it belongs to a change, and may be left out."""
        may_lack = type(None) in self.kinds or self.many or self.info.reads == "words"
        return self.default is NOT_GIVEN and may_lack and self.info.complete != "clusters"

    @property
    def absent(self) -> Any:
        """The value for a command line without the parameter.

        None for an option whose text a reader converts, and for an option that may be repeated.
        """
        is_none = self.info.reads or self.default is NOT_GIVEN or (self.many and not self.is_argument)
        return None if is_none else self.default

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
            raise _refuse(value, self.kinds[0], param(self.name), is_command=self.name == "entrypoint")
        if kind is int or kind is float:
            self.info.check_range(value, param(self.name))
        elif kind == Mapping[str, str]:
            self._check_texts(value)
        elif kind == Sequence[str] or kind == Sequence[int]:
            inside = get_args(kind)[0]
            for number, inner in enumerate(value):
                if not _is(inner, inside):
                    raise _refuse(inner, inside, f"{param(self.name)}[{number}]")
                if inside is int:
                    self.info.check_range(inner, param(self.name))

    def _check_texts(self, value: Mapping[Any, Any]) -> None:
        if {*map(type, value), *map(type, value.values())} <= {str}:  # an environment has many
            return
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _refuse(key, str, param(self.name))
            if not isinstance(inner, str):
                raise _refuse(inner, str, spec.fields.child(param(self.name), key))

    def words(self, value: Any) -> list[str]:
        """The words of a command line that give it this value."""
        if not self.info.names:
            return []
        if self.is_flag:
            name = self.spelled if value else self.info.off
            return [] if name is None else [name]
        return [
            word
            for element in (value if self.many else [value])
            for word in (self.spelled, self._text(element))
        ]

    def _text(self, value: Any) -> str:
        match self.info.reads:
            case "duration" | "positive duration":
                return seconds_text(value)
            case "words":
                return ",".join(value)
        if isinstance(value, str | int):
            return str(value)
        from vctl.core.compact import dumps  # json costs a command time

        return dumps(value)


def _is(value: object, kind: object) -> bool:
    classes, others, _, _ = _TYPES[kind]
    return isinstance(value, classes) and not isinstance(value, others)


def _refuse(value: object, kind: object, path: str, *, is_command: bool = False) -> BadSpec:
    _, _, what, fix = _TYPES[kind]
    if is_command:
        fix = spec.launch.COMMAND_FIX
    return spec.fields.refuse(path, f"{spec.fields.show(value)} is not {what}", fix)


NOTHING = ("none", "unlimited")
"""What takes a value away, on a command line and in Python."""
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


@cache
def params_of(run: Callable[..., Any]) -> Mapping[str, Param | Together]:
    """The parameters of a function after its first; read without ``inspect``, whose import is slow."""
    run = getattr(run, PARAMETERS, run)
    code: CodeType = run.__code__
    defaults = run.__defaults__ or ()
    values = dict(
        zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    )
    values.update(run.__kwdefaults__ or {})
    params: dict[str, Param | Together] = {}
    for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]:
        annotation = run.__annotations__[name]
        group = annotation.__metadata__[0]
        if isinstance(group, Together):
            params[name] = group
        elif isinstance(group, Fields):
            params |= group.params
        else:
            params[name] = Param(name, annotation, default=values.get(name), required=name not in values)
    return params


def positions_of(run: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of a function after its first that need no name, in their order."""
    run = getattr(run, PARAMETERS, run)
    code: CodeType = run.__code__
    positions: list[str] = []
    for name in code.co_varnames[1 : code.co_argcount]:
        group = run.__annotations__[name].__metadata__[0]
        if isinstance(group, Fields):
            positions += (parameter.name for parameter in group.params.values() if parameter.required)
        else:
            positions.append(name)
    return tuple(positions)


def seconds_text(seconds: float) -> str:
    """A duration as the command line reads it back unchanged."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


# ---- classes whose fields are parameters ----


class Reading:
    """What the values of parameters are read with: the names of unit resources, and all given values of the call."""

    def __init__(self, units: frozenset[str], given: Mapping[str, Any]) -> None:
        self.units, self.given = units, given


class Made:
    """The parameters of which a field is made: ``array: Annotated[ArrayRange | None, Made(read, array=Array)] = None``.

    ``make(reading, *values)`` gives the value of the field; it is asked only if one of them has a value.
    ``back(value)`` gives the values of the parameters of which ``make`` would make that value again. ``whole`` is the
    parameter that excludes the others.
    """

    def __init__(
        self,
        make: Callable[..., object],
        back: Callable[[Any], Mapping[str, object]] | None = None,
        whole: str = "",
        /,
        **parameters: Any,
    ) -> None:
        self.make, self.back, self.whole, self.parameters = make, back, whole, parameters


class Declared:
    """What the fields of a class declare; ``declared(JobRequest)``."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.params: dict[str, Param] = {}
        self._made: dict[str, Made] = {}
        """The fields that are made of parameters."""
        self._field_of: dict[str, str] = {}
        """Parameter -> the field that is made of it."""
        self.limits: dict[str, Opt] = {}
        """The fields that are numbers within limits."""
        for field in fields(kind):
            annotation = kind.__annotations__[field.name]
            if not hasattr(annotation, "__metadata__"):
                continue  # it is no parameter
            info = annotation.__metadata__[0]
            default = _default(field)
            if isinstance(info, Made):
                self._made[field.name] = info
                self._field_of |= dict.fromkeys(info.parameters, field.name)
                for name, parameter in info.parameters.items():
                    self._add(name, parameter, False if len(info.parameters) > 1 else default)
            else:
                self._add(field.name, annotation, default)
                if info.minimum is not None or info.maximum is not None:
                    self.limits[field.name] = info

    def _add(self, name: str, annotation: Any, default: Any) -> None:
        """Add a parameter. The default of one that may be None is None."""
        added = Param(name, annotation, default=None, required=default is MISSING)
        if not added.required and type(None) not in added.kinds:
            added.default = default
        self.params[name] = added

    def read(self, reading: Reading, values: Mapping[str, Any]) -> Any:
        """The value of the class for these values of parameters."""
        arguments: dict[str, Any] = {}
        made: dict[str, None] = {}
        for name, value in values.items():
            if (field := self._field_of.get(name)) is None:
                arguments[name] = value
            else:
                made[field] = None
        for field in made:
            info = self._made[field]
            given = [values.get(name, self.params[name].default) for name in info.parameters]
            if any(value is not None for value in given):
                arguments[field] = info.make(reading, *given)
        return self.kind(**arguments)

    def changed(self, reading: Reading, one: T, values: Mapping[str, Any]) -> T:
        """A value with other contents of the fields of these parameters; None stands for a field's default.

        A map is added to the present one. Of a field that is made of several parameters, the others stay as they are.
        """
        contents: dict[str, Any] = {}
        defaults = {field.name: _default(field) for field in fields(self.kind)}
        for name, value in values.items():
            if (field := self._field_of.get(name)) is None:
                is_map = isinstance(value, Mapping)
                contents[name] = {**getattr(one, name), **value} if is_map else value
                if value is None:
                    contents[name] = defaults[name]
            elif field not in contents:
                contents[field] = self._made_anew(
                    reading, field, getattr(one, field), values, defaults[field]
                )
        return replace(one, **contents)  # type: ignore[type-var]  # every such class is a value class

    def _made_anew(
        self, reading: Reading, field: str, present: object, values: Mapping[str, Any], default: object
    ) -> object:
        info = self._made[field]
        new = {name: values[name] for name in info.parameters if name in values}
        old: Mapping[str, object] = {}
        if info.back is not None and present != default and new.get(info.whole) is None:
            old = info.back(present)
            if info.whole in old and info.whole not in new and any(v is not None for v in new.values()):
                name, whole = (self.params[one] for one in (next(iter(new)), info.whole))
                raise spec.fields.refuse(
                    param(name.name),
                    "it is part of a document here",
                    f"give the whole with {param(whole.name)}",
                )
        merged = {**old, **new}
        given = [merged.get(name, self.params[name].default) for name in info.parameters]
        return info.make(reading, *given) if any(value is not None for value in given) else default

    def fields_of(self, names: Iterable[str]) -> set[str]:
        """The fields that these parameters give."""
        return {self._field_of.get(name, name) for name in names}

    def words(self, request: object) -> list[str]:
        """The options of a command line that makes this request: of each field with another value than its default."""
        options: list[str] = []
        for field in fields(self.kind):
            given = getattr(request, field.name)
            if given == _default(field):
                continue
            values: Mapping[str, object] = {field.name: given}
            if (info := self._made.get(field.name)) is not None:
                values = {} if info.back is None else info.back(given)
            for name, value in values.items():
                if (parameter := self.params.get(name)) is not None:
                    options += parameter.words(value)
        return options


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


_DECLARED: dict[type[Any], Declared] = {}


def declared(kind: type[Any]) -> Declared:
    """What the fields of a class declare."""
    if (declaration := _DECLARED.get(kind)) is None:
        declaration = _DECLARED[kind] = Declared(kind)
    return declaration


def check_limits(request: Any) -> None:
    """Refuse numbers outside the limits that their fields declare."""
    for name, info in declared(type(request)).limits.items():
        if (number := getattr(request, name)) is not None:
            info.check_range(number, param(name.removesuffix("_s")))


class Fields(Generic[T]):
    """The fields of a class as parameters of a verb: ``job: Annotated["JobRequest", Fields(lambda: JobRequest)]``.

    ``kind`` imports the class when it is first used. ``settings`` gives the values that stand for fields without one.
    """

    def __init__(
        self, kind: Callable[[], type[T]], settings: Callable[[Any], Mapping[str, Any]] | None = None
    ) -> None:
        self._kind, self._settings = kind, settings

    @cached_property
    def declared(self) -> Declared:
        """What the fields of the class declare."""
        kind: Any = self._kind()
        return declared(kind)

    @property
    def params(self) -> Mapping[str, Param]:
        """The parameters of the verb."""
        return self.declared.params

    def read(self, context: Any, values: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Any:
        """The value of the class for the values of its parameters; ``given`` has those of the whole call."""
        if self._settings is not None:
            missing = {n: v for n, v in self._settings(context).items() if values.get(n) is None}
            values = {**values, **missing}
        request: T = self.declared.read(Reading(context.units, values if given is None else given), values)
        return request


Filters = Annotated[
    Sequence[str], Opt(wire="filter", longest=50, help="key=value or key!=value; repeatable.")
]
Limit = Annotated[int | None, Opt(minimum=0, maximum=2**31, help="Maximum number of entries.")]
