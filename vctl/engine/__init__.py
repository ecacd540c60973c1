"""Changes, the rules that make them, and the state that they change. Modules are imported on first use."""

from vctl import modules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vctl.engine import changes, lifecycle

__getattr__ = modules_of(__name__)
