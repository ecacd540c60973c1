"""Grows a job's Ray with its demand: each additional raylet is a task, with a lease, a queue and a reason.

While such tasks exist, other tasks hold the resources of the raylets that the job started with. Otherwise
the scheduler would place the raylet tasks on these resources. Stand-alone; the decisions are in
``ray_demand.py``.
"""

import json
import os
import subprocess
import sys
import time

MYPY = False
if MYPY or __package__:
    from typing import Any

    from vctl.ray.private import ray_demand, ray_gcs, ray_join, ray_parent
    from vctl.ray.private.ray_parent import Parent, say
else:
    import ray_demand
    import ray_gcs
    import ray_join
    import ray_parent
    from ray_parent import Parent, say

RAYLET, HOLD = "ray-raylet", "ray-hold"
"""Names of tasks: a raylet; a hold on the resources of the raylets that the job started with."""
POLL_S = 1.0
WAIT_S = 2.0
"""After this long, a raylet task that has not started is cancelled, and one half as large is submitted."""
AGAIN_S = 30.0
"""How long to wait after a failure of ``vctl task`` or of ray_gcs.py before the next try."""
_JOIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_join.py")


class RayletTask:
    """A raylet task: its resources and label selectors; ``more``: whether a smaller raylet would help too."""

    def __init__(self, amounts: "ray_demand.Amounts", where: "ray_demand.Where", *, more: bool) -> None:
        self.amounts, self.where, self.more = amounts, where, more
        self.since = time.monotonic()
        self.known = self.started = False


