"""The keeper of a job's raylets on one machine, if the head of the job's Ray is on another machine.

Run as a script, `python -I -S ray_satellite.py NODES FOLDER -- COMMAND`, by the agent of a node
(on_ray/rays.py). NODES says how to join. COMMAND, the command of the job, determines which installation of
Ray is used. The satellite ends on SIGTERM, or when it has no virtual node any more.
"""

import os
import signal
import sys

MYPY = False
if MYPY or __package__:
    from typing import Any, NoReturn

    from vctl.ray.private import raylets
    from vctl.ray.private.private_ray import PLAIN, Keeper
    from vctl.ray.private.ray_parent import Over, say
else:
    _HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_HERE, os.path.join(_HERE, "../../runtime")]
    import raylets
    from private_ray import PLAIN, Keeper
    from ray_parent import Over, say


def main(words: list[str]) -> "NoReturn":
    """Be the parent of raylets until they have to end."""
    nodes, folder, _, *command = words
    ray = raylets.program(command, os.environ.get("PATH", os.defpath))
    if ray is None:
        say(
            f"cannot start Ray: it is not installed on {os.uname().nodename}; pip install '{raylets.PACKAGE}'"
        )
        sys.exit(127)
    Satellite(ray, nodes, folder, 0, -1).keep(PLAIN)


class Satellite(Keeper):
    """The process that starts and ends the raylets of a job on one more machine."""

    def prepare(self) -> None:
        """Become the subreaper, and read from NODES how to join."""
        self.begin()
        join = self.shown()["join"]
        self.address = join["address"]
        self.env = raylets.environment(join["env"], self.folder)

    def start_all(self, *, dashboard: bool) -> None:  # noqa: ARG002
        """Start a raylet for each virtual node of this machine."""
        self.start_others([*self.needed(self.shown(), {}).values()])

    def joins(self) -> list[str]:
        """The options of `ray start`: the first raylet gets the log monitor of the machine."""
        first = not any(self.raylets.values())
        return [f"--address={self.address}", f"--include-log-monitor={str(first).lower()}"]

    def start(self, node: "dict[str, Any]", part: "dict[str, Any]", options: list[str]) -> None:
        """Start a raylet, and tell the first keeper which virtual nodes are up. Raises Failed, Over."""
        super().start(node, part, options)
        self.tell(up=sorted(vnode_id for vnode_id, of_node in self.raylets.items() if of_node))

    def check(self) -> bool:
        """False. Raises Over after SIGTERM, and when there are neither raylets nor virtual nodes that need one."""
        self.is_stopping()
        if signal.SIGTERM in self.signals or not (
            any(self.raylets.values()) or self.needed(self.shown(), {})
        ):
            raise Over
        return False

    def grow(self, shown: "dict[str, Any]") -> None:
        """Do nothing: the keeper of the head lets the virtual cluster grow."""


if __name__ == "__main__":
    main(sys.argv[1:])
