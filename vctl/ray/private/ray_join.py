"""A raylet as a task of its job: joins the job's Ray with the task's resources, drains before the task ends.

Run as a script, ``python -I -S ray_join.py NODES FOLDER``, as a task that the keeper submits
(``ray_growth.py``). The raylet has the resources of the task and the labels of its virtual node. When a
lease is called in (VCTL_LEASE_FILE) and the task has to end for it, the script drains the raylet. SIGTERM
reaches the raylet too.

On one machine, FOLDER is the directory of the Ray: ``join.json`` in it says how to join, and it is removed
when the Ray is over. On several machines, NODES says how to join and contains the notice of the lease, and
this script makes and removes FOLDER.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import sys
import time

MYPY = False
if MYPY or __package__:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from vctl.ray.private import ray_gcs, ray_parent, raylets
    from vctl.ray.private.ray_parent import Failed, Over, Parent, say
    from vctl.runtime import watch
else:
    _HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_HERE, os.path.join(_HERE, "../../runtime")]
    import ray_gcs
    import ray_parent
    import raylets
    import watch
    from ray_parent import Failed, Over, Parent, say

TASK_LABEL = "vctl.io/task-id"
NOTICE_S = 10.0
"""How long to wait for the virtual node in NODES: the scheduler writes NODES when the task starts."""
_POLL_S = 0.5


class Guest(Parent):
    """The parent of one raylet."""

    def __init__(self, nodes: str, folder: str) -> None:
        self.nodes, self.task, self.changes = nodes, os.environ["VCTL_TASK_ID"], watch.Watch()
        with open(nodes, encoding="utf-8") as file:
            self.alone = "address" in json.load(file)
        join, self.own_address = self.how_to_join(folder)
        super().__init__(join["ray"], folder)
        self.address = join["address"]
        self.log = f"{folder}/{self.task}.log"
        self.env = raylets.environment(join["env"], folder)

    def serve(self) -> None:
        """Start the raylet and wait for its end; drain it when the lease of the task is called in."""
        self.become_parent()
        options = [f"--address={self.address}", f"--include-log-monitor={str(self.alone).lower()}"]
        if self.alone:
            os.mkdir(self.folder, 0o700)
            options.append(f"--node-ip-address={self.own_address}")
            self.changes.add(pathlib.Path(self.nodes).parent, watch.MOVED_TO)
        else:
            self.changes.add(pathlib.Path(self.folder, ray_parent.JOIN), watch.DELETE_SELF)
            self.ends = self.changes.fileno()
        part = {
            "resources": json.loads(os.environ["VCTL_RESOURCES"]),
            "gpus": [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu],
            "labels": {**self.labels(), TASK_LABEL: self.task},
        }
        pid, node_id = self.start_raylet(options, part, f"{os.environ['VCTL_VNODE_ID']}#{self.task}", None)
        until = None
        while pid not in self.ended and (until is None or time.monotonic() < until):
            if until is None and (seconds := self.is_to_go()):
                text = "the virtual cluster gives it back"
                accepted = self.drain(node_id, ray_gcs.PREEMPTED, seconds, text)
                until = time.monotonic() + (seconds if accepted else 0)
            self.pause(
                _POLL_S if until else ray_parent.START_S, [self.changes.fileno()] if self.alone else ()
            )
            self.changes.read()
        if self.ended.get(pid):
            self.note_death(node_id)

    def how_to_join(self, folder: str) -> "tuple[dict[str, Any], str]":
        """How a raylet joins this Ray, and this machine's address (empty on one machine). Raises Failed."""
        if not self.alone:
            with open(f"{folder}/{ray_parent.JOIN}", encoding="utf-8") as file:
                return json.load(file), ""
        for shown in self.documents():
            if shown.get("join"):
                return shown["join"], shown["address"]
        raise Failed("nobody says how to join")

    def end(self) -> None:
        """Kill the raylet, and remove FOLDER if this process made it."""
        super().end()
        if self.alone:
            shutil.rmtree(self.folder, ignore_errors=True)

    def is_to_go(self) -> float | None:
        """Seconds until the task will be ended, if there is a new notice that names it; else None."""
        notified, self.signals = signal.SIGURG in self.signals, set()
        if notified or self.alone:
            with contextlib.suppress(OSError, ValueError, KeyError):
                with open(
                    self.nodes if self.alone else os.environ["VCTL_LEASE_FILE"], encoding="utf-8"
                ) as file:
                    notice = json.load(file)
                if self.alone:
                    notice = notice["notice"]
                if self.task in notice["task_ids"]:
                    return max(float(notice["ends_at_ns"] / 1e9 - time.time()), 0.1)
        return None

    def labels(self) -> dict[str, str]:
        """The labels of the virtual node of the task. Raises Failed."""
        for shown in self.documents():
            for node in shown["nodes"]:
                if node["id"] == os.environ["VCTL_VNODE_ID"]:
                    return dict(node["labels"])
        raise Failed("its virtual node is unknown")

    def documents(self) -> "Iterator[dict[str, Any]]":
        """NODES again and again, for at most NOTICE_S seconds."""
        give_up = time.monotonic() + NOTICE_S
        while True:
            with open(self.nodes, encoding="utf-8") as file:
                yield json.load(file)
            if time.monotonic() > give_up:
                return
            time.sleep(0.05)


def main(words: list[str]) -> "NoReturn":
    """Be the parent of a raylet until it has ended."""
    guest, code = None, 0
    try:
        guest = Guest(*words)
        guest.serve()
    except (Over, FileNotFoundError):
        pass  # the Ray is over
    except (Failed, OSError, ValueError) as error:
        say(f"a raylet did not start: {error}")
        code = 1
    if guest is not None:
        guest.end()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
