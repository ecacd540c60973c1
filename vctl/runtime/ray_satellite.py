"""The keeper of the raylets of one more machine: of a job's Ray whose head is elsewhere.

Run as a script, `python -I -S ray_satellite.py NODES FOLDER -- COMMAND`, by the agent of a node (on_ray/rays.py). NODES
says how to join; COMMAND, that of the job, says which Ray is used. It ends when it is told so by SIGTERM, or has no
virtual node any more.
"""

import os
import signal
import sys

MYPY = False
if MYPY or __package__:
    from typing import Any, NoReturn

    from vctl.runtime import raylets
    from vctl.runtime.private_ray import Keeper
    from vctl.runtime.ray_parent import Over, say
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import raylets
    from private_ray import Keeper
    from ray_parent import Over, say


def main(words: list[str]) -> "NoReturn":
    """Be the parent of raylets until they are to go."""
    nodes, folder, _, *command = words
    ray = raylets.program(command, os.environ.get("PATH", os.defpath))
    if ray is None:
        say(
            f"cannot start Ray: it is not installed on {os.uname().nodename}; pip install '{raylets.PACKAGE}'"
        )
        sys.exit(127)
    Satellite(ray, nodes, folder, 0, -1).keep(dashboard=False)


class Satellite(Keeper):
    """The process that has started the raylets of one more machine, and ends them."""

    def prepare(self) -> None:
        """Become the parent of all that comes from here. SIGTERM ends it."""
        self.begin()
        join = self.shown()["join"]
        self.address = join["address"]
        self.env = {**self.plain, **join["env"]}
        self.env.pop("OMP_NUM_THREADS", None)

    def start_all(self, *, dashboard: bool) -> None:  # noqa: ARG002
        """Start all raylets."""
        self.start_others([*self.wanted(self.shown(), {}).values()])

    def joins(self) -> list[str]:
        """One log monitor reads the logs of the machine."""
        first = not any(self.raylets.values())
        return [f"--address={self.address}", f"--include-log-monitor={str(first).lower()}"]

    def start(self, node: "dict[str, Any]", part: "dict[str, Any]", options: list[str]) -> None:
        """Start a raylet, and say so. Raises Failed, Over."""
        super().start(node, part, options)
        self.tell(up=sorted(vnode_id for vnode_id, of_node in self.raylets.items() if of_node))

    def check(self) -> None:
        """It is over when it is told so, or has nothing to do any more. Raises Over."""
        if signal.SIGTERM in self.signals or not (
            any(self.raylets.values()) or self.wanted(self.shown(), {})
        ):
            raise Over

    def grow(self, shown: "dict[str, Any]") -> None:
        """The keeper of the head sees to that."""


if __name__ == "__main__":
    main(sys.argv[1:])
