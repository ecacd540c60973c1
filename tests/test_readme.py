"""The README and the documents keep their promises: their commands run, their links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.cli import catalog
from vctl.core import jobs, tasks
from vctl.engine.lifecycle import JOB, NODE

pytestmark = spec("13.help")

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^|`|&& |/bin/)vctl ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
LIVE_TIMEOUT_S = 100


def section(title: str) -> str:
    """The text below a heading of the second level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README.read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"no section {title!r} in the README"
    return found[1]


def two_commands() -> tuple[str, str]:
    blocks = [block.strip() for block in BLOCK.findall(section("Two commands"))]
    assert len(blocks) == 2, blocks
    main, test = blocks
    assert "\n" not in main + test, "each is one line to copy"
    return main, test


def shell(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a script as a newcomer would: in the checkout, with an empty home, our command on the path."""
    env = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIVE_TIMEOUT_S,
        check=False,
    )  # fmt: skip


def test_both_commands_set_up_what_they_need():
    for command in two_commands():
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q "), command


def test_nothing_installs_vctl_by_its_name_from_an_index():
    """Another project has that name there: `pip install 'vctl[ray]'` installs it where vctl is not."""
    texts = [*PAGES, *(ROOT / "vctl").rglob("*.py")]
    by_name = re.compile(r"pip install [^`#\n]*(?<![\w./])vctl(?![\w/])")
    assert [
        f"{path}: {found[0]}" for path in texts if (found := by_name.search(path.read_text("utf-8")))
    ] == []


def test_the_main_command_does_real_work_in_a_virtual_cluster(tmp_path):
    main, _ = two_commands()
    submit = main.rpartition(" && ")[2]
    assert shlex.split(submit)[:3] == [".venv/bin/vctl", "job", "submit"]
    done = shell(submit.replace(".venv/bin/", f"{shlex.quote(str(BIN))}/"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"(\d+) files, (\d+) lines, (\d+) words", done.stdout)
    assert counted, done.stdout
    assert all(int(number) > 0 for number in counted.groups())
    assert "in virtual cluster kPrimaryClusterID##" in done.stdout
    assert (tmp_path / ".local/state/vctl/cluster.db").exists(), "the state is below the home directory"


def test_the_check_script_runs_the_test_command_as_it_is_written():
    _, test = two_commands()
    assert test in (ROOT / ".ci/run").read_text()


def test_the_tour_goes_as_told(tmp_path):
    tour = "\n".join(BLOCK.findall(section("Five minutes")))
    clean = "trap 'vctl daemon --stop || true; rm -rf \"$VCTL_HOME\"' EXIT\n"
    done = shell(clean + tour.replace("$PWD/.venv/bin", str(BIN)), tmp_path)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    for promised in (
        "InsufficientResources",
        "eval runs on 8c16g-",
        "steady is done",
        "in kPrimaryClusterID/research/research##",
        "research",
    ):
        assert promised in done.stdout, f"{promised!r} is missing:\n{told}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in LINK.findall(text):
        if target.startswith(("http:", "https:")):
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{target} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor[1:] in [slug(heading) for heading in headings], f"no heading {anchor} in {target}"


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_generated_pages_are_current():
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_reason_is_explained():
    explained = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/queues.md").read_text(), re.MULTILINE))
    states = set(JOB.phases()) | set(NODE.phases())
    constants = {**vars(jobs), **vars(tasks)}
    words = {value for name, value in constants.items() if name.isupper() and isinstance(value, str)}
    reasons = {word for word in words - states if not (word.isupper() or word.islower())}
    assert reasons == explained


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_name_only_commands_that_exist(page):
    known = catalog.load_all()
    groups = {command.split()[0] for command in known if " " in command}
    for first, second in COMMAND.findall(page.read_text(encoding="utf-8")):
        command = f"{first} {second}".rstrip() if first in groups else first
        assert command in {*known, *groups, *catalog.SHORT}, f"there is no `vctl {command}`"
