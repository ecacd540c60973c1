"""Amounts, sizes and durations: what is read, what is refused and how, and that nothing drifts."""

from __future__ import annotations

import json
import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specification import spec
from vctl.core.resources import SCALE
from vctl.errors import BadSpec
from vctl.spec import quantities as q

pytestmark = spec("2.amounts", "2.names")

AMOUNTS = {
    1: 10_000,
    "1": 10_000,
    " 8 ": 80_000,
    "0.25": 2_500,
    0.25: 2_500,
    0.1: 1_000,
    ".5": 5_000,
    "2.": 20_000,
    "1e3": 10_000_000,
    "1.50000000": 15_000,
    "-0": 0,
    0: 0,
    Decimal("0.0001"): 1,
    Decimal("0e99999"): 0,
    2**53: 2**53 * 10_000,
    "9007199254740992": 2**53 * 10_000,
    "+4": 40_000,
}


@pytest.mark.parametrize(("value", "want"), AMOUNTS.items(), ids=map(repr, AMOUNTS))
def test_amounts_are_exact(value, want):
    assert q.parse_amount(value, "x") == want


BAD_AMOUNTS = {
    "five decimals": ("0.00001", "four decimals"),
    "five decimals as a float": (0.30000000000000004, "four decimals"),
    "decimals beyond any context": ("1." + "0" * 60 + "1", "four decimals"),
    "tiny exponent": ("1e-99999", "four decimals"),
    "negative": (-1, "negative"),
    "negative text": ("-0.5", "negative"),
    "nan": (float("nan"), "not an amount"),
    "nan text": ("nan", "not a number"),
    "infinity": (float("inf"), "not an amount"),
    "infinity text": ("Infinity", "not a number"),
    "decimal nan": (Decimal("nan"), "not an amount"),
    "true": (True, "true is not a number"),
    "null": (None, "null is not a number"),
    "list": ([1], "a list is not a number"),
    "object": ({}, "an object is not a number"),
    "empty": ("", "not a number"),
    "word": ("one", "not a number"),
    "underscore": ("1_000", "not a number"),
    "other digits": ("٣", "not a number"),
    "hex": ("0x10", "not a number"),
    "two numbers": ("1 2", "not a number"),
    "newline": ("1\n1", "not a number"),
    "above 2^53": (2**53 + 1, "above 2^53"),
    "just above 2^53": ("9007199254740992.0001", "above 2^53"),
    "huge": ("1e400000", "above 2^53"),
    "huge int": (10**5000, "above 2^53"),
    "not a JSON number": ("9007199254740991.0001", "more digits"),
    "bytes": (b"1", "not a number"),
}


@pytest.mark.parametrize(("value", "words"), BAD_AMOUNTS.values(), ids=BAD_AMOUNTS)
def test_bad_amounts_are_refused_with_path_and_fix(value, words):
    with pytest.raises(BadSpec) as caught:
        q.parse_amount(value, "resources.CPU")
    assert caught.value.problem.startswith("resources.CPU: ")
    assert words in caught.value.problem
    assert caught.value.fix
    assert (caught.value.exit_code, caught.value.details) == (2, {"path": "resources.CPU"})
    assert len(caught.value.problem) < 200


def test_tenths_do_not_drift():
    assert q.parse_amount("0.1", "x") + q.parse_amount("0.2", "x") == q.parse_amount("0.3", "x")
    assert q.parse_amount(0.1, "x") + q.parse_amount(0.2, "x") == q.parse_amount(0.3, "x")
    values, total = [random.Random(1).randrange(10_000) for _ in range(20_000)], 0
    for value in values:
        total += q.parse_amount(value / 10_000, "x")
    assert total == sum(values)


@given(st.integers(0, 10**15) | st.integers(0, 2**53).map(lambda whole: whole * SCALE))
def test_every_amount_survives_json(amount):
    text = f"{amount // SCALE}.{amount % SCALE:04}"
    read = q.parse_amount(text, "x")
    assert read == amount
    shown = json.loads(json.dumps(q.format_amount(read)), parse_float=Decimal)
    assert q.parse_amount(shown, "x") == amount


