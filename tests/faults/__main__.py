"""``python -m tests.faults SUBJECT [KIND]``: lets each point of a subject fail once, and prints what does not hold.

``--every 97`` takes each 97th point, beginning with the one of ``--from``. ``--at 12`` plays one point.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults import points


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
    words.add_argument("--list", action="store_true")
    chosen = words.parse_args()
    if chosen.kind is None:
        return max(
            subprocess.call([sys.executable, "-m", "tests.faults", *sys.argv[1:], kind])
            for kind in points.KINDS
        )
    failed = 0
    if chosen.kind == "sqlite":
        points.prepare()  # before anything imports sqlite3
    points.begin()
    from tests.faults.subjects import SUBJECTS

    for kind in [chosen.kind]:
        with tempfile.TemporaryDirectory(prefix="faults") as folder:
            subject = SUBJECTS[chosen.subject](Path(folder))
            passed = subject.counted(kind)
            gc.freeze()  # a fork copies nothing because its collector looked at it
            if chosen.list:
                sys.stdout.writelines(f"{at} {name}\n" for at, name in enumerate(passed, 1))
                continue
            numbers = range(chosen.first, (chosen.to or len(passed)) + 1, chosen.every)
            began, played, wrong_of, lost_at = time.monotonic(), 0, Counter[str](), Counter[str]()
            if chosen.places:
                numbers = sorted({name: at for at, name in reversed([*enumerate(passed, 1)])}.values())
            for at in [chosen.at] if chosen.at else numbers:
                name = passed[at - 1].split(" ")[0] if at <= len(passed) else ""
                turns = range(len(points.ERRORS.get(name, (0,)))) if kind == "call" else range(1)
                for turn in turns if chosen.turn is None else [chosen.turn]:
                    played += 1
                    try:
                        wrong = subject.fails(kind, at, turn)
                    except Exception as error:  # noqa: BLE001 - it is reported with its point
                        wrong = [f"{type(error).__name__}: {error}"]
                    if lost := getattr(subject, "lost", None):
                        lost_at[passed[at - 1] if at <= len(passed) else "-"] += sum(lost.values())
                        lost.clear()
                    where = passed[at - 1] if at <= len(passed) else ""
                    failed += bool(wrong)
                    for one in wrong:
                        alike = f"{one} {where}"[:200]
                        wrong_of[alike] += 1
                        if wrong_of[alike] <= 2:
                            sys.stdout.write(
                                f"{chosen.subject} {kind} {at} turn {turn}: {where}\n    {one[:3000]}\n"
                            )
                            sys.stdout.flush()
            sys.stdout.writelines(f"{count} runs lost: {where}\n" for where, count in lost_at.items())
            sys.stdout.write(
                f"{chosen.subject} {kind}: {len(passed)} points, {played} played in {time.monotonic() - began:.0f} s,"
                f" {failed} do not hold\n"
            )
            sys.stdout.flush()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
