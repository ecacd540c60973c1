"""What a task carries: its job, its request, its strategy."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.core.resources import SCALE
from vctl.core.tasks import named_by
from vctl.errors import BadSpec, param
from vctl.spec.task_request import TaskRequest, check_strategy, job_of, task_amounts

pytestmark = spec("10.commands")

AMOUNTS = {
    "one CPU by default": ({}, {"CPU": SCALE}),
    "one CPU beside GPUs": ({"num_gpus": "1"}, {"CPU": SCALE, "GPU": SCALE}),
    "CPUs as asked": ({"num_cpus": "0.5"}, {"CPU": 5000}),
    "no CPU when none is asked for": ({"num_cpus": "0"}, {}),
    "no CPU by resources": ({"resources_json": '{"CPU": 0, "disk": 2}'}, {"disk": 2 * SCALE}),
    "CPUs by resources": ({"resources_json": {"CPU": 3}}, {"CPU": 3 * SCALE}),
    "memory": ({"memory": "1KiB"}, {"CPU": SCALE, "memory": 1024 * SCALE}),
}


@pytest.mark.parametrize(("options", "want"), AMOUNTS.values(), ids=AMOUNTS)
def test_amounts(options, want):
    assert task_amounts(**options) == want


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"num_gpus": "1.5"}, "num_gpus"),
        ({"num_cpus": "1", "resources_json": '{"CPU": 1}'}, "resources.CPU"),
        ({"resources_json": '{"mem": 1}'}, "resources.mem"),
    ],
)
def test_bad_amounts(options, path):
    with pytest.raises(BadSpec) as error:
        task_amounts(**options)
    assert error.value.details["path"] == path


NAMED = {
    "HYBRID": (None, ""), "SPREAD": (None, ""), "RANDOM": (None, ""), "NODE:n-1": ("n-1", ""),
    "NODE:a##b/0:soft": ("a##b/0", "soft"), "NODE:n-1:spill": ("n-1", "spill"),
}  # fmt: skip


@pytest.mark.parametrize(("strategy", "named"), NAMED.items(), ids=list(NAMED))
def test_strategies(strategy, named):
    assert check_strategy(strategy) == strategy
    assert named_by(strategy) == named


@pytest.mark.parametrize(
    "strategy",
    [
        "NODE",
        "NODE:",
        "NODE::soft",
        "NODE::spill",
        "NODE:n:",
        "NODE:n:soft:spill",
        "hybrid",
        "PACK",
        "SPREAD:2",
        "",
    ],
)
def test_bad_strategies(strategy):
    with pytest.raises(BadSpec, match="strategy"):
        TaskRequest(argv=("true",), strategy=strategy)


def test_a_mistyped_soft_is_no_part_of_the_id_of_a_node() -> None:
    """No id has a colon. It was said that there is no node n-1:sof, and to write NODE:n-1:sof:soft."""
    message = 'only soft or spill may stand behind the id of a node, not "sof"'
    with pytest.raises(BadSpec, match=message) as refused:
        check_strategy("NODE:n-1:sof")
    assert refused.value.fix == "write NODE:n-1:soft, NODE:n-1:spill or NODE:n-1"


BAD = {
    "no command": {"argv": ()},
    "NUL": {"argv": ("a\0",)},
    "name": {"name": "a\nb"},
    "cwd": {"cwd": "x"},
    "retries": {"max_retries": -1},
    "grace": {"grace_s": -1},
    "environment": {"env": {"": "x"}},
    "job": {"job": ""},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD)
def test_refused(fields):
    with pytest.raises(BadSpec) as error:
        TaskRequest(**{"argv": ("true",), **fields})
    assert error.value.fix


def test_the_job_is_the_given_one_or_that_of_the_environment():
    task = TaskRequest(argv=("true",))
    around = {"VCTL_SUBMISSION_ID": "job-a", "VCTL_JOB_ID": "7"}
    assert job_of(TaskRequest(argv=("true",), job="b"), around) == ("b", param("job"))
    assert job_of(task, around) == ("job-a", "VCTL_SUBMISSION_ID")
    assert job_of(task, {"VCTL_JOB_ID": "7"}) == ("7", "VCTL_JOB_ID")
    with pytest.raises(BadSpec, match="not run inside one") as error:
        job_of(task, {})
    assert "job=ID" in error.value.fix