SIZES = {
    "8GiB": 8 * 2**30,
    "8gib": 8 * 2**30,
    "8 GiB": 8 * 2**30,
    "8GB": 8 * 10**9,
    "512M": 512 * 2**20,
    "512k": 512 * 1024,
    "1.5GiB": 3 * 2**29,
    "0.1GiB": 107374183,
    "0.5KB": 500,
    "100": 100,
    "100B": 100,
    4096: 4096,
    "2TiB": 2**41,
    "0": 0,
}


@pytest.mark.parametrize(("value", "want"), SIZES.items(), ids=map(repr, SIZES))
def test_sizes(value, want):
    assert q.parse_size(value, "memory") == want
    assert q.parse_memory(value, "memory") == want * SCALE


@pytest.mark.parametrize(
    "value",
    ["", "GiB", "-1GiB", "8GiBs", "8 G iB", "8XB", "1.5", 1.5, "9PiB9", "8EiB", True, None, "1e3G", "٣G"],
)
def test_bad_sizes(value):
    with pytest.raises(BadSpec, match=r"^memory: ") as caught:
        q.parse_size(value, "memory")
    assert caught.value.fix


DURATIONS = {
    "90": 90,
    "90s": 90,
    "1h30m": 5400,
    "1H30M": 5400,
    "1.5h": 5400,
    "01:30:00": 5400,
    "100:00:00": 360_000,
    "1-12:00:00": 129_600,
    "2d": 172_800,
    "500ms": 0.5,
    "0": 0,
    0.25: 0.25,
    30: 30,
    "00:00:01.5": 1.5,
}


@pytest.mark.parametrize(("value", "want"), DURATIONS.items(), ids=map(repr, DURATIONS))
def test_durations(value, want):
    got = q.parse_duration(value, "t")
    assert got == want
    assert isinstance(got, int) == (want == int(want))


BAD_DURATIONS = [
    "",
    "1x",
    "h",
    "1h1h",
    "10:30",
    "1:60:00",
    "1:00:61",
    "-1",
    "-1s",
    "1 h",
    "nan",
    None,
    True,
    [],
    "1e99",
]


@pytest.mark.parametrize("value", [*BAD_DURATIONS, float("inf"), "9" * 50, "99999999h", "1h30"])
def test_bad_durations(value):
    with pytest.raises(BadSpec, match=r"^--time-limit: ") as caught:
        q.parse_duration(value, "--time-limit")
    assert caught.value.fix


def test_a_duration_of_zero_can_be_refused():
    with pytest.raises(BadSpec, match="is 0"):
        q.parse_duration("0s", "t", positive=True)


def test_resources():
    given = {
        "CPU": 1,
        "GPU": Decimal("0.5"),
        "memory": "1GiB",
        "accelerator_type:A100": 1,
        "node:10.0.0.1": 0.001,
    }
    assert q.parse_resources(given, "r") == {
        "CPU": 10_000,
        "GPU": 5_000,
        "memory": 2**30 * SCALE,
        "accelerator_type:A100": 10_000,
        "node:10.0.0.1": 10,
    }
    assert q.parse_resources({"FPGA": 1.5}, "r") == {"FPGA": 15_000}
    assert q.parse_resources({"CPU": 0}, "r") == {"CPU": 0}


