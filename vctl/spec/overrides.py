"""Other values of some parameters, for a request that there is already: what is not given stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

from vctl.spec.params import Declared, Fields, Param, Reading

T = TypeVar("T")


class Overrides(Generic[T]):
    """Other values of some parameters of a class, for values of that class that are there already."""

    def __init__(self, declaration: Declared, reading: Reading, values: Mapping[str, Any]) -> None:
        self._declaration, self._reading, self.values = declaration, reading, values

    def of(self, one: T, names: Collection[str] | None = None) -> T:
        """The changed value; ``names``: only these parameters are changed."""
        values = {n: value for n, value in self.values.items() if names is None or n in names}
        return self._declaration.changed(self._reading, one, values)


class OptionalFields(Fields[T]):
    """The fields of a class as parameters of a verb that changes values of it: what is not given stays as it is.

    ``but``: fields that are fixed, or that another verb changes.
    """

    def __init__(self, kind: Callable[[], type[T]], but: Collection[str]) -> None:
        super().__init__(kind)
        self._but = but

    @cached_property
    def params(self) -> Mapping[str, Param]:
        """The parameters of the verb."""
        fixed = self._but
        params = self.declared.params.items()
        return {
            name: one.of_change() for name, one in params if not self.declared.fields_of([name]) & set(fixed)
        }

    def read(
        self, context: Any, values: Mapping[str, Any], given: Mapping[str, Any] | None = None
    ) -> Overrides[T]:
        """The change that these values of parameters stand for."""
        return Overrides(self.declared, Reading(context.units, values if given is None else given), values)
