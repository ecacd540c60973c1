"""The memory that processes use, as /proc tells it: their own pages, and what they share with each other counts once.

What the kernel can drop when it is short of memory, pages of files above all, does not count, as in a cgroup it would
be dropped before anything is ended. Stand-alone, like processes.py. Imports only built-in modules.
"""

import os

_READ = os.O_RDONLY | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 13
_KIB = 1024
_OWN = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_SHARED_OUT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


def used_bytes(pids: list[int], enough: int) -> int:
    """What the processes use together; where a first sum is not above ``enough``, that sum.

    The first sum counts a page once for each process that has it. The exact one takes the kernel a walk through all
    pages. A process that is gone uses nothing; of one that may not be looked at the first sum counts.
    """
    sums = {pid: _sum(b"/proc/%d/status" % pid, _OWN) or 0 for pid in pids}
    if sum(sums.values()) <= enough:
        return sum(sums.values())
    for pid in sums:
        exact = _sum(b"/proc/%d/smaps_rollup" % pid, _SHARED_OUT)
        if exact is not None:
            sums[pid] = exact
    return sum(sums.values())


def _sum(path: bytes, names: tuple[bytes, ...]) -> int | None:
    """The sum of some lines ``Name:  N kB`` of a file; None when it has none of them, or cannot be read."""
    try:
        fd = os.open(path, _READ)
        try:
            text = os.read(fd, _CHUNK_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None  # ended meanwhile, or a set-uid program
    found = [int(line.split()[1]) for line in text.splitlines() if line.startswith(names)]
    return sum(found) * _KIB if found else None


def shown(size: int) -> str:
    """Bytes as a person reads them."""
    number = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if number < _KIB:
            return f"{number:.4g} {unit}"
        number /= _KIB
    return f"{number:.4g} GiB"
