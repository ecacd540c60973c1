"""Values that do not change, of which many are made for each job."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ("Exit", "value")

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(**options: Any) -> Callable[[type], type]:
        """A dataclass that the type checker sees as frozen. At run time it is not: that makes it ten times as dear."""

        def made(kind: type) -> type:
            hashes = kind.__dict__.get("__hash__") is None
            return dataclass(**{**options, "frozen": False, "unsafe_hash": hashes})(kind)

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
