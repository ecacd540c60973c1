"""Values: a fast substitute for dataclasses.

A type checker sees dataclasses. At run time this module makes the classes, because importing ``dataclasses``
and letting it make the classes that one command imports takes longer than everything else in the command.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

__all__ = ("MISSING", "Exit", "Field", "compiled", "field", "fields", "is_value", "replace", "value")


def compiled(name: str, source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """Compile a source and return its function ``name``. ``scope`` has its globals.

    The source must contain no text but the code of the caller and the names of fields.
    """
    exec(source, scope)  # noqa: S102 - made of names of fields only
    made: Callable[..., Any] = scope[name]
    return made


if TYPE_CHECKING:
    from dataclasses import MISSING, Field, field, fields, replace
    from dataclasses import dataclass as value
else:
    MISSING = object()
    METHODS = ("__init__", "__repr__", "__eq__", "__hash__")

    class Field:
        """A field of a value, with what ``dataclasses.field`` takes."""

        default = default_factory = MISSING
        init = repr = compare = True
        hash = None
        kw_only = False
        metadata = MappingProxyType({})

        def __init__(self, **given: Any) -> None:
            self.__dict__.update(given)

    field = Field

    def value(
        *, frozen: bool = False, slots: bool = False, kw_only: bool = False, eq: bool = True
    ) -> Callable[[type], type]:
        """Make a value class. With ``frozen``, a type checker refuses assignments and its values have a hash.

        Without ``eq``, an object is equal to itself only.
        At run time fields can be assigned: a check would make a value ten times as expensive to create.
        Methods are compiled at their first call, because a command imports many more classes than it uses.
        """

        def made(kind: type) -> type:
            known = {}
            for base in kind.__mro__[:0:-1]:
                known |= getattr(base, "__fields__", {})
            content = dict(kind.__dict__)
            for name in kind.__annotations__:
                given = content.pop(name, MISSING)
                known[name] = member = given if isinstance(given, Field) else Field(default=given)
                member.name, member.kw_only = name, member.kw_only or kw_only
                if member is given and not slots:
                    setattr(kind, name, member.default) if member.default is not MISSING else delattr(
                        kind, name
                    )
            if slots:
                inherited = [name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())]
                content["__slots__"] = [name for name in kind.__annotations__ if name not in inherited]
                content.pop("__dict__", None)
                content.pop("__weakref__", None)
                kind = type(kind)(kind.__name__, kind.__bases__, content)
            kind.__fields__ = known
            kind.__match_args__ = tuple([name for name, member in known.items() if not member.kw_only])
            for name in METHODS if eq else METHODS[:2]:
                if content.get(name) is None:
                    setattr(kind, name, _late(kind, name))
            if eq and not frozen:
                kind.__hash__ = None
            return kind

        return made

    def _late(kind: type, name: str) -> Callable[..., Any]:
        """A method that compiles the real method at its first call, and replaces itself by it."""

        def method(*args: Any, **named: Any) -> Any:
            scope = {"MISSING": MISSING}
            compiled_method = compiled(name, _source(kind, name, scope), scope)
            compiled_method.__qualname__ = f"{kind.__qualname__}.{name}"
            setattr(kind, name, compiled_method)
            return compiled_method(*args, **named)

        return method

    def _source(kind: type, name: str, scope: dict[str, Any]) -> str:
        known = kind.__fields__.values()
        if name == "__init__":
            return _init(kind, scope)
        if name == "__repr__":
            shown = ", ".join([f"{member.name}={{self.{member.name}!r}}" for member in known if member.repr])
            return f"def __repr__(self): return f'{{self.__class__.__qualname__}}({shown})'"
        if name == "__hash__":
            hashed = [field.name for field in known if (field.compare if field.hash is None else field.hash)]
            return f"def __hash__(self): return hash(({''.join([f'self.{name}, ' for name in hashed])}))"
        mine = "".join([f"self.{member.name}, " for member in known if member.compare])
        return (
            "def __eq__(self, other):\n"
            f" return ({mine}) == ({mine.replace('self.', 'other.')})"
            " if other.__class__ is self.__class__ else NotImplemented"
        )

    def _init(kind: type, scope: dict[str, Any]) -> str:
        words, lines = ["self"], []
        given = [member for member in kind.__fields__.values() if member.init]
        for member in sorted(given, key=lambda member: member.kw_only):
            word = name = member.name
            if member.kw_only and "*" not in words:
                words.append("*")
            if member.default_factory is not MISSING:
                scope[f"make_{name}"] = member.default_factory
                lines.append(f" self.{name} = make_{name}() if {name} is MISSING else {name}\n")
                word += "=MISSING"
            else:
                lines.append(f" self.{name} = {name}\n")
                if member.default is not MISSING:
                    scope[f"default_{name}"] = member.default
                    word += f"=default_{name}"
            words.append(word)
        after = " self.__post_init__()\n" if hasattr(kind, "__post_init__") else ""
        return f"def __init__({', '.join(words)}):\n{''.join(lines)}{after} return None"

    def fields(kind: Any) -> tuple[Field, ...]:
        """The fields of a class, or of one of its values."""
        return tuple(kind.__fields__.values())

    def replace(one: Any, /, **changes: Any) -> Any:
        """A copy of a value with other contents of some fields."""
        key = one.__class__, *changes
        if (copy := _COPIES.get(key)) is None:
            copy = _COPIES[key] = _copy(*key)
        return copy(one, **changes)

    _COPIES: dict[tuple[type, *tuple[str, ...]], Callable[..., Any]] = {}
    """A class and names of its fields -> the function that copies a value with other contents of these fields."""

    def _copy(kind: type, *names: str) -> Callable[..., Any]:
        if unknown := set(names) - kind.__fields__.keys():
            raise TypeError(f"{kind.__qualname__} has no field {min(unknown)!r}")
        # _1 and _2 are the value and its copy: a field may have any other name
        copied = [name for name, member in kind.__fields__.items() if member.init]
        lines = [f" _2.{name} = {name if name in names else f'_1.{name}'}\n" for name in copied]
        after = " _2.__post_init__()\n" if hasattr(kind, "__post_init__") else ""
        words = ", ".join(["_1", "/", *names])
        source = f"def copy({words}):\n _2 = _make(_kind)\n{''.join(lines)}{after} return _2"
        return compiled("copy", source, {"_kind": kind, "_make": object.__new__})


def is_value(kind: object) -> bool:
    """Whether ``kind`` is a value class, or a value of one."""
    return hasattr(kind, "__fields__")


@value(frozen=True, slots=True)
class Exit:
    """How a process ended; none of its children is left.

    ``exit_code`` is 128+N when signal N ended it, and 127 or 126 when it could not be started; then
    ``launch_errno`` and ``message`` say why. A ``message`` together with a signal says that the process was
    killed because of its memory use. ``stopped``: a stop was requested before the main process had ended.
    """

    exit_code: int
    signal: int | None
    launch_errno: int | None
    message: str
    stopped: bool
    ended_at: int
