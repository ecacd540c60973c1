"""Every ``vc update`` checks ``--revision`` and makes a new one, whatever it changes (spec 7)."""

import json
import re

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec
from vctl.cli.queue_options import OPTIONS

pytestmark = spec("7.revision")

VALUES = {
    "order": "fifo", "discipline": "strict", "weight": "3", "ageing_s": "1h", "half_life_s": "2h",
    "starvation_after_s": "3m", "backfill_depth": "4", "max_running_jobs": "5", "max_running_per_user": "2",
    "preemption": "requeue", "min_runtime_s": "10m", "preemption_grace_s": "1m",
}  # fmt: skip
QUEUE = [(param.spelled, VALUES[param.name]) for param in OPTIONS.params]
WHOLE = [("--replica-sets", '{"4c8g": 1}'), ("--lending-limit", "{}")]
SLICES = [
    ("--spec", '{"flexible_resource_min": {"CPU": 1}}'), ("--borrow-limit", '{"CPU": 2}'),
    ("--lending-limit", '{"CPU": 1}'),
]  # fmt: skip


@pytest.fixture
def clusters(nodes: Cli) -> Cli:
    assert nodes("vc", "create", "whole", "--divisible", "--replica-sets", '{"4c8g": 1}').code == 0
    assert nodes("vc", "create", "slices", "--spec", '{"flexible_resource_min": {"CPU": 1}}').code == 0
    assert nodes("vc", "create", "below", "--parent", "whole", "--spec", "{}").code == 0
    return nodes


def changes(name: str) -> list[tuple[str, str]]:
    return [*QUEUE, *([] if name == "primary" else WHOLE if name == "whole" else SLICES)]


@pytest.mark.parametrize("name", ["whole", "slices", "below", "primary"])
def test_each_change_checks_the_revision_and_makes_a_new_one(clusters: Cli, name: str) -> None:
    def get() -> dict[str, object]:
        found: dict[str, object] = clusters("vc", "get", name, "-o", "json").json
        return found

    for option, value in changes(name):
        before = get()
        stale = clusters("vc", "update", name, option, value, "--revision", "7", "-o", "json")
        assert stale.code == 5, option
        error = stale.json["error"]
        assert error["message"] == (
            f"The revision (7) is expired, the latest revision of the virtual cluster {before['cluster_id']} is"
            f" {before['revision']}"
        )
        assert error["details"] == {"revision": str(before["revision"])}
        assert get() == before
        done = clusters("vc", "update", name, option, value, "--revision", str(before["revision"]))
        assert done.code == 0, (option, done.err)
        after = get()
        assert re.search(rf"updated, revision {after['revision']}$", done.out.strip())
        assert int(str(after["revision"])) > int(str(before["revision"])), option
        again = clusters("vc", "update", name, option, value)  # changes nothing, and is a change
        assert again.code == 0
        assert get() == {**after, "revision": get()["revision"]}
        assert int(str(get()["revision"])) > int(str(after["revision"])), option


def test_what_is_no_update_keeps_the_revision(clusters: Cli) -> None:
    for name in ("whole", "slices", "primary"):
        before = clusters("vc", "get", name, "-o", "json").json["revision"]
        assert clusters("vc", "update", name, "--revision", str(before)).code == 2
        assert clusters("vc", "update", name, "--queue-order", "no-such").code == 2
        assert clusters("vc", "get", name, "-o", "json").json["revision"] == before
    for words in (["vc", "stop", "whole"], ["vc", "resume", "whole"], ["vc", "remove-nodes", "whole"]):
        before = clusters("vc get whole -o json").json["revision"]
        clusters(*words)
        assert clusters("vc get whole -o json").json["revision"] == before


def test_an_empty_id_is_not_the_primary(clusters: Cli) -> None:
    """Its queue was changed."""
    before = clusters("vc get primary -o json").json
    done = clusters("vc", "update", "", "--queue-order", "fifo")
    assert (done.code, done.err.splitlines()[0]) == (
        2, "Error: Invalid request, the virtual cluster id is empty."
    )  # fmt: skip
    assert clusters("vc get primary -o json").json == before


def test_several_changes_are_one_update(clusters: Cli) -> None:
    """The queue settings too: a stale revision changes neither, and a bad setting not the spec."""
    before = clusters("vc get slices -o json").json
    both = ["vc", "update", "slices", "--spec", '{"flexible_resource_min": {"CPU": 2}}', "--weight", "5"]
    assert clusters(*both, "--revision", "1").code == 5
    assert clusters(*both, "--divisible").code == 5
    assert clusters("vc get slices -o json").json == before
    assert clusters(*both, "--revision", str(before["revision"])).code == 0
    after = clusters("vc get slices -o json").json
    assert (after["spec"]["flexible_resource_min"], after["queue"]["weight"]) == ({"CPU": 2.0}, 5)
    assert clusters("vc", "update", "primary", "--queue-order", "fifo", "--spec", "{}").err.startswith(
        "Error: Invalid request, kPrimaryClusterID can not be created or updated."
    )


@spec("7.tree-file")
def test_a_file_makes_a_new_revision_of_what_it_changes(clusters: Cli, tmp_path) -> None:
    """And only of that; its plan is stale after a change of a queue alone, which no digest showed."""
    file = tmp_path / "tree.json"

    def write(weight: int) -> None:
        tree = clusters("vc export -o json").json
        tree["clusters"][0]["queue"] = {"weight": weight}
        file.write_text(json.dumps(tree))

    def revisions() -> dict[str, int]:
        items = clusters("vc list -o json").json["items"]
        return {one["cluster_id"]: one["revision"] for one in items if one["kind"] == "logical"}

    write(4)
    before, first = revisions(), json.loads(file.read_text())["clusters"][0]["id"]
    planned = clusters("vc", "plan", "-f", str(file), "-o", "json").json["revision"]
    other = next(name for name in before if name != first)
    assert clusters("vc", "update", other, "--weight", "9").code == 0
    stale = clusters("vc", "apply", "-f", str(file), "--expect-revision", planned)
    assert stale.code == 5
    assert "have changed since the plan" in stale.err
    between = revisions()
    assert {name for name in before if between[name] != before[name]} == {other}
    write(4)
    assert clusters("vc", "apply", "-f", str(file)).code == 0
    assert {name for name in before if revisions()[name] != between[name]} == {first}
