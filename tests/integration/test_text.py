"""Arguments, directories and variables are bytes to the kernel (spec 13); what is stored of them is shown escaped."""

from __future__ import annotations

import json
import sqlite3
import sys

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("17.private", "13.submit")


def test_bytes_reach_the_job_and_are_shown_escaped(one: Place) -> None:
    folder = one.folder / "d\udcff"
    folder.mkdir()
    script = 'pwd; printf "%s|%s" "$1" "$A"'
    ran = one.run(
        "job", "submit", "--num-cpus", "1", "--working-dir", str(folder), "--env", "A=\udcfe", "--",
        "sh", "-c", script, "sh", "b\udcff",
    )  # fmt: skip
    assert ran.code == 0, ran
    where, _, rest = ran.stdout.partition(b"\n")
    assert where.endswith(b"/d\xff")
    assert rest == b"b\xff|\xfe"
    shown = one.read("job", "list", "-a")["items"][0]
    assert shown["entrypoint"].endswith("sh 'b\\xff'")
    for form in ("table", "json", "jsonl", "yaml", "csv"):
        assert one.run("job", "list", "-a", "-o", form).stdout.decode()
    from_there = one.run("job", "submit", "--num-cpus", "1", "--", "sh", "-c", f"cd {one.folder} && pwd")
    assert from_there.code == 0


def test_a_task_gets_bytes_too(one: Place) -> None:
    inner = f"{sys.executable} -m vctl task run --num-cpus 0 -- printf '%s' \"$0\""
    ran = one.run("job", "submit", "--num-cpus", "2", "--", "sh", "-c", inner, "t\udcff")
    assert ran.stdout == b"t\xff", ran


def test_what_is_already_stored_never_breaks_a_list(one: Place) -> None:
    job = one.submit("--metadata", "a=b", "--", "true")
    with sqlite3.connect(one.home / "cluster.db") as db:  # as an older vctl took it
        db.execute("UPDATE jobs SET metadata = ?", ('{"a": "\\udcff", "b": "\\ud800"}',))
    db.close()
    for form in ("table", "json", "jsonl", "yaml", "csv", "name"):
        for words in (("job", "list", "-a"), ("list", "jobs"), ("get", "jobs", job), ("job", "status", job)):
            ran = one.run(*words, "-o", form)
            assert ran.code == 0, ran
            ran.stdout.decode()
            if form == "json":
                json.loads(ran.stdout)
