"""``vctl gpus``: a row for each device, and below it its processes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vctl import cli
from vctl.cli.call import Call
from vctl.cli.common import LISTS
from vctl.cli.declare import command
from vctl.cli.output import Answer, Draw, listing
from vctl.operations import views

if TYPE_CHECKING:
    from vctl.cli.screen import Screen

NONE = (
    "no GPUs: no node has any; `vctl doctor` says what NVML found on this machine, and"
    " `vctl node add --simulated` declares simulated ones"
)


@command("gpus", "vctl gpus", "vctl gpus --watch", "vctl gpus -f state=FOREIGN -o json", common=LISTS)
def gpus(call: Call) -> Answer:
    """Show each GPU with who has booked it, and what runs there, booked or not.

    Figures are measured on this machine; GPUs of other nodes have none. Processes that nobody booked come first.
    """
    items = views.list_gpus(call.backend, filters=call.filters)
    shown = items if call.limit is None else items[: call.limit]
    none = "no GPU matches the filters" if call.filters else NONE
    answer = listing("GpuList", shown, len(items), "gpu_id", cli.columns.GPUS, none)
    if shown:
        answer.draw, answer.redraw = _drawn(shown), _drawn
    return answer


def _drawn(items: Sequence[Any]) -> Draw:
    def draw(screen: "Screen") -> Iterator[str]:
        yield from screen.table(cli.columns.GPUS, list(cli.gpus_view.lines(items)))
        yield from cli.gpus_view.notes(screen, items)

    return draw
