"""Reads the ``provider`` setting: the machines that a node provider can make, and its commands for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vctl.core.nodes import Template
from vctl.core.resources import DEFAULT_UNITS
from vctl.core.values import value
from vctl.spec.fields import as_count, as_list, as_mapping, as_text, child, did_you_mean, refuse
from vctl.spec.quantities import parse_duration, parse_resources
from vctl.spec.selectors import parse_labels
from vctl.spec.source import read_document

NONE, SIMULATED, COMMAND, RAY = KINDS = ("none", "simulated", "command", "ray")
TIMEOUT_S = 300.0
_TEMPLATE = '{"resources": {"CPU": 2}, "max": 4}'
_EXAMPLE = f'{{"2c": {_TEMPLATE}}}'


@value(frozen=True, slots=True)
class ProviderSpec:
    """A node provider.

    ``boot_s``: time until a simulated node joins. ``idle_s``: time until an unused node is released.
    ``timeout_s``: time until a command of the provider is killed. ``up``, ``down``: the commands.
    """

    kind: str = NONE
    templates: tuple[Template, ...] = ()
    boot_s: float = 0.0
    idle_s: float = 60.0
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    units: frozenset[str] = DEFAULT_UNITS

    def kinds(self) -> list[dict[str, Any]]:
        """The templates and the most nodes of each, as stored for the check whether a job can ever run."""
        return [
            {"name": t.name, "resources": dict(t.resources), "labels": dict(t.labels), "most": t.most,
             "units": sorted(t.units)}
            for t in self.templates
        ]  # fmt: skip


def parse_provider(
    text: str | None, *, timeout_s: float = TIMEOUT_S, units: frozenset[str] = DEFAULT_UNITS
) -> ProviderSpec:
    """Read the ``provider`` setting: JSON or ``@file``."""
    if not text:
        return ProviderSpec()
    document = as_mapping(
        read_document(text, "a node provider", "provider"), "provider", "a provider", '{"kind": …}'
    )
    _check_fields(document, "provider", ("kind", "templates", "boot_time", "idle_timeout", "up", "down"))
    if "kind" not in document:
        raise refuse("provider", "it has no kind", f"add a kind: {', '.join(KINDS)}")
    kind = as_text(document["kind"], "provider.kind", "the kind")
    if kind not in KINDS:
        raise refuse("provider.kind", f"unknown kind {kind!r}", f"kinds: {', '.join(KINDS)}")
    for field, owner in (("boot_time", SIMULATED), ("up", COMMAND), ("down", COMMAND)):
        if field in document and kind not in (NONE, RAY, owner):
            raise refuse(child("provider", field), f"only a {owner} provider has it", "leave it out")
    if kind == RAY and (of_others := sorted(document.keys() - {"kind", "templates"})):
        raise refuse(child("provider", of_others[0]), "Ray's autoscaler decides that", "leave it out")
    templates = as_mapping(document.get("templates", {}), "provider.templates", "templates", _EXAMPLE)
    spec = ProviderSpec(
        kind,
        tuple(_template(name, value, units) for name, value in templates.items()),
        float(parse_duration(document.get("boot_time", 0), "provider.boot_time")),
        float(parse_duration(document.get("idle_timeout", 60), "provider.idle_timeout")),
        _command(document.get("up"), "provider.up"),
        _command(document.get("down"), "provider.down"),
        timeout_s,
        units,
    )
    if kind == COMMAND and not (spec.up and spec.down):
        raise refuse("provider", "a command provider needs up and down", "give both as lists of words")
    if kind != NONE and not spec.templates:
        fix = "name the node types of Ray's autoscaler" if kind == RAY else f"add templates: {_EXAMPLE}"
        raise refuse("provider", f"a {kind} provider needs templates", fix)
    return spec


def _check_fields(document: Mapping[str, object], path: str, known: Sequence[str]) -> None:
    for key in document:
        if key not in known:
            raise refuse(child(path, key), "unknown field", did_you_mean(key, known))


def _template(name: str, value: object, units: frozenset[str]) -> Template:
    path = child("provider.templates", name)
    fields = as_mapping(value, path, "a template", _TEMPLATE)
    _check_fields(fields, path, ("resources", "max", "labels"))
    resources = parse_resources(fields.get("resources", {}), child(path, "resources"), units, totals=True)
    if not any(resources.values()):
        raise refuse(path, "a template without resources", f"write it as {_TEMPLATE}")
    maximum = as_count(fields.get("max", 1), child(path, "max"), "the maximum", maximum=100_000)
    return Template(
        name, resources, maximum, parse_labels(fields.get("labels", {}), child(path, "labels")), units
    )


def _command(value: object, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(
        as_text(word, path, "a word of the command") for word in as_list(value, path, "the command", '["x"]')
    )
