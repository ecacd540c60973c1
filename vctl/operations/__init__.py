"""One declaration per verb. A module is imported when it is first used: ``operations.jobs.stop``."""

from vctl import modules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vctl.operations import clusters, connection, declare, jobs, limits, nodes, simulation, tasks, views

__getattr__ = modules_of(__name__)
