"""spec 13: the pages of a sweep and of an admin's first day run as they are written, and what they tell is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.specification import spec
from tests.test_readme import BLOCK, ROOT, shell

pytestmark = spec("13.help")

CLEAN = "trap 'kill $(jobs -p) 2>/dev/null || true; vctl daemon --stop || true; rm -rf \"$VCTL_HOME\"' EXIT\n"


def run_page(name: str, home: Path) -> tuple[dict[str, str], str]:
    """What the commands below each heading of a page print on stdout, by heading; and all that was printed."""
    script, heading = CLEAN, "Start"
    for part in re.split(r"^(?=## )", (ROOT / "docs" / name).read_text(encoding="utf-8"), flags=re.MULTILINE):
        if part.startswith("## "):
            heading = part.partition("\n")[0].removeprefix("## ")
        script += f"echo '=== {heading.replace(chr(39), '')}'\n" + "".join(BLOCK.findall(part))
    done = shell(script, home)
    reported = done.stdout + done.stderr
    assert done.returncode == 0, reported
    parts = [part.partition("\n") for part in done.stdout.split("=== ")[1:]]
    return {heading: text for heading, _, text in parts}, reported


@spec("8.arrays")
def test_a_sweep_is_submitted_watched_and_repaired_as_told(tmp_path):
    said, reported = run_page("sweeps.md", tmp_path)
    assert said["Submit"].split() == ["sweep", "extra", "report"], reported
    watch = said["Watch"]
    assert re.search(r"^sweep +\d+ .* RUNNING +\d+/24", watch, re.MULTILINE), reported
    assert re.search(r"^sweep_23 .* PENDING", watch, re.MULTILINE), reported
    assert "expected start: " in watch, reported
    assert re.search(r"^ *4: no file part-4$", watch, re.MULTILINE), reported
    failed = said["See what failed, and why"]
    assert "exit code 124" in failed, reported
    assert "2 TimeLimit: ran longer than its time limit: 2,9" in failed, reported
    assert "2 NonZeroExit: exited with code 3: 4,7" in failed, reported
    assert re.search(r"^no file part-4$", failed, re.MULTILINE), reported
    assert len(re.findall(r"^sweep_\d+ .* FAILED", failed, re.MULTILINE)) == 4, reported
    assert "sweep: 4 of 24 did not succeed" in reported
    assert "sweep: 24 of 24 done" in reported
    results = said["Results by index"]
    assert results.startswith("loss 0.4\n"), reported
    assert str(dict.fromkeys(range(23, -1, -1), 0)) in results, reported
    assert "\nsweep RUNNING\nsweep FAILED\n" in results, reported
    assert "job extra_31 is STOPPED" in watch and "job extra_20 is STOPPED" not in watch, reported
    python = said["From Python"].splitlines()
    assert python[0] == "exit code 124" and python[-2] == "exit code 0", reported
    assert {"TimeLimit 124 2", "NonZeroExit 3 4"} == set(python[1:3]), reported
    assert python[-1] == str(dict.fromkeys(range(5, -1, -1), 0)), reported
    answers = said["Over HTTP"]
    documents, _, rest = answers.partition("background scheduler")
    assert rest, reported
    decode, found = json.JSONDecoder(), []
    while documents.startswith("{"):
        document, end = decode.raw_decode(documents)
        found.append(document)
        documents = documents[end:].lstrip()
    assert [len(one["array"]["failures"]) for one in found if "array" in one][:2] == [0, 2], reported
    assert "4: loss 0.4" in documents, reported


@spec("17.migration")
def test_the_first_day_of_an_admin_goes_as_told(tmp_path):
    said, reported = run_page("first-day.md", tmp_path)
    assert re.search(r"research .* 0/16 .*\n.*students .* 0/4 ", said["Divide"]), reported
    assert "nothing to change, 2 as wanted" in said["Divide"], reported
    assert re.search(r"^borrow_limit .*CPU\W+4", said["Limit"], re.MULTILINE), reported
    assert re.search(r"max_running_per_user\W+2", said["Limit"]), reported
    assert re.search(r"^kPrimaryClusterID/labs/labs\.\w+/labs", said["Limit"], re.MULTILINE), reported
    watch = said["Watch"]
    assert "second waits (InsufficientResources)" in watch, reported
    assert re.search(r"students +\w+ +CPU 4", watch), reported
    assert re.search(r"^ok$", watch, re.MULTILINE), reported
    away = said["Keep work away"]
    assert "8c16g-03 is DRAINED" in away, reported
    assert "ClusterStopped" in away and "upgrade until noon" in away, reported
    restored = said["Restore"]
    assert re.search(r"^second .* PENDING", restored, re.MULTILINE), reported
    assert re.search(r"^first .* RUNNING", restored, re.MULTILINE), reported
    assert "0 jobs deleted" in said["Every month"], reported


FILES = {
    "prepare.py": "print('ready')",
    "train.py": "print('trained')",
    "report.py": "print('done')",
    "book.txt": "a b c",
    "build.sh": "test -e /tmp/built || echo built | tee /tmp/built",
    "model.py": "import os; print('model of', os.getpid())",
}


def blocks(name: str, kind: str) -> list[str]:
    """The code blocks of a page of one kind."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_about_jobs_run(tmp_path):
    own, batch, tasks = blocks("jobs.md", "sh")
    files = "".join(f"echo {json.dumps(text)} > {name}\n" for name, text in FILES.items())
    nodes = "vctl node add --count 2 --template 8c16g --resources '{\"CPU\": 8}' --simulated\n"
    home = 'export VCTL_HOME="$(mktemp -d)" VCTL_LOCAL_NODE=0\n'
    inside = f"cat > tasks.sh <<'EOF'\n{tasks}EOF\nvctl run -n 2 -- sh tasks.sh\n"
    waits = "vctl wait prepare train; vctl logs prepare; vctl logs train\n"
    done = shell(CLEAN + home + 'cd "$VCTL_HOME"\n' + files + nodes + own + batch + waits + inside, tmp_path)
    reported = done.stdout + done.stderr
    assert done.returncode == 0, reported
    assert done.stdout.count("trained") == 10, reported
    assert "ready" in done.stdout, reported
    assert "built\nmodel of 2\n" in done.stdout, reported
    assert re.search(r"^task-\d+\n3$", done.stdout, re.MULTILINE), reported


def test_the_tree_file_of_the_page_about_operations_is_one(tmp_path):
    (tree,) = blocks("operations.md", "yaml")
    nodes = 'vctl node add --count 6 --template 8c16g --resources \'{"CPU": 8, "GPU": 1}\' --simulated\n'
    script = f"cat > tree.yaml <<'EOF'\n{tree}EOF\n"
    script += "vctl vc plan -f tree.yaml\nvctl vc apply -f tree.yaml\nvctl vc tree\n"
    done = shell(
        CLEAN + 'export VCTL_HOME="$(mktemp -d)" VCTL_LOCAL_NODE=0\ncd "$VCTL_HOME"\n' + nodes + script,
        tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("research", "vision", "text", "service"):
        assert re.search(rf"{name} +- +logical", done.stdout), done.stdout + done.stderr