class RayletGrowth:
    """Submits raylet tasks when Ray lacks resources, and drains their raylets when they are idle."""

    def __init__(self, parent: Parent, nodes: str, env: dict[str, str]) -> None:
        self.parent, self.nodes, self.env = parent, nodes, env
        self.tasks: dict[str, RayletTask] = {}
        """Task id -> the raylet."""
        self.holds: list[str] = []
        """Ids of the tasks that hold the resources of the first raylets."""
        self.leaving: set[str] = set()
        """Ray nodes that were idle and drain."""
        self.scale = 1
        """See ``ray_demand.lacking``; doubled when a raylet task finds no place."""
        self.lacked = False
        """Whether the last look found a lack; raylets are requested at the second such look in a row."""
        self.not_before = 0.0
        self.watch: subprocess.Popen[bytes] | None = None
        """ray_gcs.py, which writes the demand of Ray."""
        self.line = b""
        self.again_s = AGAIN_S
        self.inputs: list[int] = []
        """The descriptor from which the demand is read; empty while ray_gcs.py does not run."""

    def turn(self, shown: "dict[str, Any]") -> None:
        """Read the demand of Ray, and act on the newest line; starts ray_gcs.py if it does not run."""
        if self.watch is None:
            if time.monotonic() >= self.not_before:
                self._watch()
            return
        try:
            read = os.read(self.output, 1 << 20)
        except BlockingIOError:
            return
        if not read:
            if self.again_s == AGAIN_S:
                say(f"what Ray has to do cannot be read, so it does not grow: {self.parent.last_lines()}")
            self.close()
            self.not_before = time.monotonic() + self.again_s
            self.again_s *= 2
            return
        *lines, self.line = (self.line + read).split(b"\n")
        if lines:
            self.act(json.loads(lines[-1]), shown)

    def close(self) -> None:
        """Read no more of ray_gcs.py, which has ended."""
        if self.watch is not None:
            self.inputs.clear()
            os.close(self.output)
            self.watch = None

    def _watch(self) -> None:
        parent = self.parent
        words = [parent.python, ray_parent.GCS, parent.address, ray_gcs.WATCH, f"{POLL_S:g}"]
        self.line = b""  # the one before may have ended within a line
        self.output, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(theirs, True)
        with open(parent.log, "ab") as log:
            self.watch = subprocess.Popen(
                words,
                env=parent.env,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs)
        self.inputs.append(self.output)

    def act(self, seen: "dict[str, Any]", shown: "dict[str, Any]") -> None:
        """Submit lacking raylets, and drain idle ones. ``seen``: a line of ray_gcs.py; ``shown``: NODES."""
        elastic = shown.get("elastic")
        self._note({} if elastic is None else elastic["raylets"])
        joined = {
            task: (node_id, node)
            for node_id, node in seen["nodes"].items()
            if (task := node["labels"].get(ray_join.TASK_LABEL)) in self.tasks
        }
        if elastic is None or time.monotonic() < self.not_before:
            return
        waiting = [task for task, raylet in self.tasks.items() if not raylet.started and task not in joined]
        unmet = bool(self._lacking(seen, shown, [task for task in self.tasks if task not in waiting], joined))
        for task in waiting:
            raylet = self.tasks[task]
            if not unmet or (raylet.more and time.monotonic() - raylet.since > WAIT_S):
                del self.tasks[task]
                self._vctl("cancel", task)
                self.scale *= 2
        self.scale = self.scale if unmet else 1
        lacking = self._lacking(seen, shown, list(self.tasks), joined)
        if lacking and self.lacked:
            self._ask(lacking, shown)
        self.lacked = bool(lacking)
        self._let_go(seen, joined, float(elastic["idle_s"]))
        if self.holds and not self.tasks:
            for task in self.holds:
                self._vctl("cancel", task)
            self.holds.clear()

    def _note(self, tasks: "dict[str, bool]") -> None:
        """Update the raylet tasks. ``tasks``: task id -> whether it runs; a task that vanished has ended."""
        for task, raylet in list(self.tasks.items()):
            if raylet.known and task not in tasks:
                del self.tasks[task]
            raylet.known, raylet.started = task in tasks, tasks.get(task, False)

    def _lacking(
        self, seen: "dict[str, Any]", shown: "dict[str, Any]", tasks: list[str], joined: "dict[str, Any]"
    ) -> "list[ray_demand.Node]":
        """The nodes that Ray lacks in addition to its nodes and to the raylets of these tasks."""
        elastic, nodes = shown["elastic"], seen["nodes"].values()
        coming = [(self.tasks[task].amounts, self.tasks[task].where) for task in tasks if task not in joined]
        held = ray_demand.total(
            [*(node["resources"] for node in _all(shown)), *(self.tasks[task].amounts for task in tasks)]
        )
        limit = ray_demand.less(elastic["most"], held)
        limit |= {name: min(a, limit.get(name, a)) for name, a in elastic["largest"].items()}
        free = [*((node["free"], node["labels"]) for node in nodes), *coming]
        now = ray_demand.lacking(free, seen["requests"], seen["gangs"], limit, self.scale)
        stay = [node for node_id, node in seen["nodes"].items() if node_id not in self.leaving]
        total = [*((node["total"], node["labels"]) for node in stay if node["free"]), *coming]
        return now or ray_demand.lacking(total, _constraints(seen), [], limit, self.scale)

    def _ask(self, lacking: "list[ray_demand.Node]", shown: "dict[str, Any]") -> None:
        if not self.holds:
            for node in _all(shown):
                if any(node["unused"].values()):
                    task = self._run(
                        HOLD, node["unused"], ["--strategy", f"NODE:{node['id']}"], ["sleep", "infinity"]
                    )
                    self.holds += [task] if task else []
        for amounts, where, more in lacking:
            options = ["--label-selector", json.dumps(where)] if where else []
            command = [sys.executable, "-I", "-S", _JOIN, self.nodes, self.parent.folder]
            if (task := self._run(RAYLET, amounts, options, command)) is None:
                break
            self.tasks[task] = RayletTask(amounts, where, more=more)

    def _let_go(self, seen: "dict[str, Any]", joined: "dict[str, Any]", idle_s: float) -> None:
        """Drain the newest idle raylet that is not needed; Ray refuses if the raylet is busy again."""
        constraints = _constraints(seen)
        self.leaving &= seen["nodes"].keys()
        newest_first = sorted(joined, key=lambda task: -self.tasks[task].since)
        for node_id, node in (joined[task] for task in newest_first):
            if node_id in self.leaving or not node["free"] or node["idle_s"] < idle_s:
                continue
            away = {node_id, *self.leaving}
            others = [
                (node["total"], node["labels"]) for key, node in seen["nodes"].items() if key not in away
            ]
            if constraints and ray_demand.lacking(others, constraints, [], {}, 1):
                continue
            if self.parent.drain(node_id, ray_gcs.IDLE, 0, f"idle for {idle_s:g} s"):
                self.leaving.add(node_id)
            return

    def _run(
        self, name: str, amounts: "ray_demand.Amounts", options: list[str], command: list[str]
    ) -> str | None:
        """Submit a task of the job; its id, or None if that failed."""
        rest = {key: amount for key, amount in amounts.items() if key not in ("CPU", "GPU")}
        return self._vctl(
            "run", "--no-wait", "-o", "name", "--name", name, "--num-cpus", f"{amounts.get('CPU', 0):g}",
            "--num-gpus", f"{amounts.get('GPU', 0):g}", "--resources", json.dumps(rest), *options, "--", *command,
        )  # fmt: skip

    def _vctl(self, *words: str) -> str | None:
        """Run ``vctl task``; its output, or None if it failed, which is written to the log."""
        path = f"{self.parent.folder}/task.log"
        with open(path, "w+", encoding="utf-8", errors="replace") as file:
            code = self.parent.finish([sys.executable, "-I", "-m", "vctl", "task", *words], self.env, file)
            file.seek(0)
            text = file.read().strip()
        if code:
            self.not_before = time.monotonic() + AGAIN_S
            say(f"`vctl task {words[0]}` failed, so Ray does not grow: {text}")
            return None
        return text


def _all(shown: "dict[str, Any]") -> "list[dict[str, Any]]":
    """All virtual nodes, including those on other machines."""
    return [*shown["nodes"], *shown.get("others", ())]


def _constraints(seen: "dict[str, Any]") -> "list[tuple[ray_demand.Amounts, ray_demand.Where, int]]":
    """The total that the program has requested (``ray.autoscaler.sdk.request_resources``)."""
    return [(shape, {}, count) for shape, count in seen["constraints"]]
