"""The command line. A module is imported when it is first used: ``cli.columns.JOBS``."""

from vctl import modules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vctl.cli import (
        arrange,
        attach,
        bridge,
        catalog,
        columns,
        completion,
        declare,
        gpus_view,
        help,
        live_view,
        matching,
        output,
        screen,
        simulate_view,
        status_view,
        submission,
        tree,
        tree_changes,
        waiting,
        why_view,
        words,
        yaml,
    )

__getattr__ = modules_of(__name__)
