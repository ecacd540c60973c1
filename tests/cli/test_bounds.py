"""``vc create|update --min GPU=1 --max GPU=4``: the two bounds of a cluster spec, without JSON."""

from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec

pytestmark = spec("7.create", "7.revision")

MINIMUM, MAXIMUM = "flexible_resource_min", "flexible_resource_max"


def spec_of(cli: Cli, name: str) -> Any:
    return cli(f"vc get {name} -o json").json["spec"]


def test_bounds_make_the_spec_that_json_makes(nodes: Cli) -> None:
    """Repeated or separated by commas, with sizes."""
    assert nodes("vc create a --divisible --min CPU=1,memory=1GiB --max CPU=3").code == 0
    assert (
        nodes("vc create b --divisible --min CPU=1 --min memory=1GiB --max", "CPU=3").code == 2
    )  # one word, two
    assert nodes(*"vc create b --divisible --min CPU=1 --min memory=1024MiB --max CPU=3".split()).code == 0
    document = '{"flexible_resource_min": {"CPU": 1, "memory": "1GiB"}, "flexible_resource_max": {"CPU": 3}}'
    assert nodes("vc", "create", "c", "--divisible", "--spec", document).code == 0
    assert spec_of(nodes, "a") == spec_of(nodes, "b") == spec_of(nodes, "c")
    assert spec_of(nodes, "a") == {MINIMUM: {"CPU": 1, "memory": 2**30}, MAXIMUM: {"CPU": 3}}


def test_an_update_keeps_what_is_not_named(nodes: Cli) -> None:
    assert nodes("vc create a --divisible --min CPU=1,memory=1GiB --max CPU=3").code == 0
    for options, least, most in (
        ("--min CPU=2", {"CPU": 2, "memory": 2**30}, {"CPU": 3}),
        ("--max CPU=5", {"CPU": 2, "memory": 2**30}, {"CPU": 5}),
        ("--max CPU=none,memory=2GiB --min memory=0", {"CPU": 2, "memory": 0}, {"memory": 2**31}),
    ):
        ran = nodes(f"vc update a {options}")
        assert ran.code == 0, ran.err
        assert spec_of(nodes, "a") == {MINIMUM: least, MAXIMUM: most}, options


def test_an_update_keeps_fixed_nodes(nodes: Cli) -> None:
    group = {"nodes": [{"resources": {"CPU": 1}}], "scheduling_policy": "PACK"}
    document = '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}'
    assert nodes("vc", "create", "a", "--divisible", "--spec", document).code == 0
    assert nodes("vc update a --min CPU=1").code == 0
    assert spec_of(nodes, "a") == {MINIMUM: {"CPU": 1}, "fixed_size_nodes": [group]}


def test_an_update_meets_the_spec_that_it_was_made_from(nodes: Cli) -> None:
    """The spec is made from the present one, so a change of somebody else in between is refused, not undone."""
    assert nodes("vc create a --divisible --min CPU=1").code == 0
    assert nodes("vc update a --min CPU=2 --revision 5").code == 5
    assert spec_of(nodes, "a") == {MINIMUM: {"CPU": 1}}


REFUSED = {
    "no name": ("vc create x --min 4", '--min: "4" is not NAME=AMOUNT', "write --min GPU=1,memory=8GiB"),
    "another mark": ("vc create x --max GPU:4", '--max: "GPU:4" is not NAME=AMOUNT', "write --max GPU=4"),
    "no amount": ("vc create x --min GPU=", "is not NAME=AMOUNT", "write --min"),
    "a near name": ("vc create x --min cpus=4", "--min: unknown resource cpus", "did you mean CPU?"),
    "twice": ("vc create x --min CPU=1 --min CPU=2", "--min: CPU is given twice", "keep one"),
    "no number": ("vc create x --max CPU=many", '--max.CPU: "many" is not a number', ""),
    "no size": ("vc create x --min memory=8XB", '--min.memory: "8XB" is not a size', "8GiB"),
    "a part of devices": ("vc create x --min GPU=1.5", "--min GPU: one request for GPU", "write 1 or 2"),
    "below": ("vc create x --min CPU=2 --max CPU=1", "--max CPU: the maximum 1 is below the minimum 2", "raise --max"),
    "beside a spec": ("vc create x --min CPU=1 --spec {}", "--min: --spec has both bounds", "leave out --min"),
    "beside whole nodes": (
        "vc update a --min CPU=1 --max CPU=2 --replica-sets {}", "--min and --max: --replica-sets", "leave out",
    ),
    "whole nodes at present": ("vc update whole --max CPU=1", "--max: it cannot be combined", "replica_sets"),
    "the primary": ("vc update primary --max CPU=1", "can not be created or updated", ""),
}  # fmt: skip


@pytest.mark.parametrize(("line", "problem", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_bound_is_refused_with_the_fix(nodes: Cli, line: str, problem: str, fix: str) -> None:
    assert nodes("vc", "create", "whole", "--replica-sets", '{"4c8g": 1}').code == 0
    ran = nodes(line)
    assert (ran.code, ran.out) == (2, "")
    said, _, remedy = ran.err.partition("Fix: ")
    assert problem in said
    assert fix in remedy


def test_bytes_are_hardly_meant(nodes: Cli) -> None:
    ran = nodes("vc create a --min memory=8")
    assert ran.code == 0
    assert "Warning: --min memory: 8 means 8 bytes. Write 8GiB or 8MiB for more" in ran.err
