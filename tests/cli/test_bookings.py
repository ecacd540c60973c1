"""``vctl reserve``: what it says, what it refuses, and what lists and other commands say of it."""

from __future__ import annotations

import pytest

import vctl
from tests.cli.conftest import Cli
from tests.specification import spec

pytestmark = spec("19.booking")


@pytest.fixture
def gpus(cli: Cli) -> Cli:
    words = ["node", "add", "g1", "--simulated", "--resources", '{"CPU": 8, "GPU": 4, "memory": "16GiB"}']
    assert cli(*words).code == 0
    return cli


def test_a_booking_is_a_cluster_until_it_is_deleted(gpus: Cli) -> None:
    ran = gpus(*"reserve --gpus 2 --cpus 4 --memory 1GiB --at +1h --for 2h --name demo".split())
    assert ran.code == 0, ran.err
    assert "demo is booked from" in ran.out
    demo = gpus("vc get demo -o json").json
    assert demo["state"] == "BOOKED"
    assert demo["total_resources"] == {}
    assert demo["begin_at"] < demo["end_at"]
    assert demo["spec"]["fixed_size_nodes"][0]["nodes"][0]["resources"] == {
        "CPU": 4,
        "GPU": 2,
        "memory": 2**30,
    }
    assert gpus("vc list --state BOOKED -o name").out.split() == ["demo"]
    assert gpus("vc export -o json").json == {"clusters": []}, "a tree file has what stays"
    assert gpus("vc delete demo").code == 0
    assert gpus("vc get demo").code == 4


def test_it_gets_a_name_and_begins_now(gpus: Cli) -> None:
    for name in ("booking-1", "booking-2"):
        made = gpus("reserve -g 1 --for 2h -o json").json
        assert (made["cluster_id"], made["state"], made["total_resources"]) == (name, "ACTIVE", {"GPU": 1})


def test_each_of_some_machines_gives_as_much(gpus: Cli) -> None:
    ran = gpus("reserve -g 1 --nodes 2 --for 2h --at +1h")
    assert (ran.code, ran.out) == (3, "")
    assert gpus("node add g2 --simulated --resources", '{"GPU": 4}').code == 2
    assert gpus(*"node add g2 --simulated --resources".split(), '{"GPU": 4}').code == 0
    made = gpus("reserve -g 1 --nodes 2 --for 2h -o json").json
    assert sorted(made["node_instances"]) == ["g1", "g2"]


SLIPS = {
    "no length": ("reserve --gpus 2", 2, "--for"),
    "no resources": ("reserve --for 2h", 2, "give --num-gpus, --num-cpus, --memory or --resources"),
    "no time of day": ("reserve --gpus 2 --for 2h --at 25:00", 2, "--at"),
    "a time that has passed": ("reserve --gpus 2 --for 2h --at 2020-01-01T00:00", 2, "has passed"),
    "half a device more": ("reserve --gpus 1.5 --for 2h --at +1h", 2, "write 1 or 2"),
    "more than there is": ("reserve --gpus 9 --for 2h --at +1h", 3, "the largest node has 4"),
    "a name that is taken": ("reserve --gpus 1 --for 2h --name taken", 5, "taken exists already"),
    "an unknown cluster": ("reserve --gpus 1 --for 2h -c nosuch", 4, "nosuch does not exist"),
    "what holds no clusters": ("reserve --gpus 1 --for 2h -c taken", 2, "indivisible"),
    "what is booked": ("reserve --gpus 3 --for 2h --at +1h", 5, "booked for other (until"),
    "its resources before": ("vc create x --parent other --min CPU=1", 5, "has no resources before"),
    "another size": ("vc update other --max CPU=1", 5, "cancel it with `vctl vc delete other`"),
    "a stop of what is not open": ("vc stop other", 5, "is booked from"),
    "more than it will have": ("run -c other -g 3 --no-wait -- true", 3, "exceeds the capacity of other"),
}


@pytest.mark.parametrize("case", SLIPS)
def test_what_is_refused(gpus: Cli, case: str) -> None:
    line, code, said = SLIPS[case]
    assert gpus("vc create taken --min CPU=1").code == 0
    assert gpus("reserve --gpus 2 --for 2h --at +1h --name other").code == 0
    ran = gpus(line)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_times_are_as_people_say_them(gpus: Cli) -> None:
    for number, at in enumerate(("now", "+2h", "in 2h", "2h", "now+2h", "14:00", "2100-01-31T14:00")):
        ran = gpus("reserve", "--cpus", "0.5", "--for", "1h", "--name", f"b{number}", "--at", at)
        assert ran.code == 0, ran.err


def test_a_job_waits_for_its_cluster_to_open(gpus: Cli) -> None:
    assert gpus("reserve --gpus 2 --for 2h --at +1h --name demo").code == 0
    ran = gpus("run -c demo -g 1 --no-wait -o json -- true")
    assert (ran.code, ran.json["state_reason"]) == (0, "BeginTime")
    assert "it is stopped with its cluster if it still runs at" in ran.err
    assert "demo is booked from" in gpus(f"why {ran.json['submission_id']}").out


def test_python_books_too(gpus: Cli) -> None:
    made = vctl.connect().clusters.reserve(num_gpus=2, length_s=3600, name="demo")
    assert (made["cluster_id"], made["state"]) == ("demo", "ACTIVE")
