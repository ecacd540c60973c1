"""Every reader at the border, with odd values and texts: it answers, or refuses with field and fix.

Never another exception, never much time (spec 2, 4, 13). A valid document is changed at one or two places, so that
the odd value gets as deep as the readers go; texts are also cut, doubled and mixed.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.specification import spec
from vctl.config import load
from vctl.core.resources import DEFAULT_UNITS
from vctl.errors import VctlError
from vctl.ops import simulate
from vctl.runtime import lines
from vctl.spec import (
    cluster_spec,
    ids,
    options,
    provider_spec,
    quantities,
    queue_settings,
    selectors,
    source,
    task_request,
    trace_jsonl,
    trace_swf,
    tree_file,
)

pytestmark = [spec("2.amounts", "4.errors", "13.errors")]

SEED = int(os.environ.get("SEED", "1"))
SLOWEST_S = 15.0

TEXTS = [
    "", " ", "\n", "\t", "x", "a" * 70, "a" * 10_000, "é" * 70, "🦄", "\0", "a\0b", "\x1b[31m", "\x9b31m",
    "\x1b]0;t\x07",
    "\u202eabc", "\u2028", "\ufeff", "\ud800", "\udcff", "-", "--", "-1", "0", "1", "1.5", "1e5", "1e400", "NaN", "nan",
    "Infinity", "-inf", "0x10", "1_000", "١٢", "½", "9" * 30, "9" * 5000, "0." + "0" * 400 + "1", "1/3", "true", "null",
    "8GiB", "8 GiB", "8gib", "-8GiB", "8XiB", "1e999GiB", "9999999999EiB", "90", "90s", "1h30m", "1h-30m",
    "30m1h", "1h1h",
    "99999999999d", "01:30:00", "1:99:99", "1:2:3:4", "::", "in()", "in(a", "in(a,,b)", "!in(a,b)", "!", "!!x",
    "exists()",
    "!exists()", "exists(x)", "ok:x", "ok:", "ok", "ok:a:b", "any:" + "x" * 500, "0-9", "0-9%2", "0-9:3%1", "9-0", "0-",
    "-0", "0-9%0", "0-9:0", "0-99999999999999", "1,2,3", "0-9%%", "USR1@60", "@60", "USR1@", "KILL@1", "99@1",
    "SIGUSR1@1h",
    "a=b", "=", "a==b", "=b", "a=", "A B=c", "2030-01-31T08:00", "2030-13-45", "0001-01-01",
    "9999-12-31T23:59:59+14:00",
    "now", "tomorrow", "1h", "kPrimaryClusterID", "primary", "a##b", "##", "a/b", "../x", ".", "..", "last",
    "NODE:", "NODE:x",
    "NODE:x:soft", "NODE:x:y:soft", "SPREAD ", "hybrid", "%s%n", "{0}", "$HOME", "`id`", "*", "?", "[", "]", "{",
    "}", '"', "'",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**70), 10**400, 0.1, 0.00001, -0.0, 1e300,
    1.5,
    float("nan"), float("inf"), float("-inf"), [], {}, [[]], [{}], {"": 1}, {"CPU": None}, {"CPU": {"CPU": 1}}, [None],
    ["a", 1], {"a": "b"}, {1: 2}, {None: None}, {"x" * 300: 1}, b"bytes", [1] * 5000, {f"k{n}": n for n in range(3000)},
]  # fmt: skip


def deep(depth: int) -> Any:
    found: Any = 1
    for level in range(depth):
        found = [found] if level % 2 else {"nodes": found}
    return found


VALUES += [deep(50), deep(180)]

SPEC = {
    "flexible_resource_min": {"CPU": 1, "memory": "8GiB"}, "flexible_resource_max": {"CPU": 10, "GPU": 2},
    "fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1, "CPU": 0.5}, "labels": {"bundle_index": "0"},
                                     "label_selector": {"ray.io/accelerator-type": "in(A100,H100)"}}],
                          "scheduling_policy": "STRICT_SPREAD"}],
    "replica_sets": {"4c8g": 1},
}  # fmt: skip
LOGICAL = {name: part for name, part in SPEC.items() if name != "replica_sets"}
TREE = {"clusters": [{"id": "lab", "divisible": True, "replica_sets": {"4c8g": 2},
                      "children": [{"id": "a", "spec": {"flexible_resource_min": {"CPU": 1}},
                                    "queue": {"order": "fair"}}]}]}  # fmt: skip
QUEUE = {"order": "fair", "discipline": "backfill", "weight": 2, "ageing_s": 5, "preemption": "requeue"}
PROVIDER = {"kind": "command", "templates": {"t": {"resources": {"CPU": 2}, "max": 3, "labels": {"a": "b"}}},
            "idle_timeout": 60, "up": ["x"], "down": ["y"]}  # fmt: skip
JOB = {
    "at": 0, "run": 5, "resources": {"CPU": 1, "memory": "1GiB"}, "nodes": 2, "policy": "SPREAD", "priority": 1,
    "cluster": "primary", "user": "ana", "limit": "1m", "name": "j1",
}  # fmt: skip
SWF = (
    "; MaxNodes: 4\n1 0 5 10 1 -1 -1 1 20 -1 1 1 1 1 1 -1 -1 -1\n2 3 0 7 2 -1 -1 2 9 -1 1 2 1 1 1 -1 -1 -1\n"
)
CONFIG = 'autostart = true\nidle_exit = "60s"\nunit_resources = ["GPU"]\n[provider]\nkind = "none"\n'

DOCUMENTS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "cluster spec": (SPEC, lambda given: cluster_spec.parse_cluster_spec(given, camel_case=True)),
    "spec of a logical cluster": (LOGICAL, lambda given: cluster_spec.parse_cluster_spec(given, logical=True)),
    "replica sets": ({"4c8g": 1}, lambda given: cluster_spec.parse_replica_sets(given, "x")),
    "tree": (TREE, tree_file.parse_tree),
    "queue": (QUEUE, queue_settings.parse_queue),
    "provider": (PROVIDER, lambda given: provider_spec.parse_provider(json.dumps(given, default=str))),
    "resources": ({"CPU": 1, "memory": "8GiB"}, lambda given: quantities.parse_resources(given, "x", DEFAULT_UNITS)),
    "labels": ({"zone": "a"}, lambda given: selectors.parse_labels(given, "x")),
    "selector": ({"zone": "in(a,b)"}, lambda given: selectors.parse_selector(given, "x")),
    "amount": (1.5, lambda given: quantities.parse_amount(given, "x")),
    "size": ("8GiB", lambda given: quantities.parse_size(given, "x")),
    "memory": ("8GiB", lambda given: quantities.parse_memory(given, "x")),
    "duration": ("1h30m", lambda given: quantities.parse_duration(given, "x")),
    "trace of JSON lines": (JOB, lambda given: trace_jsonl.read_jsonl([json.dumps(given, default=str) + "\n"], "x")),
}  # fmt: skip
TEXT: dict[str, tuple[str, Callable[[str], object]]] = {
    "JSON": (json.dumps(SPEC), lambda text: source.parse_text(text, "a spec", "x")),
    "inline JSON": (json.dumps(SPEC), lambda text: source.parse_text(text, "a spec", "x", inline="{}")),
    "YAML": ("clusters:\n- id: lab\n  replica_sets: {4c8g: 2}\n",
             lambda text: source.parse_text(text, "a", "x", yaml=True)),
    "SWF": (SWF, lambda text: trace_swf.read_swf(text.splitlines(keepends=True), "x")),
    "SWF by node": (SWF, lambda text: trace_swf.read_swf(text.splitlines(keepends=True), "x", per_node=2)),
    "trace": (f"{json.dumps(JOB)}\n" * 2, lambda text: simulate.trace_of(iter(text.splitlines(keepends=True)), "x")),
    "environment file": ("A=b\nexport C='d e'\n# x\n", lambda text: options.parse_env_file(text, "x")),
    "environment": ("A=b", lambda text: options.parse_env([text], inherited={})),
    "pairs": ("a=b", lambda text: options.parse_pairs([text], "x")),
    "label pairs": ("zone=a", lambda text: options.parse_label_pairs([text])),
    "warning": ("USR1@60", options.parse_warning_signal),
    "dependency": ("ok:j1", options.parse_dependency),
    "array": ("0-9:2%3", options.parse_array),
    "since": ("1h", lambda text: options.parse_since(text, 1e9)),
    "begin": ("2030-01-31T08:00", lambda text: options.parse_begin(text, 1e9)),
    "new id": ("team-a", ids.check_new_cluster_id),
    "id": ("kPrimaryClusterID##j", ids.resolve_cluster_id),
    "submission id": ("job-1", ids.check_submission_id),
    "strategy": ("NODE:a:soft", task_request.check_strategy),
    "object": ("part-1", lambda text: task_request.check_object_name(text, "x")),
    "policy": ("fair/backfill,backfill_depth=3,half_life_s=1h", simulate.parse_policy),
    "record": (lines.line(b"E", b"r1", b"0 0 0 0 1 2 3 4 x").decode(),
               lambda text: lines.parsed(text.encode(errors="replace"))),
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something could be put in place of what is there, or beside it."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
        found.append((*path, "unknown"))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*path, index))
    return found


def changed(document: Any, dice: random.Random) -> Any:
    """The document with odd values at one or two places."""
    made = copy.deepcopy(document)
    for _ in range(dice.choice((1, 1, 1, 2))):
        path = dice.choice(places(made))
        odd = copy.deepcopy(dice.choice(VALUES)) if dice.random() < 0.5 else dice.choice(TEXTS)
        if not path:
            made = odd
            continue
        inner = made
        for step in path[:-1]:
            inner = inner[step]
        if isinstance(inner, dict) and dice.random() < 0.25:
            inner[dice.choice(TEXTS)] = inner.pop(path[-1], 1)
        elif isinstance(inner, dict | list):
            inner[path[-1]] = odd
    return made


def mutated(text: str, dice: random.Random) -> str:
    """The text cut, doubled, mixed with odd words."""
    if dice.random() < 0.35:
        return dice.choice(TEXTS)
    for _ in range(dice.choice((1, 2, 4))):
        at = dice.randrange(len(text) + 1)
        end = min(len(text), at + dice.randrange(1, 9))
        text = dice.choice((text[:at], text[:at] + text[end:], text[:at] + dice.choice(TEXTS) + text[end:],
                            text[:at] + text[at:end] * 3 + text[end:], text + text[:500]))[:200_000]  # fmt: skip
    return text


def survives(read: Callable[[Any], object], given: Any) -> None:
    began, said = time.process_time(), None
    try:
        read(given)
    except VctlError as refused:
        said = refused
    except BaseException as error:
        error.add_note(f"given: {repr(given)[:300]}")
        raise
    assert time.process_time() - began < SLOWEST_S, repr(given)[:300]
    if said is not None:
        assert said.fix, said
        assert len(said.problem) < 3000, said.problem[:200]
        said.problem.encode()  # a message is text that can be shown
        json.dumps(said.document(), allow_nan=False)


HALVES = {
    "a field of a trace": ("trace of JSON lines", {"at": 0, "run": 1, "\ud800": 1}),
    "a setting of a policy": ("policy", "fifo/backfill,half_\udcff"),
}


@pytest.mark.parametrize(("kind", "odd"), HALVES.values(), ids=list(HALVES))
def test_half_a_character_is_never_in_a_message(kind: str, odd: object) -> None:
    with pytest.raises(VctlError) as reported:
        (DOCUMENTS | TEXT)[kind][1](odd)
    reported.value.problem.encode()


def fuzz(count: int) -> None:
    dice = random.Random(SEED)
    for document, read in DOCUMENTS.values():
        for odd in (*VALUES, *TEXTS):
            survives(read, copy.deepcopy(odd))
        for _ in range(count):
            survives(read, changed(document, dice))
    for text, read in TEXT.values():
        for odd in TEXTS:
            survives(read, odd)
        for _ in range(count):
            survives(read, mutated(text, dice))


@pytest.mark.parametrize("kind", [*DOCUMENTS, *TEXT])
def test_what_is_changed_here_is_accepted_as_it_is(kind: str) -> None:
    """Else nothing odd would get deeper than the first field."""
    given, read = (DOCUMENTS | TEXT)[kind]
    read(copy.deepcopy(given))


def test_odd_values_are_read_or_refused() -> None:
    fuzz(60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_odd_values() -> None:
    fuzz(5000)


HUGE = ["[" * 50_000, '{"a":' * 50_000, "- " * 5000, "&a [*a", '"' + "x" * 1_000_000 + '"', "1" * 1_000_000,
        "a: &x [" + "*x," * 1000 + "]", "!!python/object:os.system x"]  # fmt: skip


@pytest.mark.parametrize("text", HUGE, ids=range(len(HUGE)))
@pytest.mark.parametrize("yaml", [False, True])
def test_what_is_deep_or_huge_is_refused_soon(text: str, yaml: bool) -> None:
    survives(lambda given: source.parse_text(given, "a spec", "x", yaml=yaml), text)


def test_odd_settings_are_named(tmp_path: Any) -> None:
    dice = random.Random(SEED)
    file = tmp_path / "vctl" / "config.toml"
    file.parent.mkdir()
    for _ in range(150):
        file.write_bytes(mutated(CONFIG, dice).encode(errors="surrogatepass"))

        def read(_: object) -> None:
            config = load(env={"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}, cwd=tmp_path)
            for name in ("autostart", "idle_exit", "unit_resources", "provider"):
                config.get(name)

        survives(read, file.read_bytes())
