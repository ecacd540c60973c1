"""Who may submit to a cluster, who administers it, and whether it shows the names of its jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vctl.core.identity import Identity
from vctl.core.values import value

GROUP = "@"
"""What a name begins with that is a group's: ``@lab``."""


@value(frozen=True, slots=True)
class Access:
    """What a cluster says about that itself; the rest comes from the cluster above it."""

    submitters: tuple[str, ...] = ()
    """Empty: those of the nearest cluster above that names any; everybody if none does."""
    admins: tuple[str, ...] = ()
    """They administer what lies below it, too."""
    private_queue: bool | None = None
    """Whether names of jobs and their users are hidden from others; None: as above it."""

    @property
    def given(self) -> dict[str, Any]:
        """What is not as above it, as JSON."""
        said = {"submitters": list(self.submitters), "admins": list(self.admins)}
        hides = {} if self.private_queue is None else {"private_queue": self.private_queue}
        return {name: names for name, names in said.items() if names} | hides

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Access:
        """The value of what ``given`` returned."""
        submitters, admins = (tuple(given.get(name, ())) for name in ("submitters", "admins"))
        return cls(submitters, admins, given.get("private_queue"))


def names(people: Iterable[str], who: Identity) -> bool:
    """Whether a user is among people, by name or by a group."""
    return any(one[1:] in who.groups if one.startswith(GROUP) else one == who.name for one in people)
