"""Short options in one word, in any order, with their values (spec 13): ``ps -aw``, ``run -dn4``, ``logs -fn5``."""

import itertools
import json

import pytest

from tests.specification import spec
from vctl.cli import catalog, completion, declare
from vctl.cli.declare import Command
from vctl.spec.params import Param

pytestmark = spec("13.submit", "13.output")

SPELLED_OUT = {
    "ps -aw": "-a -w 2",
    "ps -wa": "-w 2 -a",
    "ps -aw1": "-a -w 1",
    "ps -aw 1": "-a -w 1",
    "ps -w1.5": "-w 1.5",
    "ps -awojson": "-a -w 2 -o json",
    "ps -ao json": "-a -o json",
    "ps -wao json": "-w 2 -a -o json",
    "ps -w1a": "-w 2 -1a",  # no number, and no options: typer refuses it
    "ps -ax": "-a -x",
    "ps -a=1": "-a -=1",
    "ps --watch --limit 3": "--watch 2 --limit 3",
    "ps --watch=1 -a": "--watch=1 -a",
    "ps -f -w": "-f -w",  # a value, whatever it looks like
    "ps -afname=-w": "-a -f name=-w",
    "logs -fn5 x": "-f -n 5 x",
    "logs -n5f x": "-n 5f x",
    "logs x -f": "x -f",
    "run -dn4 sleep -n5 -w": "-d -n 4 sleep -n5 -w",
    "run -dn 4 -g1 -- ls -la": "-d -n 4 -g 1 -- ls -la",
    "run --priority -5 -d true": "--priority -5 -d true",
    "run -dc": "-d -c",
    "get jobs -w -- -w": "jobs -w 2 -- -w",
}


@pytest.mark.parametrize("line", SPELLED_OUT)
def test_one_word_is_spelled_out(line: str) -> None:
    command, words = catalog.find(line.split())
    assert declare.spelled_out(command, words) == SPELLED_OUT[line].split()
    assert declare.spelled_out(command, SPELLED_OUT[line].split()) == SPELLED_OUT[line].split()


def short(param: Param) -> str:
    return next((name for name in param.info.names if not name.startswith("--")), "")


def pairs() -> list[tuple[Command, Param, Param]]:
    """Every pair of short options of every command of which the first needs no value."""
    return [
        (command, first, second)
        for command in catalog.load_all().values()
        for first, second in itertools.permutations([p for p in command.params if short(p)], 2)
        if first.is_flag or first.info.bare
    ]


def test_two_short_options_in_one_word_are_the_same_as_in_two() -> None:
    """Of every command, in both orders; the value of the second one behind it, or as the next word."""
    found = pairs()
    assert len(found) > 30
    for command, first, second in found:
        value = [] if second.is_flag else ["3" if second.type in (int, float) else "name"]
        arguments = ["x" for param in command.params if param.is_argument and param.required]
        arguments = ["jobs" if param == "RES" else "x" for param in arguments]
        alone = declare.read(command, [short(first), short(second), *value, *arguments])
        assert alone is not None
        together = short(first) + short(second)[1:]
        assert declare.read(command, [together, *value, *arguments]) == alone, (command.path, together)
        if value:
            assert declare.read(command, [together + value[0], *arguments]) == alone, (command.path, together)


@spec("13.errors")
def test_an_error_is_data_where_the_form_stands_among_other_options(nodes) -> None:
    for words in (
        "ps -ao json --no-such",
        "ps -aojson --no-such",
        "run -dojson -n 1000 -- true",
        "ps -wojson -x",
    ):
        done = nodes(words)
        assert json.loads(done.out)["error"]["exit_code"] == done.code > 0, words
        assert done.err == "", words
    assert nodes("ps -ax").code == 2
    assert nodes("ps -ax").err.startswith("Error: No such option: -x\n")
    assert nodes("logs -n5f x").code == 2
    assert nodes("ps -ao json").json["kind"] == "JobList"


@spec("13.completion")
def test_the_value_of_the_last_one_is_completed(nodes) -> None:
    assert nodes("vc create team-a --divisible --replica-sets {}").code == 0
    assert "team-a" in [word for word, _ in completion.candidates(["ps", "-ac", ""])]
    assert ("json", "") in [(word, "") for word, _ in completion.candidates(["ps", "-awo", ""])]
    assert completion.candidates(["logs", "-fn", ""]) == completion.candidates(["logs", "-n", ""])
