"""A running job's log is cut at its limit; what was in it is kept beside it, and the job goes on writing."""

from __future__ import annotations

import sys

from tests.daemon.conftest import Life
from vctl.ops.logs import log_of

WRITE = """
import sys, time
print("x" * 5000, flush=True)
while True:
    print("more", flush=True)
    time.sleep(0.02)
"""


def test_a_log_above_the_limit_is_rotated_and_goes_with_its_job(life: Life) -> None:
    life.node("n1", "4c")
    scheduler = life.start()
    scheduler.log_max_bytes = 4000
    life.submit("chatty", argv=(sys.executable, "-S", "-c", WRITE))
    log = log_of(life.home, "chatty")
    old = log.with_name("chatty.log.1")
    life.until(lambda: log.exists() and log.stat().st_size > 5000)
    scheduler._last_sweep = 0.0
    life.turn()
    assert old.read_text().startswith("x" * 5000)
    life.until(lambda: log.read_text().startswith("more"))
    assert log.stat().st_size < 4000
    life.end("chatty")


def test_logs_are_never_cut_by_default(life: Life) -> None:
    assert life.start().log_max_bytes == 0
