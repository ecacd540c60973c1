"""The launcher, whose first supervisor has a point that fails: ``python -I -S launch.py HOME``.

The point stands in the file ``fault`` beside the state directory; who removes it has it.
"""

import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path += [ROOT, os.path.join(ROOT, "vctl", "runtime")]

import launcher  # noqa: E402 - stand-alone, as it is in use
import supervisor  # noqa: E402

from tests.faults import points  # noqa: E402

HOME = sys.argv[1]
FAULT = os.path.join(os.path.dirname(HOME), "fault")
settle = launcher.settle


def settle_and_arm(channel):  # type: ignore[no-untyped-def]
    """Begin as a supervisor, and count."""
    settle(channel)
    try:
        with open(FAULT) as file:
            kind, at, turn = json.load(file)
        os.unlink(FAULT)
    except OSError:
        return
    failing = points.Points(at, turn)
    serve = supervisor.Supervisor.serve

    def served(self):  # type: ignore[no-untyped-def]
        try:
            serve(self)
        finally:
            failing.finish()
            with open(FAULT + ".points", "w") as file:
                json.dump(failing.passed, file)

    supervisor.Supervisor.serve = served
    failing.watch(kind)


launcher.settle = settle_and_arm
points.begin()
launcher.main()
