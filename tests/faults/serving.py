"""The command server, of which a fork has a point that fails: ``python -m tests.faults.serving HOME``.

The point stands in the file ``fault`` beside the state directory; the fork that removes it has it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from socket import socket

from tests.faults import points
from tests.faults.points import Points
from vctl.cli import command_server

FAULT = Path(sys.argv[1]).parent / "fault"
answer = command_server.answer


def answer_with_a_point(
    line: socket, mine: bytes, own: list[int], served: command_server.ServingFork
) -> bool:
    """Carry a command out, with the point that is asked for."""
    failing = None
    with suppress(FileNotFoundError):
        kind, at, turn = json.loads(FAULT.read_text())
        FAULT.unlink()
        failing = Points(at, turn)
        failing.watch(kind)
    try:
        return answer(line, mine, own, served)
    finally:
        if failing is not None:
            failing.finish()
            if not failing.at:
                FAULT.with_name("fault.new").write_text(json.dumps(failing.passed))
                os.replace(FAULT.with_name("fault.new"), FAULT.with_name("fault.points"))


points.begin()
command_server.answer = answer_with_a_point
command_server.main()
