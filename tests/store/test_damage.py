"""Files that are cut or have wrong bits: the state recovers to a commit, or says what is damaged. Never a traceback.

Short forms here; the long ones are marked slow (spec 12, 17).
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.contents import spoil
from tests.specification import spec
from vctl import ops
from vctl.config import load
from vctl.core.resources import CPU, SCALE
from vctl.errors import VctlError, known
from vctl.operations import clusters, jobs, nodes, upkeep, views
from vctl.operations.declare import Context, Operation
from vctl.ops.prove import prove
from vctl.store import copies
from vctl.store.store import Store

pytestmark = spec("12.odd-rows", "12.doctor", "17.durable")


@pytest.fixture(autouse=True)
def _is_asked_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is not tried: each try of ``vctl doctor`` starts a process, and it is asked of thousands of files."""
    monkeypatch.setattr(ops.isolation, "notes", list)


SEED = int(os.environ.get("SEED", "1"))
HEADER = 32
"""Bytes in front of the first frame of a WAL."""


class Written:
    """A state directory whose changes are all in the WAL, and the tables after each commit."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.after: list[tuple[int, str, int]] = []
        """Length of the WAL, tables, and number of the newest event, after each commit."""
        with Store.open(home) as store:
            context = Context(store, load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"}))
            store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._note(store)
            ops.nodes.add(store, resources={CPU: 4 * SCALE}, count=3, template="4c", node_id="n")
            self._note(store)
            for number in range(12):
                jobs.submit.run(context, ["true"], submission_id=f"j{number}", cwd="/", environment={})
                self._note(store)
            for verb, *words in ((jobs.hold, "j1"), (jobs.stop, "j2"), (nodes.drain, "n-02"), (clusters.create, "c"),
                                 (jobs.release, "j1"), (jobs.delete_one, "j2"), (nodes.kill, "n-01")):  # fmt: skip
                verb.run(context, *words)  # type: ignore[operator]
                self._note(store)
            self.db = (home / "cluster.db").read_bytes()
            self.wal = (home / "cluster.db-wal").read_bytes()
            self.changes = (home / "changes").read_bytes()

    def _note(self, store: Store) -> None:
        wal = self.home / "cluster.db-wal"
        seq = store.value("SELECT coalesce(max(seq), 0) FROM events")
        self.after.append((wal.stat().st_size if wal.exists() else 0, picture(store), seq))

    @contextmanager
    def with_wal(self, wal: bytes) -> Iterator[Store]:
        """Open a copy in which the WAL is another one; nothing else was flushed when the machine died."""
        home = self.home.with_name("copy")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        (home / "cluster.db").write_bytes(self.db)
        (home / "cluster.db-wal").write_bytes(wal)
        (home / "changes").write_bytes(self.changes)
        with Store.open(home) as store:
            yield store

    def expected(self, whole: int) -> tuple[str, int]:
        """The tables of the last commit of which all bytes are there."""
        return [(tables, seq) for length, tables, seq in self.after if length <= whole][-1]


def picture(store: Store) -> str:
    names = [row[0] for row in store.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
    return repr([[tuple(row) for row in store.rows(f"SELECT * FROM {name} ORDER BY 1, 2")] for name in names
                 if name != "_sqlite_migrations"])  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("wal") / "state")


def check(store: Store, expected: tuple[str, int], confirmed: int) -> None:
    """The state is that of a commit, sound, and what is missing is named until somebody writes, and then recorded."""
    tables, seq = expected
    assert picture(store) == tables
    assert prove(store) == []
    assert ops.replay.replay(store, dry_run=True)["changes"] == 0
    lost = (seq + 1, confirmed) if seq < confirmed else None
    assert store.lost() == lost
    reported = [text for text in ops.health.doctor(store)["findings"] if "were confirmed" in text]
    assert len(reported) == (lost is not None)
    clusters.create.run(Context(store, load(env={"VCTL_HOME": str(store.home)})), "new")
    recorded = store.rows("SELECT data FROM events WHERE kind = 'state.lost'")
    assert len(recorded) == (lost is not None)


def reported(figures: str) -> None:
    """Say them to who runs this by hand."""
    sys.stdout.write(f"{figures}\n")


def cuts(written: Written, count: int) -> None:
    dice = random.Random(SEED)
    ends = [length for length, *_ in written.after]
    around = [max(0, end + step) for end in ends for step in (-1, 0, 1)]
    lengths = dice.sample(around, min(len(around), count // 3))
    lengths += [dice.randrange(len(written.wal) + 1) for _ in range(count - len(lengths))]
    confirmed, found = written.after[-1][2], Counter[str]()
    for length in lengths:
        expected = written.expected(length)
        with written.with_wal(written.wal[:length]) as store:
            check(store, expected, confirmed)
        found["whole" if expected[1] == confirmed else "the loss is named"] += 1
    reported(f"{count} cuts: {dict(found)}")


def test_a_wal_cut_anywhere_recovers_to_its_last_commit(written: Written) -> None:
    cuts(written, 40)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_thousand_cuts(written: Written) -> None:
    cuts(written, 2000)


def wrong_bits(written: Written, count: int) -> None:
    dice = random.Random(SEED)
    page = int.from_bytes(written.wal[8:12], "big")
    kinds = Counter[str]()
    for _ in range(count):
        at = dice.randrange(len(written.wal))
        wal = bytearray(written.wal)
        wal[at] ^= 1 << dice.randrange(8)
        frame = (at - HEADER) // (page + 24)  # what comes before this one is whole
        whole = 0 if at < HEADER else HEADER + frame * (page + 24)
        with written.with_wal(bytes(wal)) as store:
            found = picture(store), store.value("SELECT coalesce(max(seq), 0) FROM events")
            is_damage = found[0] != written.after[-1][1]  # a bit that no checksum covers is none
            if is_damage:
                check(store, written.expected(whole), written.after[-1][2])
        kinds["the loss is named" if is_damage else "whole"] += 1
    reported(f"{count} wrong bits: {dict(kinds)}")


def test_a_wrong_bit_in_the_wal_is_no_silent_loss(written: Written) -> None:
    wrong_bits(written, 25)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_wrong_bits_in_the_wal(written: Written) -> None:
    wrong_bits(written, 1000)


def test_a_restore_is_no_loss(written: Written, tmp_path: Path) -> None:
    """Older tables that somebody put in place by ``vctl restore`` are what was asked for."""
    with written.with_wal(written.wal) as store:
        home = store.home
        ops.backup.backup(store, tmp_path / "copy")
        jobs.submit.run(Context(store, load(env={"VCTL_HOME": str(home)})), ["true"], cwd="/", environment={})
    ops.backup.restore(home, tmp_path / "copy")
    with Store.open(home) as store:
        assert store.lost() is None


LOOKS: tuple[tuple[Operation[..., object], dict[str, object]], ...] = (
    (jobs.list_jobs, {}), (jobs.get_job, {"ref": "j1"}), (jobs.why, {"ref": "j5"}), (views.status, {}),
    (views.list_events, {}), (nodes.list_nodes, {}), (clusters.list_clusters, {}), (views.nodes, {}),
    (upkeep.doctor, {"prove": True}), (jobs.hold, {"ref": "j3"}), (nodes.drain, {"node_id": "n-00"}),
)  # fmt: skip


def damage(data: bytearray, dice: random.Random) -> None:
    """What disks and memory do to files."""
    at = dice.randrange(len(data))
    match dice.choice(("bit", "bit", "bits", "text", "text", "zeros", "page", "cut")):
        case "bit":
            data[at] ^= 1 << dice.randrange(8)
        case "bits":
            for _ in range(20):
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        case "text":  # in the middle of words: JSON that is none, bytes that are no UTF-8
            words = [n for n in range(0, len(data) - 1, 7) if data[n : n + 2].isalnum()]
            for _ in range(3):
                data[dice.choice(words)] = dice.choice(b'"{[\x80\xff\0 9')
        case "zeros":
            data[at : at + 512] = bytes(min(512, len(data) - at))
        case "page":
            start = at // 4096 * 4096
            data[start : start + 4096] = dice.randbytes(4096)
        case "cut":
            del data[at:]


def wrong_bytes(written: Written, home: Path, count: int) -> None:
    with written.with_wal(written.wal) as store:
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole, rows = (store.home / "cluster.db").read_bytes(), picture(store)
    kinds = Counter[str]()
    for number in range(count):
        dice = random.Random(SEED * 100_000 + number)
        data = bytearray(whole)
        damage(data, dice)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        (home / "cluster.db").write_bytes(data)
        (home / "cluster.db").chmod(0o600)  # else that is said
        same = has_rows(home, rows)
        kinds["said" if look(home, number) else "whole" if same else "other values that are possible"] += 1
    reported(f"{count} damages: {dict(kinds)}")


def has_rows(home: Path, rows: str) -> bool:
    """Whether all rows can be read and are those."""
    try:
        with closing(sqlite3.connect(f"file:{home}/cluster.db?immutable=1", uri=True)) as db:
            return picture(Store(home, db)) == rows
    except (sqlite3.Error, ValueError):
        return False


def look(home: Path, number: int) -> bool:
    """Every verb answers or says what is damaged and what to do; also after a repair. Whether one said so."""
    config = load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"})
    is_said = False
    for place, (verb, call) in enumerate((*LOOKS, (upkeep.repair, {}), *LOOKS)):
        try:
            with Store.open(home) as store:
                found = verb.at(Context(store, config), **call)
                if verb in (upkeep.doctor, upkeep.repair):
                    is_said |= bool(found.get("findings") or found.get("repaired"))  # type: ignore[attr-defined]
        except Exception as error:
            is_said |= place <= len(LOOKS)  # later a job is held already
            said = error if isinstance(error, VctlError) else known(error)
            if said is None or not said.fix:
                error.add_note(f"damage {number}: {verb.name}")
                raise
    return is_said


def test_wrong_bytes_in_the_tables_are_said_as_what_they_are(written: Written, tmp_path: Path) -> None:
    wrong_bytes(written, tmp_path / "state", 12)


@pytest.mark.parametrize(
    ("table", "right", "wrong"),
    [
        ("set_aside", b"id INTEGER", b"id INT\xffGER"), ("set_aside", b"source TEXT", b"s\xffurce TEXT"),
        ("set_aside", b"PRIMARY", b"PRIMA\xffY"), ("sqlite_sequence", b"name,seq", b"name,sxq"),
    ],
)  # fmt: skip
def test_a_wrong_byte_in_the_definition_of_a_table_is_said(
    written: Written, tmp_path: Path, table: str, right: bytes, wrong: bytes
) -> None:
    """Also where it is no text: the check of the definitions reads them as bytes."""
    with written.with_wal(written.wal) as store:
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = (store.home / "cluster.db").read_bytes()
    at = data.index(b"CREATE TABLE " + table.encode())
    place = data.index(right, at)
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    (home / "cluster.db").write_bytes(data[:place] + wrong + data[place + len(right) :])
    with closing(sqlite3.connect(home / "cluster.db")) as db:
        assert copies.odd_table(db) == table
    look(home, 0)


def test_a_wrong_byte_in_the_definition_of_an_index_is_said(written: Written, tmp_path: Path) -> None:
    """The index is there and no query that names it can be planned: that was an internal error."""
    with written.with_wal(written.wal) as store:
        assert copies.odd_definition(store.db) is None
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = (store.home / "cluster.db").read_bytes()
    at = data.index(b"'FAILED'", data.index(b"CREATE INDEX jobs_failed"))
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    (home / "cluster.db").write_bytes(data[: at + 3] + b"x" + data[at + 4 :])
    with (
        Store.open(home) as store,
        pytest.raises(VctlError, match="index jobs_failed is not as vctl made it"),
    ):
        views.status.at(Context(store, load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"})))
    look(home, 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_times_wrong_bytes(written: Written, tmp_path: Path) -> None:
    wrong_bytes(written, tmp_path / "state", 1000)


@pytest.mark.parametrize(
    ("row", "sql"),
    {
        "job": "UPDATE jobs SET {} = CAST(x'6aff31' AS TEXT) WHERE submission_id = 'j1'",
        "event": "UPDATE events SET {} = CAST(x'7bff7d' AS TEXT) WHERE seq = 2",
        "node": "UPDATE nodes SET {} = CAST(x'6e2dff' AS TEXT) WHERE node_id = 'n-02'",
    }.items(),
)
@pytest.mark.parametrize("column", ["first", "other"])
def test_a_text_that_is_no_utf_8_is_named_and_set_aside(
    written: Written, row: str, sql: str, column: str
) -> None:
    """One wrong bit in a word is the damage that no check of SQLite sees."""
    columns = {
        "job": ("submission_id", "metadata"),
        "event": ("object_id", "content"),
        "node": ("node_id", "hostname"),
    }
    verb = {"job": jobs.list_jobs, "event": views.list_events, "node": nodes.list_nodes}[row]
    with written.with_wal(written.wal) as store:
        context = Context(store, load(env={"VCTL_HOME": str(store.home)}))
        store.db.execute("PRAGMA foreign_keys = OFF")
        store.db.execute(sql.format(columns[row][column == "other"]))
        with pytest.raises(VctlError) as refused:
            verb.at(context)  # type: ignore[attr-defined]
        assert f"a row of {row}s" in refused.value.problem
        assert "vctl doctor --repair" in refused.value.fix
        done = upkeep.repair.at(context)
        assert any(f" of {row}s: " in action for action in done["repaired"]), done
        verb.at(context)  # type: ignore[attr-defined]
        assert upkeep.repair.at(context)["repaired"] == []
        assert store.value("SELECT count(*) FROM set_aside WHERE source = ?", f"{row}s") == 1


@pytest.mark.parametrize("column", ["argv", "env", "options"])
def test_a_command_that_cannot_be_read_is_named_and_set_aside_with_its_job(
    written: Written, column: str
) -> None:
    """Also of a job that is over, which can be run again."""
    with written.with_wal(written.wal) as store:
        context = Context(store, load(env={"VCTL_HOME": str(store.home)}))
        jobs.stop.at(context, "j4")
        spoil(store.db, column, "{ee", "submission_id IN ('j3', 'j4')")
        with pytest.raises(VctlError) as refused:
            jobs.rerun.at(context, "j4")
        assert "a row of jobs" in refused.value.problem
        assert f"its command cannot be read: {column}" in refused.value.problem
        assert "vctl doctor --repair" in refused.value.fix
        repaired = upkeep.repair.at(context)["repaired"]
        assert len([action for action in repaired if " of jobs: " in action]) == 2
        assert store.value("SELECT count(*) FROM set_aside WHERE source = 'jobs'") == 2
        assert upkeep.repair.at(context)["repaired"] == []


@pytest.mark.parametrize("column", ["spec", "entry", "rules"])
@pytest.mark.parametrize("text", ["{ee", "[]"])
def test_what_a_job_that_is_over_asked_for_is_named_where_it_cannot_be_read(
    written: Written, column: str, text: str
) -> None:
    """It is read when the job is run again, and shown nowhere else."""
    with written.with_wal(written.wal) as store:
        context = Context(store, load(env={"VCTL_HOME": str(store.home)}))
        jobs.stop.at(context, "j4")
        spoil(store.db, column, text, "submission_id = 'j4'")
        with pytest.raises(VctlError) as refused:
            jobs.rerun.at(context, "j4")
        assert "a row of jobs" in refused.value.problem
        assert "vctl doctor --repair" in refused.value.fix
        assert len(upkeep.repair.at(context)["repaired"]) == 1
        assert upkeep.repair.at(context)["repaired"] == []
