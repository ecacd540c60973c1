"""``--min`` and ``--max`` of ``vc create`` and ``vc update``: the two bounds of a cluster spec without JSON."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from vctl.errors import BadSpec
from vctl.spec.params import NOTHING, Given, Opt, Together

MINIMUM, MAXIMUM = "flexible_resource_min", "flexible_resource_max"
_NAMES = {MINIMUM: "--min", MAXIMUM: "--max"}
EXAMPLES = {MINIMUM: "GPU=1,memory=8GiB", MAXIMUM: "GPU=4"}


def _option(field: str, help: str) -> object:
    return Annotated[list[str] | None, Opt(_NAMES[field], metavar="NAME=AMOUNT,…", help=help)]


BOUNDS = Together(
    flexible_resource_min=_option(
        MINIMUM,
        "Resources that are always its own: GPU=1,memory=8GiB; repeatable. An update keeps what is not named.",
    ),
    flexible_resource_max=_option(
        MAXIMUM, "Most resources that it may have: GPU=4; repeatable. GPU=none: no limit."
    ),
)
"""The options, by the fields of a cluster spec."""


def spec_of(given: Given, present: Mapping[str, Any]) -> dict[str, Any] | None:
    """The spec of a cluster with these bounds, and else as it is at present; None without any."""
    if not given:
        return None
    spec: dict[str, Any] = dict(present)
    for field, texts in given.items():
        bounds = dict(spec.get(field) or {})
        for name, amount in _amounts(texts, field).items():
            if amount is None:
                bounds.pop(name, None)
            else:
                bounds[name] = amount
        spec[field] = bounds
    return spec


@contextmanager
def spelled(given: Given) -> Iterator[None]:
    """Let errors name the options where they name the fields of the spec."""
    try:
        yield
    except BadSpec as error:
        if not given:
            raise
        problem, fix = error.problem, error.fix
        for field, option in _NAMES.items():
            problem, fix = (
                problem.replace(f"{field}.", f"{option} ").replace(field, option),
                fix.replace(field, option),
            )
        raise BadSpec(problem, fix=fix, details=error.details) from None


def small_memory(given: Given) -> str | None:
    """A warning when a bound is less memory than a process needs; else None."""
    from vctl.cli.submission import small_size

    for field, texts in (given or {}).items():
        for pair in ",".join(texts).split(","):
            name, _, amount = (part.strip() for part in pair.partition("="))
            if name == "memory" and (warning := small_size(f"{_NAMES[field]} memory", amount)):
                return warning
    return None


def check_alone(given: Given, others: Given) -> None:
    """Refuse the bounds beside another form of the resources of a cluster."""
    for option, name in (("--spec", "spec"), ("--replica-sets", "replica_sets")):
        if given and (others or {}).get(name) is not None:
            ours = " and ".join(_NAMES[field] for field in _NAMES if field in given)
            what = "has both bounds" if name == "spec" else "is whole nodes, which have no bounds"
            raise BadSpec(f"{ours}: {option} {what}", fix=f"leave out {ours}, or {option}")


def _amounts(texts: Sequence[str], field: str) -> dict[str, int | float | None]:
    from vctl.core.resources import DEFAULT_UNITS
    from vctl.spec.fields import child, refuse, show
    from vctl.spec.quantities import SIZES, check_resource_name, format_amount, parse_amount, parse_memory

    option = _NAMES[field]
    amounts: dict[str, int | float | None] = {}
    for pair in (pair for text in texts for pair in text.split(",")):
        name, equals, amount = (part.strip() for part in pair.partition("="))
        if not (name and equals and amount):
            raise refuse(option, f"{show(pair)} is not NAME=AMOUNT", f"write {option} {EXAMPLES[field]}")
        check_resource_name(name, option, DEFAULT_UNITS)
        if amount.startswith("+"):
            raise refuse(option, f"{show(pair)}: nothing is added", f"write the whole amount: {name}=8")
        if name in amounts:
            raise refuse(option, f"{name} is given twice", "keep one of the two")
        if amount in NOTHING:
            amounts[name] = None
            continue
        read = parse_memory if name in SIZES else parse_amount
        amounts[name] = format_amount(read(amount, child(option, name)))
    return amounts
