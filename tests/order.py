"""How the tests share the cores: on how many workers they run, and in which order, so that no core waits."""

from __future__ import annotations

import os

import pytest

PER_TWO_CORES = 3
"""Workers: most tests wait for other processes half of the time."""


def workers(config: pytest.Config) -> int | None:
    """What ``-n auto`` means here; None: what it means elsewhere. The fast tests never wait."""
    is_usual = config.option.numprocesses == "auto" and "PYTEST_XDIST_AUTO_NUM_WORKERS" not in os.environ
    if not is_usual or config.option.markexpr == "fast":
        return None
    return max(1, len(os.sched_getaffinity(0)) * PER_TWO_CORES // 2)


def turn(item: pytest.Item) -> int:
    """The place of a test in the order: a stable sort keeps files together.

    Tests with real Ray run one at a time: at the beginning one worker gets them all, and no other one waits for them.
    The short ones come last, so that all workers end at the same time.
    """
    if "alone_with_ray" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if item.get_closest_marker("fast") is None else 2
