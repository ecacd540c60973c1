"""``vctl simulate`` as a command: where the work comes from, what is compared, what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec
from vctl.store.store import Store

pytestmark = spec("13.simulate")

TRACE = """\
; MaxNodes: 4
1 0 -1 100 3 -1 -1 3 100 -1 1 1 -1 -1 -1 -1 -1 -1
2 1 -1 100 4 -1 -1 4 100 -1 1 1 -1 -1 -1 -1 -1 -1
3 2 -1 50 1 -1 -1 1 50 -1 1 2 -1 -1 -1 -1 -1 -1
4 3 -1 10 9 -1 -1 9 50 -1 1 2 -1 -1 -1 -1 -1 -1
"""
POLICIES = ("--policy", "fifo/strict", "--policy", "fifo/backfill")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "log.swf"
    path.write_text(TRACE)
    return path


def test_policies_side_by_side(cli: Cli, trace: Path) -> None:
    ran = cli("simulate", "--trace", str(trace), *POLICIES, "-o", "json")
    assert ran.code == 0, ran.err
    runs = {one["policy"]: one for one in ran.json["items"]}
    assert list(runs) == ["current", "fifo/strict", "fifo/backfill"]
    waits = {name: one["figures"]["wait"]["mean"] * 3 for name, one in runs.items()}
    assert waits == pytest.approx({"current": 99, "fifo/strict": 99 + 198, "fifo/backfill": 99})
    assert runs["fifo/strict"]["change"]["wait"]["mean"] * 3 == pytest.approx(198)
    assert runs["fifo/backfill"]["queue"]["discipline"] == "backfill"
    assert runs["fifo/backfill"]["never"][0]["reason"] == "Infeasible"
    assert runs["fifo/backfill"]["figures"]["never_started"] == 1
    assert (ran.json["kind"], ran.json["jobs"]) == ("SimulationRunList", 4)


def test_it_needs_no_state_and_makes_none(cli: Cli, trace: Path) -> None:
    assert cli("simulate", "--trace", str(trace)).code == 0
    assert not cli.home.exists()


def test_a_table_for_people(cli: Cli, trace: Path) -> None:
    ran = cli("simulate", "--trace", str(trace), *POLICIES)
    assert "WAIT MEAN" in ran.out and "fifo/backfill" in ran.out and "3/4" in ran.out
    assert "(+200%)" in ran.out
    assert "1 job never started (Infeasible)" in ran.out


def test_one_node_is_not_one_nodes(cli: Cli, trace: Path) -> None:
    one, both = (
        cli("simulate", "--trace", str(trace), *sizes).out
        for sizes in (("--nodes", "1"), ("--nodes", "1", "--nodes", "4"))
    )
    assert one.splitlines()[0].endswith(" on 1 node")
    assert "current on 1 node " in both and "current on 4 nodes " in both


def test_a_packed_trace_and_other_forms(cli: Cli, tmp_path: Path) -> None:
    packed = tmp_path / "log.swf.gz"
    packed.write_bytes(gzip.compress(TRACE.encode()))
    assert cli("simulate", "--trace", str(packed), "-o", "name").out == "current\n"
    lines = cli("simulate", "--trace", str(packed), *POLICIES, "-o", "jsonl").out.splitlines()
    assert len(lines) == 3


def test_sizes_side_by_side(cli: Cli, trace: Path) -> None:
    ran = cli("simulate", "--trace", str(trace), "--nodes", "4", "--nodes", "9", "-o", "json")
    assert [(one["policy"], one["nodes"]) for one in ran.json["items"]] == [
        ("current on 4 nodes", 4), ("current on 9 nodes", 9),
    ]  # fmt: skip
    assert ran.json["items"][1]["figures"]["never_started"] == 0


def test_the_model_can_be_written_and_read(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    words = ("--model", "lublin", "--jobs", "40", "--nodes", "16", "--limit-factor", "2")
    assert cli("simulate", *words, "--write", str(file)).code == 0
    played = cli("simulate", *words, "-o", "json").json["items"][0]["figures"]
    again = cli("simulate", "--trace", str(file), "--nodes", "16", "-o", "json").json["items"][0]["figures"]
    assert played["wait"] == pytest.approx(again["wait"], abs=1e-3)


def history(cli: Cli) -> None:
    """Three jobs of 4 CPUs ran one after the other for 100 s each, though there were two such nodes; one never ran."""
    assert cli("job", "submit", "--no-wait", "--num-cpus", "4", "--", "true").code == 0
    for _ in range(3):
        assert (
            cli("job", "submit", "--no-wait", "--num-cpus", "4", "--time-limit", "200", "--", "true").code
            == 0
        )
    with Store.open(cli.home) as store, store.transaction():
        ids = [row[0] for row in store.rows("SELECT job_id FROM jobs ORDER BY job_id")][1:]
        base = store.value("SELECT min(submitted_at) FROM jobs")
        for number, job_id in enumerate(ids):
            store.db.execute(
                "UPDATE jobs SET status = 'SUCCEEDED', submitted_at = ?, started_at = ?, ended_at = ? WHERE job_id = ?",
                (base + 1, base + number * 100 * 10**9, base + (number + 1) * 100 * 10**9, job_id),
            )


def test_the_recorded_history_on_its_own_and_on_another_machine(nodes: Cli) -> None:
    history(nodes)
    before = sorted((path.name, path.stat().st_size) for path in nodes.home.iterdir() if path.suffix == ".db")
    ran = nodes("simulate", "--nodes", "3", "-o", "json")
    assert ran.code == 0, ran.err
    own, larger = ran.json["items"]
    assert (own["policy"], own["nodes"], own["figures"]["makespan"]) == ("current", 2, 200.0)
    assert (larger["policy"], larger["nodes"], larger["figures"]["makespan"]) == (
        "current on 3 nodes",
        3,
        100.0,
    )
    assert ran.json["notes"] == ["1 job is PENDING and has not run to an end"]
    assert sorted((p.name, p.stat().st_size) for p in nodes.home.iterdir() if p.suffix == ".db") == before


def test_a_span_of_the_history(nodes: Cli) -> None:
    history(nodes)
    assert nodes("simulate", "--since", "1h", "-o", "json").json["jobs"] == 3
    ran = nodes("simulate", "--until", "2001-01-01", "-o", "json")
    assert ran.code == 2
    assert "no jobs to simulate" in ran.json["error"]["message"]


REFUSED = {
    "both": ("--trace x --model lublin", "exclude each other"),
    "a span of a trace": ("--trace x --since 1h", "--since"),
    "no such file": ("--trace nowhere.swf", "cannot read nowhere.swf"),
    "an order": ("--model lublin --policy fast/strict", "order"),
    "a discipline": ("--model lublin --policy fifo/lazy", "discipline"),
    "a setting": ("--model lublin --policy fifo/strict,depth", '"depth" is not a setting'),
    "an unknown setting": ("--model lublin --policy fifo/backfill,backfil_depth=2", "backfil_depth"),
    "nodes": ("--model lublin --nodes none", "--nodes"),
    "no nodes": ("--model lublin --nodes 0", "--nodes"),
    "jobs": ("--model lublin --jobs 0", "--jobs"),
    "load": ("--model lublin --load 0", "--load"),
    "factor": ("--model lublin --limit-factor 0", "--limit-factor"),
    "writing a trace": ("--trace x --write y", "--write: it applies to jobs made by a model only"),
    "a policy where nothing is simulated": (
        "--model lublin --write y --policy fifo/strict",
        "--policy: with --write nothing is simulated",
    ),
    "the model's jobs of the history": ("--jobs 5", "--jobs: it applies to jobs made by a model only"),
    "the model's load of a trace": ("--trace x --load 1", "--load: it applies to jobs made by a model only"),
    "nodes of a model": (
        "--model lublin --node-resources {}",
        "--node-resources: it applies to a trace only",
    ),
    "a template of a trace": ("--trace x --template t", "--template: it applies to recorded jobs only"),
    "a slip in an order": ("--model lublin --policy fiar/strict", "did you mean fair?"),
}


@pytest.mark.parametrize(("words", "problem"), REFUSED.values(), ids=REFUSED)
def test_refused(cli: Cli, words: str, problem: str) -> None:
    ran = cli(f"simulate {words}")
    assert ran.code == 2
    assert problem in ran.err


def test_a_bad_line_is_named(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"at": 0, "run": 10}\n{"at": 0, "run": "long"}\n')
    ran = cli("simulate", "--trace", str(path))
    assert ran.code == 2
    assert f"{path}:2: run" in ran.err


def test_an_unknown_cluster(cli: Cli, trace: Path) -> None:
    ran = cli("simulate", "--trace", str(trace), "-c", "nobody")
    assert (ran.code, "--cluster: The virtual cluster nobody does not exist." in ran.err) == (4, True)


def test_the_first_line_of_a_trace_is_what_holds_here(nodes: Cli, trace: Path) -> None:
    assert nodes("vc update primary --queue-order fifo --queue-discipline strict").code == 0
    runs = nodes("simulate", "--trace", str(trace), *POLICIES, "-o", "json").json["items"]
    assert (runs[0]["queue"]["order"], runs[0]["queue"]["discipline"]) == ("fifo", "strict")
    assert runs[0]["figures"] == runs[1]["figures"]
    assert runs[2]["change"]["wait"]["mean"] < 0


def test_a_file_without_lines_is_not_read_to_its_end(cli: Cli) -> None:
    ran = cli("simulate", "--trace", "/dev/zero")
    assert (ran.code, "/dev/zero:1: the line is longer" in ran.err) == (2, True)


def test_one_job_is_one_job(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"at": 0, "run": 10}\n')
    assert cli("simulate", "--nodes", "1", "--trace", str(path)).out.startswith("1 job of ")


def test_clusters_that_a_trace_names_are_made(cli: Cli, tmp_path: Path) -> None:
    """A cluster of a trace is a part of the primary that borrows what is free; no job is left out."""
    trace = tmp_path / "two.jsonl"
    lines = [
        {"at": at, "run": 60, "cluster": name} for at in (0, 1) for name in ("team-a", "team-b", "primary")
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = cli("simulate", "--trace", str(trace), "--nodes", "2", "--policy", "fair/backfill", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json["jobs"] == 6
    for run in ran.json["items"]:
        assert run["never"] == []
    assert (
        cli("simulate", "--trace", str(trace), "--nodes", "2", "-c", "team-a", "-o", "json").json["jobs"] == 2
    )
    refused = cli("simulate", "--trace", str(trace), "--nodes", "2", "-c", "team-z")
    assert (refused.code, refused.out) == (4, ""), refused.err
