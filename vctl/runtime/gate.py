"""The gate before runs that follow another: as many of them start at a time as there are CPUs.

Sixty supervisors that each start a process of a millisecond leave the scheduler one turn in sixty. It falls behind,
they run out of runs, and the machine stands still until it has caught up. More of them than there are CPUs gain
nothing, as long as a run that takes longer does not stay in the gate: it leaves HOLD_S after its start. Measured on 2
CPUs and 64 slots, jobs a second: `true` 981 without a gate, 1,069 with it; `sleep 0.003` 738 and 770 (625 where it
stayed for 1.5 ms).

A place in the gate is the lock of a byte of a file in memory, which a launcher and its supervisors share: the kernel
gives it free when its holder dies. A holder that is suspended makes each of the others wait once, for LONGEST_WAIT_S.

Stand-alone, like processes.py. Imports only built-in modules.
"""

import fcntl
import os

MYPY = False
if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py

HOLD_S = 0.0007
LONGEST_WAIT_S = 0.25


class Gate:
    """One gate: made by a launcher, inherited by its supervisors, each of which has a copy of what is in here."""

    def __init__(self, descriptor: int, places: int) -> None:
        """``descriptor``: of the file that all share; with no ``places`` nobody waits."""
        self.descriptor, self.places = descriptor, places
        self.is_held = False

    def enter(self, number: int) -> None:
        """Wait for a place, if possible another one than the neighbours' numbers get; not for long."""
        for one in range(number, number + self.places):
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, one % self.places)
            except OSError:
                continue
            self.is_held = True
            return
        if self.places:
            self._wait(number % self.places)

    def _wait(self, place: int) -> None:
        self.is_held = True  # it may be given to us in the moment in which we give up
        signal.signal(signal.SIGALRM, _give_up)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, LONGEST_WAIT_S)
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX, 1, place)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (_TooLong, OSError):
            self.leave()
            self.places = 0  # who stands there may stand there for good

    def leave(self) -> None:
        """Leave the place to the next one."""
        if self.is_held:
            self.is_held = False
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def made(descriptor: int) -> Gate:
    """A new gate with as many places as there are CPUs, in a descriptor that nobody uses. Raises OSError."""
    file = os.memfd_create("vctl-gate")
    os.dup2(file, descriptor, inheritable=False)
    os.close(file)
    return Gate(descriptor, len(os.sched_getaffinity(0)))


class _TooLong(Exception):
    """The wait for a place was too long."""


def _give_up(_number: int, _frame: object) -> None:
    raise _TooLong
