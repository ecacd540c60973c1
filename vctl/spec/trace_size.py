"""How large a trace may be: each number in it is checked before anything is made of it."""

from __future__ import annotations

from vctl.core.values import field, value
from vctl.spec.fields import refuse
from vctl.spec.quantities import MAX_NUMBERED

MAX_SHAPES = 20_000_000
"""The most nodes of all shapes of the jobs together; each takes eight bytes."""


@value(slots=True)
class Size:
    """What has been read of a trace, and the most jobs that it may have, and nodes of one job."""

    max_jobs: int = 1_000_000
    max_nodes: int = 1_000_000
    jobs: int = 0
    nodes: int = 0
    shapes: set[object] = field(default_factory=set)

    def add_job(self, where: str) -> None:
        """Count one more job."""
        self.jobs += 1
        if self.jobs > self.max_jobs:
            raise refuse(where, f"the trace has more than {self.max_jobs} jobs", "simulate a part of it")

    def check_machine(self, nodes: int, each: int, where: str) -> None:
        """Check the number of nodes of the machine, and of the processors of each."""
        if nodes > self.max_nodes:
            raise refuse(
                where, f"a machine of {nodes} nodes, at most {self.max_nodes} are simulated",
                "correct MaxNodes and MaxProcs in its header",
            )  # fmt: skip
        if each > MAX_NUMBERED:
            raise refuse(
                where, f"{each} processors of a node, at most {MAX_NUMBERED} are simulated",
                "correct MaxNodes and MaxProcs in its header",
            )  # fmt: skip

    def add_shape(self, shape: object, nodes: int, where: str) -> None:
        """Count the nodes of a shape, unless a job before had it."""
        if nodes > self.max_nodes:
            raise refuse(
                where, f"a job on {nodes} nodes, at most {self.max_nodes} are simulated", "leave the job out"
            )
        if shape in self.shapes:
            return
        self.shapes.add(shape)
        self.nodes += nodes
        if self.nodes > MAX_SHAPES:
            raise refuse(
                where, f"jobs of different sizes have more than {MAX_SHAPES} nodes together",
                "simulate a part of the trace",
            )  # fmt: skip
