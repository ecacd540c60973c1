"""The Ray programs of docs/examples, submitted with the command that their docstring names."""

from __future__ import annotations

import ast
import shlex
import sys

import pytest

from tests.integration.conftest import ROOT, Place, eventually
from tests.integration.test_private_ray import assert_clean, folders
from tests.ray_cluster import RAY_S, WITH_RAY, log_of
from tests.specification import spec

pytestmark = [spec("16.ray"), *WITH_RAY]

SAID = {
    "ray_gang": ["the sum is 499500"],
    "ray_tune_and_data": ["grown to 4.0 CPUs", "the best trial has 319600.0"],
    "ray_data_sets": ["small 1916", "large"],
    "ray_nesting": ["PACK", "STRICT_PACK 1", "SPREAD", "STRICT_SPREAD 2"],
}


@pytest.mark.parametrize("name", SAID)
def test_an_example_does_what_it_says(place: Place, name: str) -> None:
    path = ROOT / "docs/examples" / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text is not None
    vctl, job, submit, *words = shlex.split(text.splitlines()[-1])
    assert (vctl, job, submit) == ("vctl", "job", "submit")
    words[words.index("python") :] = [sys.executable, str(path)]
    place.add_nodes(2)
    place.daemon(VCTL_LEASE_IDLE_TIMEOUT="2")
    place.ok("job", "submit", "--no-wait", "--submission-id", "e", *words)
    eventually(lambda: folders(place), "the job to be launched", RAY_S)
    used = folders(place)
    assert place.reach("e", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(
        place, "e"
    )
    lines = log_of(place, "e").splitlines()
    for said in SAID[name]:
        assert any(line.startswith(said) for line in lines), lines
    assert_clean(place, used)


def test_every_example_of_ray_is_tried() -> None:
    assert {path.stem for path in (ROOT / "docs/examples").glob("ray_*.py")} == set(SAID)
