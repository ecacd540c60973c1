"""spec 9: the walk-through of docs/elasticity.md runs as it is shown, and what it tells is so."""

from __future__ import annotations

import re

from tests.specification import spec
from tests.test_readme import BLOCK, ROOT, shell

pytestmark = spec("9.lending", "13.help")

PAGE = ROOT / "docs/elasticity.md"


def test_the_walk_through_goes_as_told(tmp_path):
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    clean = "trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf \"$VCTL_HOME\"' EXIT\n"
    script = clean + "".join(f"echo '=== {number}'\n{block}" for number, block in enumerate(blocks))
    done = shell(script.replace("wait\n", "wait || true\n"), tmp_path)
    reported = done.stdout + done.stderr
    assert done.returncode == 0, reported
    parts = [part.partition("\n")[2] for part in done.stdout.split("=== ")[1:]]
    assert len(parts) == 6, reported
    start, borrow, lend, reclaim, back, provider = parts
    assert re.search(r"research .* 0/8", start) and re.search(r"students .* 0/4", start), reported
    assert "primary" in borrow and re.search(r"students .* 8/8", borrow), reported
    assert re.search(r"students +research +CPU 4", lend), reported
    assert re.search(r"research .* 0/4", lend) and re.search(r"students .* 12/12", lend), reported
    assert "research has its 8 CPUs back" in reclaim, reported
    assert re.search(r"more .* STOPPED .* Preempted", reclaim) and re.search(r"sweep .* RUNNING", reclaim), (
        reported
    )
    assert "nothing has been borrowed" in back and re.search(r"students .* 0/4", back), reported
    before, _, after = provider.rpartition("NODE ")
    assert before.count(" simulated ") > 2, reported
    assert after.count(" simulated ") == 2, reported
