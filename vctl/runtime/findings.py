"""What is known of the runs on this machine: from the lines of supervisors, else from the record files.

A file is read when a run is looked for, and watched while its supervisor has no line to this process.
"""

import select
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from vctl.core.values import value
from vctl.runtime.protocol import ExitRecord, StartRecord
from vctl.runtime.records import Entry, RecordFile, Records
from vctl.runtime.supervisors import Supervisors
from vctl.runtime.watch import MODIFY, OVERFLOW, Watch

_SCAN_S = 0.02


@value(slots=True)
class RunRecords:
    """The records of a run. `held`: a process has its file locked; `proved`: its end came on the line."""

    supervisor: tuple[int, int] | None = None
    start: StartRecord | None = None
    exit: ExitRecord | None = None
    held: bool = False
    problem: str = ""
    proved: bool = False
    open_file: str = ""  # its supervisor has this file open


class Findings:
    """The records of all runs below one state directory."""

    def __init__(self, home: Path, boot: str) -> None:
        self.records = Records(home)
        self.records.create()
        self.supervisors = Supervisors(self.records, boot, self._watch_file)
        self.poll = self.supervisors.poll
        self.of: dict[str, RecordFile] = {}  # run -> its record file
        self.lock = threading.RLock()
        self._watch: Watch | None = None
        self._watched: dict[Path, RecordFile] = {}
        self._scanned = float("-inf")

    def watch(self) -> None:
        """Start watching files."""
        if self._watch is None:
            watch = Watch()
            try:
                self.poll.register(watch.fileno(), select.EPOLLIN)
            except OSError:  # no memory: a watch that nobody hears would be worse than none
                watch.close()
                raise
            self._watch = watch

    def close(self) -> None:
        """Close all descriptors except ``poll``, which the caller waits on."""
        self.supervisors.close()
        if self._watch is not None:
            self.poll.unregister(self._watch.fileno())
            self._watch.close()
        self._watch = None
        self._watched.clear()

    def hear(self) -> None:
        """Read the messages of supervisors, and the changes in watched files."""
        ready = self.poll.poll(0)
        if not ready:
            return
        if self._watch is not None and any(fd == self._watch.fileno() for fd, _ in ready):
            for change in self._watch.read():
                if change.mask & OVERFLOW or change.path is None:
                    for file in self._watched.values():
                        self.supervisors.news |= file.read()
                elif (known := self._watched.get(change.path)) is not None:
                    self.supervisors.news |= known.read()
        self.supervisors.hear(ready)

    def _watch_file(self, file: RecordFile) -> None:
        path = Path(file.path)
        if self._watch is not None and path not in self._watched:
            try:
                self._watch.add(path, MODIFY)
            except OSError:
                return  # the file is gone, or there are too many watches: ``_scan`` reads it
            self._watched[path] = file

    def find(self, run_id: str, *, unsaid: bool = False) -> RunRecords | None:
        """The records of a run; None if no supervisor has taken it.

        ``unsaid``: read the file too, for lines that the supervisor has written and not sent yet.
        """
        file = self.of.get(run_id)
        if unsaid and file is not None:
            file.read()
        entry = None if file is None else file.runs.get(run_id)
        if file is None or entry is None or not entry.proved:
            self.hear()
            if entry is None:
                self.supervisors.maintain()
            file, entry = self._lookup(run_id, file)
        return None if file is None or entry is None else self._records_of(run_id, file, entry)

    def _lookup(self, run_id: str, file: RecordFile | None) -> tuple[RecordFile | None, Entry | None]:
        """The record file of a run and the run's entry, after reading what is new."""
        if file is None:
            self._scan()
            file = self.of.get(run_id)
        if file is None:
            return None, None
        slot = self.supervisors.slots.get(file.number)
        if slot is None or slot.line is None or file.reported != run_id:
            file.read()
        return file, file.runs.get(run_id)

    def _records_of(self, run_id: str, file: RecordFile, entry: Entry) -> RunRecords:
        if entry.proved:
            return RunRecords(entry.supervisor, entry.start, entry.exit, proved=True)
        slot = self.supervisors.slots.get(file.number)
        held, last = False, file.last == run_id
        if last and slot is not None and slot.line is not None and file.reported == run_id:
            held = True  # else the line would have ended
        elif last and (holder := file.holder()) is not None:
            held = holder == entry.supervisor[0] or holder <= 0
        if not held:
            file.read()  # the end may have been written between the first look and the test of the lock
        open_file = file.path if last else ""
        return RunRecords(entry.supervisor, entry.start, entry.exit, held, file.problem, open_file=open_file)

    def _scan(self) -> None:
        """Find unknown record files and read files without a line; at most every ``_SCAN_S`` seconds."""
        if time.monotonic() - self._scanned < _SCAN_S:
            return
        for file in self.records.scan():
            if file.holder() is not None:  # of a supervisor with a line to another process, or with none
                self._watch_file(file)
        for number, file in self.records.files.items():
            slot = self.supervisors.slots.get(number)
            if slot is None or slot.line is None:
                file.read()
        for file in self.records.files.values():
            for run_id in file.runs:
                self.of.setdefault(run_id, file)
        self._scanned = time.monotonic()

    def others(self, run_id: str) -> tuple[set[int], set[int]]:
        """Pids of the main processes of all other runs that are not over, and all numbers but this run's."""
        entries = [
            entry
            for file in self.records.files.values()
            for name, entry in file.runs.items()
            if name != run_id
        ]
        mains = {entry.start.pid for entry in entries if entry.start is not None and entry.exit is None}
        own = self.of.get(run_id)
        return mains, {number for number in self.records.files if own is None or number != own.number}

    def known_runs(self) -> list[str]:
        """Runs that may have processes: those without an end, and the last run of each locked file."""
        with self.lock:
            self._scanned = float("-inf")
            self._scan()
            run_ids: set[str] = set()
            for file in self.records.files.values():
                file.read()
                run_ids |= {run_id for run_id, entry in file.runs.items() if entry.exit is None}
                if file.last in file.runs and file.holder() is not None:
                    run_ids.add(file.last)
                for run_id in file.runs:
                    self.of.setdefault(run_id, file)
        return sorted(run_ids)

    def drop_ended(self) -> None:
        """Forget the ends of runs, because the tables are not those that the runs belong to."""
        with self.lock:
            self.records.scan()
            for file in self.records.files.values():
                for run_id in [name for name, entry in file.runs.items() if entry.exit is not None]:
                    file.forget(run_id)
        self.settle({})

    def settle(self, live: Mapping[str, int]) -> None:
        """Remove record files and stop requests that belong to no live run. ``live``: run -> its number."""
        with self.lock:
            runs_of: dict[int, set[str]] = {}
            for run_id, number in live.items():
                runs_of.setdefault(number, set()).add(run_id)
            for number, file in list(self.records.files.items()):
                slot = self.supervisors.slots.get(number)
                given = set() if slot is None else {slot.run, *(queued for queued, _ in slot.queue)}
                file.awaited = runs_of.get(number, set()) - given - file.runs.keys()
                for run_id in [name for name, entry in file.runs.items() if name not in live and entry.exit]:
                    if run_id not in given:  # else its process has not reported the end yet
                        file.forget(run_id)
                        self.of.pop(run_id, None)
            self.supervisors.settle(runs_of.keys())
            for number, file in list(self.records.files.items()):
                if number in runs_of or number in self.supervisors.slots or file.runs:
                    continue
                if file.holder() is None:
                    if self._watched.pop(Path(file.path), None) is not None and self._watch is not None:
                        self._watch.remove(Path(file.path))
                    self.supervisors.retired.discard(number)
                    self.records.remove(number)
            if unread := {*self.records.stop_requests()} - live.keys():
                self._scanned = float("-inf")
                self._scan()
                for run_id in unread - self.of.keys():
                    self.records.drop_stop(run_id)
