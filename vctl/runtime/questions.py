"""What root's launcher does for the scheduler of a shared service, which may neither signal nor examine other users.

A question is JSON, and comes with the socket for its answer, which is ``+`` and words in lines:

    {"signal": SIGNO, "pid": PID, "started": TICKS}   "1" if exactly this process has got it, else "0"
    {"name": NAME, "marked": "NAME=VALUE"}            "PID TICKS VALUE" of each process with both variables
    {"clear": RUN}                                    ends what is in the cgroups of a run; the pids that are left
    {"empty": NAME}                                   "1" if a process now removes what a user has left in his directory
                                                      of objects with this name, with his rights; else nothing

Only processes of users are signalled or shown: whoever may ask for any process of theirs to be started could end them
anyhow. A supervisor can only be woken.

Stand-alone, like processes.py. Loaded only by the launcher of a shared service.
"""

import os
import stat
import sys

MYPY = False
if MYPY or __package__:
    from vctl.privileged import run_request
    from vctl.runtime import cgroup_trees, processes, supervisor
else:
    import cgroup_trees
    import processes
    import run_request
    import supervisor

if MYPY:
    import signal
    from collections.abc import Iterator

    from vctl.privileged.accounts import Accounts
else:
    import _signal as signal  # see processes.py


ANSWERED = b"+"
"""What each answer begins with: nothing at all comes from a launcher that has ended."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOBODY = 65534


class Questions:
    """Answers questions about the processes of users. ``accounts``: whose numbers are those of people."""

    def __init__(self, accounts: "Accounts", state: bytes, objects: bytes) -> None:
        """``state``: the directory of the service; ``objects``: the one with the objects of all jobs."""
        self.accounts, self.state, self.objects = accounts, state, objects

    def answer(self, question: bytes, line: int) -> None:
        """Carry out what the scheduler may not do itself, and answer on a socket; to a bad question it has no words."""
        if not stat.S_ISSOCK(os.fstat(line).st_mode):
            return  # root writes into no file that the account has opened
        try:
            words = run_request.parsed(question)
            if type(words) is dict and words.keys() == {"signal", "pid", "started"}:
                said = b"%d" % self._signal(*(_number(words[name]) for name in ("signal", "pid", "started")))
            elif type(words) is dict and words.keys() == {"marked", "name"}:
                said = b"".join(self._marked(os.fsencode(words["name"]), os.fsencode(words["marked"])))
            elif type(words) is dict and words.keys() == {"empty"}:
                said = self._empty(run_request.name(words["empty"]))
            elif type(words) is dict and words.keys() == {"clear"}:
                run = run_request.name(words["clear"])
                left = cgroup_trees.clear(run, cgroup_trees.bases(self.state))
                said = b" ".join(b"%d" % pid for pid in left)
            else:
                raise run_request.BadRequest("nobody here knows it")
        except (ValueError, TypeError, AttributeError) as error:
            sys.stderr.write(f"a question was refused: {error}\n")
            sys.stderr.flush()
            said = b""
        except OSError:
            said = b""
        try:
            os.set_blocking(line, False)
            os.write(line, ANSWERED + said)
        except OSError:
            return  # the scheduler has gone

    def _empty(self, name: bytes) -> bytes:
        """Have a directory emptied by a process of its own: a tree of a user may be large."""
        folder = os.open(self.objects + b"/" + name, _FOLDER)
        try:
            owner = os.fstat(folder).st_uid
            if not self.accounts.is_of_a_person(owner) or os.fork() != 0:
                return b"1"
            try:
                os.setgroups(())
                os.setresgid(_NOBODY, _NOBODY, _NOBODY)
                os.setresuid(owner, owner, owner)
                _remove_all_in(folder)
            finally:
                os._exit(0)
        finally:
            os.close(folder)

    def _signal(self, signo: int, pid: int, started: int) -> bool:
        """Signal a process of a user, or wake a supervisor; False if there is no such process."""
        own = signo in (supervisor.STOP_SIGNAL, signal.SIGCONT) and processes.name(pid) == supervisor.NAME
        uids = processes.uids(pid)
        # a supervisor has the account's effective user while it opens a file of the account
        if not uids or not (uids[0] == uids[2] == 0 if own else all(map(self.accounts.is_of_a_person, uids))):
            return False
        try:
            return processes.send_signal(pid, started, signo)
        except OSError:
            return False  # no such signal

    def _marked(self, name: bytes, mark: bytes) -> "Iterator[bytes]":
        """A line for each process of a user with two variables: the value of ``name``, its pid and start time."""
        for run, found in processes.marked(name, mark).items():
            for one in found:
                if b"\n" not in run and all(map(self.accounts.is_of_a_person, processes.uids(one.pid))):
                    yield b"%d %d %b\n" % (one.pid, one.started, run)


def _remove_all_in(folder: int) -> None:
    """Remove what is in a directory, and follow no link; what cannot be removed stays."""
    for name in os.listdir(folder):
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            os.chmod(name, stat.S_IRWXU, dir_fd=folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                _remove_all_in(inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
        except OSError:
            continue


def _number(word: object) -> int:
    if type(word) is not int or not 0 <= word < 1 << 63:
        raise TypeError("it has no numbers")
    return word
