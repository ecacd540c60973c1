"""Measures the memory that processes use, from /proc. Memory that they share with each other counts once.

Pages of files do not count: the kernel can drop them when it is short of memory, and in a cgroup it would do
so before it kills a process. Stand-alone, like processes.py. Imports only built-in modules.
"""

import os

_READ = os.O_RDONLY | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 13
_KIB = 1024
_OWN = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_SHARED_OUT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


def used_bytes(pids: list[int], enough: int) -> int:
    """The memory that the processes use together, in bytes; an upper bound if that is at most ``enough``.

    The upper bound counts a shared page once for each process. If it is above ``enough``, the exact numbers
    are read, for which the kernel walks through all pages. A process that is gone counts 0. For a process
    that may not be examined, the upper bound counts.
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
    """The sum, in bytes, of some lines ``Name:  N kB`` of a file; None if there are none, or no file."""
    try:
        fd = os.open(path, _READ)
        try:
            text = os.read(fd, _CHUNK_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None  # ended meanwhile, or a set-uid program
    sizes = [int(line.split()[1]) for line in text.splitlines() if line.startswith(names)]
    return sum(sizes) * _KIB if sizes else None


def exceeded(asked: int, peak: int) -> str:
    """What to say of a run that was killed because it used more than it had asked for."""
    return f"asked {shown(asked)}, peak {shown(max(asked, peak))}; try --memory {_more(max(asked, peak))}"


def _more(size: int) -> str:
    """One and a half times a size, as a number to write behind an option."""
    for unit, name in ((_KIB**3, "GiB"), (_KIB**2, "MiB")):
        if size >= 4 * unit or unit == _KIB**2:
            return f"{-(-3 * size // (2 * unit))}{name}"
    return f"{size}"


def shown(size: int) -> str:
    """A number of bytes for people: ``1.5 GiB``."""
    number = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if number < _KIB:
            return f"{number:.4g} {unit}"
        number /= _KIB
    return f"{number:.4g} GiB"
