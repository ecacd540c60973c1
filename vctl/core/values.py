"""Values that do not change: of some many are made for each job, and each command imports the classes of most."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ("Exit", "value")

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    METHODS = ("__init__", "__repr__", "__eq__", "__hash__")

    def value(**options: Any) -> Callable[[type], type]:
        """A dataclass that the type checker sees as frozen. At run time it is not: that makes it ten times as dear.

        Its methods are compiled when one of them is first used: a command imports many more classes than it uses.
        """

        def made(kind: type) -> type:
            late = [name for name in METHODS if kind.__dict__.get(name) is None]
            found = dataclass(**{**options, "frozen": False, "init": False, "repr": False, "eq": False})(kind)

            def first(name: str) -> Callable[..., Any]:
                def method(*args: Any, **named: Any) -> Any:
                    full = dataclass(unsafe_hash=True)(type(found.__name__, (found,), {}))
                    for each in late:
                        setattr(found, each, full.__dict__[each])
                    return getattr(found, name)(*args, **named)

                return method

            for name in late:
                setattr(found, name, first(name))
            return found

        return made


@value(frozen=True, slots=True)
class Exit:
    """How a process ended; none of its children is left.

    `exit_code` is 128+N when signal N ended it, 127 or 126 when it could not be started; then `launch_errno`
    and `message` say why. `stopped`: a stop was asked for before the main process had ended.
    """

    exit_code: int
    signal: int | None
    launch_errno: int | None
    message: str
    stopped: bool
    ended_at: int
