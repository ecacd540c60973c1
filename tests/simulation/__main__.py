"""``python -m tests.simulation 0:1000 --steps 500``: runs seeds, prints those that fail, and says how fast it was."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from tests.simulation.seeds import FAULTS, play, smallest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seeds", help="a seed, or FROM:TO")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--without", action="append", default=[], choices=FAULTS, help="leave a fault out")
    parser.add_argument(
        "--shrink", action="store_true", help="leave out all faults that a failure does not need"
    )
    parser.add_argument("--trace", action="store_true", help="print the whole trace of a failure")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition(":")
    began, failed, count = time.process_time(), 0, 0
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(int(first), int(last or int(first) + 1)):
            played = play(seed, asked.steps, without=frozenset(asked.without))
            count += 1
            if played.problem is not None:
                failed += 1
                print(played.report(whole=asked.trace), flush=True)
                if asked.shrink:
                    print(smallest(played, asked.steps), flush=True)
    took_s = time.process_time() - began
    print(
        f"{count} seeds of {asked.steps} steps, {failed} failed; {count * 60 / took_s:.0f} seeds a minute of CPU"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
