"""Values that do not change, of which many are made for each job."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ("value",)

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