BAD_RESOURCES = {
    "lower case": ({"cpu": 1}, "r.cpu", "CPU"),
    "plural": ({"gpus": 1}, "r.gpus", "GPU"),
    "upper case": ({"MEMORY": 1}, "r.MEMORY", "memory"),
    "capital": ({"Memory": 1}, "r.Memory", "memory"),
    "camel case": ({"objectStoreMemory": 1}, "r.objectStoreMemory", "object_store_memory"),
    "as in ray.init": ({"num_gpus": 1}, "r.num_gpus", "GPU"),
    "short": ({"mem": 1}, "r.mem", "memory"),
    "one and a half devices": ({"GPU": 1.5}, "r.GPU", "write 1 or 2"),
    "string": ({"CPU": "4"}, "r.CPU", "4 without quotes"),
    "what YAML takes for a string": ({"CPU": "1e3"}, "r.CPU", "write 1000 without quotes"),
    "a leading zero": ({"CPU": "08"}, "r.CPU", "write 8 without quotes"),
    "a long exponent": ({"CPU": "1e99999"}, "r.CPU", "a number such as 2"),
    "boolean": ({"CPU": True}, "r.CPU", "number"),
    "null": ({"CPU": None}, "r.CPU", "number"),
    "nested": ({"CPU": {"min": 1}}, "r.CPU", "number"),
    "bad size": ({"memory": "lots"}, "r.memory", "8GiB"),
    "part of a byte": ({"memory": 1.5}, "r.memory", "1.5GiB"),
    "empty name": ({"": 1}, 'r[""]', "characters"),
    "space": ({"my gpu": 1}, 'r["my gpu"]', "spaces"),
    "control character": ({"a\x00": 1}, 'r["a\\x00"]', "printable"),
    "surrogate": ({"\ud800": 1}, 'r["\\ud800"]', "printable"),
    "long name": ({"x" * 129: 1}, "r." + "x" * 129, "128"),
    "list": ([1], "r", '{"CPU": 1}'),
    "text": ("CPU", "r", '{"CPU": 1}'),
    "number as key": ({1: 1}, "r", "quotes"),
    "too many": ({f"r{i}": 1 for i in range(300)}, "r", "fewer"),
}


@pytest.mark.parametrize(("value", "path", "fix"), BAD_RESOURCES.values(), ids=BAD_RESOURCES)
def test_bad_resources(value, path, fix):
    with pytest.raises(BadSpec) as caught:
        q.parse_resources(value, "r")
    assert caught.value.details == {"path": path}
    assert fix in caught.value.fix


def test_the_refusal_of_one_and_a_half_devices_says_why():
    with pytest.raises(BadSpec, match=r"must be whole, not 1\.5: GPU comes as numbered devices"):
        q.parse_resources({"GPU": 1.5}, "r")
    with pytest.raises(BadSpec, match="FPGA"):
        q.parse_resources({"FPGA": 2.5}, "r", {"FPGA"})
    with pytest.raises(BadSpec, match="whole GPU"):
        q.parse_resources({"GPU": 0.5}, "r", totals=True)


@pytest.mark.parametrize("name", ["CPU", "GPU", "FPGA"])
def test_what_has_numbers_does_not_fill_the_memory(name: str) -> None:
    most = q.MAX_NUMBERED
    assert q.parse_resources({name: most}, "r", {"GPU", "FPGA"}, totals=True) == {name: most * 10_000}
    with pytest.raises(BadSpec, match=f"a node has at most {most} {name}"):
        q.parse_resources({name: 2**53}, "r", {"GPU", "FPGA"}, totals=True)
    assert q.parse_resources({name: 2**53}, "r", {"GPU", "FPGA"})


def test_output():
    assert json.dumps([q.format_amount(80_000), q.format_amount(2_500)]) == "[8, 0.25]"


@pytest.mark.parametrize(
    ("size", "want"),
    [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (2**30 - 1, "1GiB"), (8 * 2**30, "8GiB")],
)
def test_format_size(size, want):
    assert q.format_size(size) == want


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (0, "0s"),
        (0.5, "0.5s"),
        (59.99, "59.9s"),
        (90, "1m30s"),
        (5400, "1h30m"),
        (129_600, "1d12h"),
        (3601, "1h1s"),
    ],
)
def test_format_duration(seconds, want):
    assert q.format_duration(seconds) == want


@given(st.integers(0, 10**9))
def test_whole_durations_are_read_as_shown_by_the_clock(seconds):
    days, rest = divmod(seconds, 86400)
    text = f"{days}-{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    assert q.parse_duration(text, "t") == seconds
