"""Count the words in the sources of Python's own library, with one process per CPU of the virtual cluster.

vctl job submit --virtual-cluster='{"flexible_resource_min": {"CPU": 1}}' -- python docs/examples/wordcount.py
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
LIBRARY = Path(sysconfig.get_path("stdlib"))


def sources(root: Path = LIBRARY) -> list[Path]:
    """The library's own source files, without what was installed into it."""
    found = (path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    return sorted(path for path in found if "dist-packages" not in path.parts)


def count(path: Path) -> tuple[int, Counter[bytes]]:
    """Lines and words of one file."""
    text = path.read_bytes()
    return text.count(b"\n"), Counter(WORD.findall(text))


def granted(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes our virtual cluster has CPUs for, and never more than the kernel lets us use."""
    usable = len(os.sched_getaffinity(0))
    share = json.loads(environment.get("VCTL_RESOURCES", "{}")).get("CPU", usable)
    return max(1, min(int(share), usable))


def main() -> None:
    cluster, node = os.environ.get("VCTL_CLUSTER_ID"), os.environ.get("VCTL_NODE_ID")
    if cluster:
        print(f"in virtual cluster {cluster} on node {node}, which holds {os.environ['VCTL_RESOURCES']}")
    else:
        print("not in a virtual cluster: using what this process may use")
    processes, files = granted(), sources()
    print(f"{processes} process{'es' * (processes > 1)} on CPU {sorted(os.sched_getaffinity(0))}")

    started = time.monotonic()
    lines, words = 0, Counter[bytes]()
    with multiprocessing.Pool(processes) as pool:
        for more_lines, more_words in pool.imap_unordered(count, files, chunksize=16):
            lines += more_lines
            words += more_words
    print(f"{len(files)} files, {lines} lines, {words.total()} words in {time.monotonic() - started:.1f} s")
    for word, times in words.most_common(10):
        print(f"{times:>9} {word.decode()}")


if __name__ == "__main__":
    main()
