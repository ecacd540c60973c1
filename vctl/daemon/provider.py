"""The node provider: makes nodes when what waits needs them, and lets go of those that are idle.

``simulated`` declares nodes after a boot time. ``command`` calls the user's executables with JSON on standard
input: ``up`` answers ``{"nodes": [{"node_id": …}]}`` (or nothing: ids are made up), ``down`` gets the ids to end.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vctl.core.nodes import Node
from vctl.core.resources import whole_node
from vctl.daemon.mirror import Mirror
from vctl.ops.feasible import TEMPLATES
from vctl.ops.nodes import NODE_ID
from vctl.scheduler.provisioning import Template, wanted_nodes
from vctl.spec.fields import as_count, as_list, as_mapping, as_text, child, refuse
from vctl.spec.quantities import parse_duration, parse_resources
from vctl.spec.selectors import parse_labels
from vctl.spec.source import read_document
from vctl.store import nodes
from vctl.store.store import Store

MADE_BY = "vctl.io/provider"
"""Label of a node that the provider made, and may take away."""
COMMAND_TIMEOUT_S = 60.0
RETRY_S = 10.0
CLOSE_S = 2.0
KINDS = ("none", "simulated", "command")


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """What the configuration says: ``boot_s`` until a simulated node is there, ``idle_s`` until an unused one goes."""

    kind: str = "none"
    templates: tuple[Template, ...] = ()
    boot_s: float = 0.0
    idle_s: float = 60.0
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()


def parse_provider(text: str | None) -> ProviderSpec:
    """Read the ``provider`` setting: JSON or ``@file``."""
    if not text:
        return ProviderSpec()
    document = as_mapping(
        read_document(text, "a node provider", "provider"), "provider", "a provider", '{"kind": …}'
    )
    known = ("kind", "templates", "boot_time", "idle_timeout", "up", "down")
    for key in document:
        if key not in known:
            raise refuse(child("provider", key), "unknown field", f"fields: {', '.join(known)}")
    kind = as_text(document.get("kind", "none"), "provider.kind", "the kind")
    if kind not in KINDS:
        raise refuse("provider.kind", f"unknown kind {kind!r}", f"kinds: {', '.join(KINDS)}")
    templates = as_mapping(document.get("templates", {}), "provider.templates", "templates", '{"2c": {…}}')
    spec = ProviderSpec(
        kind,
        tuple(_template(name, value) for name, value in templates.items()),
        float(parse_duration(document.get("boot_time", 0), "provider.boot_time")),
        float(parse_duration(document.get("idle_timeout", 60), "provider.idle_timeout")),
        _command(document.get("up"), "provider.up"),
        _command(document.get("down"), "provider.down"),
    )
    if kind == "command" and not (spec.up and spec.down):
        raise refuse("provider", "a command provider needs up and down", "give both as lists of words")
    return spec


def _template(name: str, value: object) -> Template:
    path = child("provider.templates", name)
    fields = as_mapping(value, path, "a template", '{"resources": {"CPU": 2}, "max": 4}')
    resources = parse_resources(fields.get("resources", {}), child(path, "resources"), totals=True)
    most = as_count(fields.get("max", 1), child(path, "max"), "the maximum", most=100_000)
    return Template(name, resources, most, parse_labels(fields.get("labels", {}), child(path, "labels")))


def _command(value: object, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(
        as_text(word, path, "a word of the command") for word in as_list(value, path, "the command", '["x"]')
    )


@dataclass(slots=True)
class _Boot:
    """Nodes on their way: simulated ones until ``ready``, those of a command until its process has answered."""

    template: Template
    count: int
    ready: float
    process: subprocess.Popen[bytes] | None = None


@dataclass(slots=True)
class Provider:
    """Carries out what ``wanted_nodes`` decides; the tables tell which nodes it has made."""

    store: Store
    spec: ProviderSpec
    booting: list[_Boot] = field(default_factory=list)
    _idle_since: dict[str, float] = field(default_factory=dict)
    _ending: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Scale-down commands that have not been seen to end."""
    _made: int = 0
    _retry_at: float = 0.0
    _due: float | None = None

    def due_s(self) -> float:
        """Seconds until something is due."""
        return float("inf") if self._due is None else max(0.0, self._due - time.monotonic())

    def announce(self) -> None:
        """Tell submitters what could be had at most: who judges whether a job can ever run needs it."""
        kinds = [
            {"name": t.name, "resources": dict(t.resources), "labels": dict(t.labels), "most": t.most}
            for t in self.spec.templates
        ]
        if kinds != (self.store.recall(TEMPLATES) or []):
            with self.store.transaction():
                self.store.remember(TEMPLATES, kinds)

    def turn(self, mirror: Mirror) -> None:
        """Let booted nodes join, ask for more when something waits for them, release idle ones."""
        if self.spec.kind == "none":
            return
        self._due = None
        self._reap()
        self._join(mirror)
        if time.monotonic() >= self._retry_at:
            self._scale_up(mirror)
        self._scale_down(mirror)

    def _reap(self) -> None:
        for process in [one for one in self._ending if one.poll() is not None]:
            _close(process)
            self._ending.remove(process)
        if self._ending:
            self._wake_in(1.0)

    def close(self) -> None:
        """Wait for commands that are still at work, within their time, so that none is left behind."""
        for process in [*self._ending, *(boot.process for boot in self.booting if boot.process)]:
            try:
                process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)
        self._ending.clear()

    def _present(self, mirror: Mirror) -> dict[str, int]:
        counts: dict[str, int] = {}
        for node in mirror.ledger.nodes.values():
            if node.labels.get(MADE_BY) and node.state != "DEAD":
                counts[node.template_id] = counts.get(node.template_id, 0) + 1
        for boot in self.booting:
            counts[boot.template.name] = counts.get(boot.template.name, 0) + boot.count
        return counts

    def _scale_up(self, mirror: Mirror) -> None:
        if self.booting or not (mirror.tasks or any(queue.jobs for queue in mirror.queues.values())):
            return
        wanted = wanted_nodes(
            mirror.ledger, mirror.queues, mirror.tasks, self.spec.templates, self._present(mirror)
        )
        for template in self.spec.templates:
            if count := wanted.get(template.name, 0):
                self._boot(template, count)
        self._join(mirror)

    def _boot(self, template: Template, count: int) -> None:
        ready = time.monotonic() + self.spec.boot_s
        process = None
        if self.spec.kind == "command":
            ask = {"action": "up", "template": template.name, "count": count}
            process = _call(self.spec.up, ask)
            if process is None:
                self._retry_at = time.monotonic() + RETRY_S
                self._wake_in(RETRY_S)
                return
            ready = time.monotonic() + COMMAND_TIMEOUT_S
        self.booting.append(_Boot(template, count, ready, process))

    def _join(self, mirror: Mirror) -> None:
        """Add the nodes that are ready; a command that failed is tried again after a while."""
        now, left = time.monotonic(), []
        for boot in self.booting:
            ids: Sequence[str | None] = [None] * boot.count
            if boot.process is not None:
                if boot.process.poll() is None and now < boot.ready:
                    left.append(boot)
                    self._wake_in(0.2)
                    continue
                answer = _answer(boot.process, boot.count)
                if answer is None:
                    self._retry_at = now + RETRY_S
                    self._wake_in(RETRY_S)
                    continue
                ids = answer
            elif now < boot.ready:
                left.append(boot)
                self._wake_in(boot.ready - now)
                continue
            self._add(boot.template, ids)
        self.booting = left
        mirror.follow(self.store)

    def _add(self, template: Template, ids: Sequence[str | None]) -> None:
        with self.store.transaction():
            for wanted in ids:
                node_id = wanted or self._fresh(template.name)
                labels = {**template.labels, MADE_BY: self.spec.kind}
                if nodes.get(self.store, node_id) is None:
                    node = Node(node_id, template.name, whole_node(template.resources), node_id, labels)
                    nodes.insert(self.store, node)

    def _fresh(self, name: str) -> str:
        taken = set(nodes.ids_like(self.store, f"{name}-p"))
        while True:
            self._made += 1
            if f"{name}-p{self._made}" not in taken:
                return f"{name}-p{self._made}"

    def _scale_down(self, mirror: Mirror) -> None:
        """Take away nodes of ours that have been empty for the idle time."""
        now, gone = time.monotonic(), []
        for node_id, node in mirror.ledger.nodes.items():
            if not node.labels.get(MADE_BY):
                continue
            if mirror.ledger.children[node_id] or node_id in mirror.ledger.homes:
                self._idle_since.pop(node_id, None)
                continue
            since = self._idle_since.setdefault(node_id, now)
            if now - since >= self.spec.idle_s:
                gone.append(node_id)
            else:
                self._wake_in(self.spec.idle_s - (now - since))
        for node_id in gone:
            self._release(mirror, node_id)

    def _release(self, mirror: Mirror, node_id: str) -> None:
        with self.store.transaction():
            mirror.follow(self.store)
            if mirror.ledger.children.get(node_id) or node_id in mirror.ledger.homes:
                return
            nodes.delete(self.store, node_id)
        self._idle_since.pop(node_id, None)
        if self.spec.kind == "command":
            process = _call(self.spec.down, {"action": "down", "nodes": [node_id]})
            self._ending += [] if process is None else [process]
        mirror.follow(self.store)

    def _wake_in(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._due = at if self._due is None else min(self._due, at)


def _call(command: Sequence[str], ask: Mapping[str, Any]) -> subprocess.Popen[bytes] | None:
    """Start the user's executable with a question on its standard input; None when it cannot be started."""
    try:
        process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, start_new_session=True
        )
    except OSError as error:
        sys.stderr.write(f"provider: cannot run {command[0]}: {error.strerror}\n")
        return None
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as question:  # it need not listen
        question.write(json.dumps(ask).encode() + b"\n")
    return process


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()


def _answer(process: subprocess.Popen[bytes], count: int) -> Sequence[str | None] | None:
    """The node ids that a scale-up answered; None when it failed or timed out."""
    if process.poll() is None:
        process.kill()
        process.wait()
    assert process.stdout is not None
    with process.stdout as answer:
        output = answer.read()
    if process.returncode != 0:
        return None
    try:
        listed = json.loads(output)["nodes"] if output.strip() else []
        ids: list[str | None] = [str(node["node_id"]) for node in listed]
    except (ValueError, KeyError, TypeError):
        return None
    return [i for i in ids if i and NODE_ID.match(i)] or [None] * count
