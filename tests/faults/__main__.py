"""``python -m tests.faults SUBJECT [KIND]``: lets each point of a subject fail once, and prints what does not hold.

``--every 97`` takes each 97th point, beginning with the one of ``--from``. ``--at 12`` plays one point. ``--of
background`` takes the points whose function or place has this, a regular expression.
"""

from __future__ import annotations

import argparse
import gc
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import points

if TYPE_CHECKING:
    from tests.faults.subjects import Subject

ALIKE = 2
"""So many points with the same violation are printed."""


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    words.add_argument("subject", help="see tests/faults/subjects.py")
    words.add_argument("kind", nargs="?", choices=points.KINDS)
    words.add_argument("--every", type=int, default=1)
    words.add_argument("--from", type=int, default=1, dest="first")
    words.add_argument("--to", type=int, default=0)
    words.add_argument("--at", type=int)
    words.add_argument("--turn", type=int)
    words.add_argument("--places", action="store_true", help="one point of each function and line")
    words.add_argument("--of", default="")
    words.add_argument("--list", action="store_true")
    chosen = words.parse_args()
    if chosen.kind is None:
        return max(
            subprocess.call([sys.executable, "-m", "tests.faults", *sys.argv[1:], kind])
            for kind in points.KINDS
        )
    if chosen.kind == "sqlite":
        points.prepare()  # before anything imports sqlite3
    points.begin()
    from tests.faults.subjects import SUBJECTS

    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        subject = SUBJECTS[chosen.subject](Path(folder))
        try:
            passed = subject.counted(chosen.kind)
            if chosen.list:
                for at in numbers(chosen, passed):
                    sys.stdout.write(f"{at} {passed[at - 1]}\n")
                return 0
            gc.freeze()  # a fork copies nothing because its collector looked at it
            return played(subject, chosen, passed)
        finally:
            subject.close()


def numbers(chosen: argparse.Namespace, passed: Sequence[str]) -> Sequence[int]:
    """The points that were asked for."""
    if chosen.at:
        return [chosen.at]
    found: Sequence[int] = range(chosen.first, (chosen.to or len(passed)) + 1, chosen.every)
    if chosen.of:
        found = [at for at in found if at <= len(passed) and re.search(chosen.of, passed[at - 1])]
    if chosen.places:
        found = sorted({passed[at - 1]: at for at in reversed(found)}.values())
    return found


def played(subject: Subject, chosen: argparse.Namespace, passed: Sequence[str]) -> int:
    """Play the points that were asked for; 1 if something does not hold."""
    began, plays, failed, wrong_of, lost_at = time.monotonic(), 0, 0, Counter[str](), Counter[str]()
    for at in numbers(chosen, passed):
        where = passed[at - 1] if at <= len(passed) else "-"
        errors = points.ERRORS.get(where.split(" ")[0], (0,)) if chosen.kind == "call" else (0,)
        for turn in range(len(errors)) if chosen.turn is None else [chosen.turn]:
            plays += 1
            try:
                wrong = subject.fails(chosen.kind, at, turn)
            except Exception as error:  # noqa: BLE001 - it is reported with its point
                wrong = [f"{type(error).__name__}: {error}"]
            if lost := getattr(subject, "lost", None):
                lost_at[where] += sum(lost.values())
                lost.clear()
            failed += bool(wrong)
            for one in wrong:
                alike = f"{one} {where}"[:200]
                wrong_of[alike] += 1
                if wrong_of[alike] <= ALIKE:
                    sys.stdout.write(
                        f"{chosen.subject} {chosen.kind} {at} turn {turn}: {where}\n    {one[:3000]}\n"
                    )
                    sys.stdout.flush()
    sys.stdout.writelines(f"{count} runs lost: {where}\n" for where, count in lost_at.items())
    took_s = time.monotonic() - began
    sys.stdout.write(
        f"{chosen.subject} {chosen.kind}: {len(passed)} points, {plays} played in {took_s:.0f} s,"
        f" {failed} do not hold\n"
    )
    sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
