import json
import shlex
from pathlib import Path

import pytest

from docs import reference
from tests.cli.conftest import Cli, python
from tests.specification import spec
from vctl.cli import bridge, catalog, declare
from vctl.cli.declare import Command
from vctl.core.resources import SCALE
from vctl.errors import BadSpec
from vctl.spec.cluster_spec import parse_cluster_spec

pytestmark = spec("13.help")

COMMANDS = catalog.load_all()


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> Command:
    return COMMANDS[request.param]


def test_help_of_every_command_shows_its_line_and_an_example(command: Command, cli: Cli) -> None:
    ran = cli(*command.path.split(), "--help")
    assert ran.code == 0
    assert command.help in " ".join(ran.out.replace("│", " ").split())
    assert "Examples:" in ran.out
    assert all(example in ran.out for example in command.examples)
    page = ran.out.partition("Examples:")[0]
    assert not {"<bool>", "<str>", "<list[str]>"} & set(page.split())
    assert " ".join(page.split()).startswith(f"Usage: {reference.usage(command).replace('-- ', '')} ")


def test_every_command_and_option_is_explained(command: Command) -> None:
    assert command.help.endswith(".")
    assert 10 < len(command.help) < 80
    assert command.examples
    for param in command.params:
        assert param.info.help.endswith((".", ")", "}.")), param.spelled
        assert param.info.names or param.is_argument


def test_every_example_can_be_read(command: Command) -> None:
    for example in command.examples:
        words = [word for word in shlex.split(example) if not word.startswith("VCTL_")]
        assert words[0] == "vctl"
        words = words[1 : words.index(">")] if ">" in words else words[1:]
        found, rest = catalog.find(words)
        assert found is command
        assert declare.read(command, rest) is not None


def test_the_catalogue_names_every_command_and_nothing_else() -> None:
    for word in catalog.WORDS:
        assert word in COMMANDS
    for group in catalog.GROUPS:
        assert catalog.members(group)
    assert {path.split()[0] for path in COMMANDS} == {*catalog.WORDS, *catalog.GROUPS, *catalog.HIDDEN}


def test_the_catalogue_repeats_the_help_of_its_commands() -> None:
    for word, (help, _) in catalog.WORDS.items():
        assert COMMANDS[word].help.startswith(help.rstrip(".")), word


@pytest.mark.parametrize("words", ["--help", "-h", "help"])
def test_the_first_page_lists_everything(cli: Cli, words: str) -> None:
    ran = cli(words)
    assert ran.code == 0
    assert all(word in ran.out for word in (*catalog.GROUPS, *catalog.WORDS, *catalog.SHORT))
    assert all(section in ran.out for section in catalog.SECTIONS)
    assert "completion" not in ran.out


def test_every_word_stands_in_one_section_of_the_first_page() -> None:
    """spec 13: help groups the commands."""
    placed = [word for words in catalog.SECTIONS.values() for word in words]
    assert sorted(placed) == sorted([*catalog.GROUPS, *catalog.WORDS, *catalog.SHORT])


@pytest.mark.parametrize("word", catalog.SHORT)
def test_a_short_word_is_the_same_command(cli: Cli, word: str) -> None:
    """spec 13: short verbs, same options."""
    command, rest = catalog.find([word, "x"])
    long = COMMANDS[catalog.SHORT[word]]
    given = ["--pty", "x"] if word == catalog.SHELL else ["x"]
    assert (command.run, rest, command.own_words) == (long.run, given, long.own_words)
    assert [param.info for param in command.params] == [param.info for param in long.params]
    ran = cli(word, "--help")
    assert ran.code == 0
    assert f"Usage: vctl {word}" in ran.out
    assert f"  vctl {word}" in ran.out.partition("Examples:")[2]
    assert f"vctl {long.path}" not in ran.out


def test_a_shell_runs_what_the_user_works_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/zsh")
    for line, rest in {
        "shell": "--pty -- /bin/zsh",
        "shell -n 2": "--pty -n 2 -- /bin/zsh",
        "shell -n 2 -- python -i": "--pty -n 2 -- python -i",
        "shell -n 2 python -i": "--pty -n 2 python -i",
    }.items():
        assert catalog.find(line.split())[1] == rest.split()


BOUNDS = '{"flexible_resource_min": {"CPU": 4}, "flexible_resource_max": {"CPU": 8, "GPU": 1}}'
MISTYPES = {
    "srun -- x": "`vctl run`",
    "sbatch x.sh": "`vctl run --no-wait`",
    "squeue": "`vctl ps`",
    "scancel 7": "`vctl stop`",
    "sinfo": "`vctl node list`",
    "sacct": "`vctl ps -a`",
    "queue": "`vctl ps`",
    "htop": "`vctl top`",
    "task why 7": "`vctl why`",
    "kill x": "`vctl stop`",
    "get pods": "did you mean jobs?",
    "get nodes": "`vctl list nodes`",
    "list pods": "did you mean jobs?",
    "apply -f x": "`vctl vc apply`",
    "cordon n": "`vctl node drain`",
    "job ps": "`vctl job list`",
    "job queue": "`vctl job list`",
    "task submit -- x": "`vctl task run`",
    "node cordon x": "`vctl node drain`",
    "run --wait -- x": "--no-wait returns at once",
    "run --gpus 2 -- x": "--num-gpus",
    "run --mem 2GB -- x": "--memory",
    "run -N 2 -- x": "--nodes",
    "run -p research -- x": "--cluster",
    "ps --partition x": "--cluster",
    "run --nice 5 -- x": "did you mean --priority?",
    "run --qos high -- x": "see `vctl run --help`",
    "run --account phys -- x": "did you mean --cluster?",
    "node add box --cpus 8": 'write --resources \'{"CPU": 8, "GPU": 1}\'',
    "vc create team --gpus 2": "write --min CPU=4,GPU=1, and --max CPU=8,GPU=1 as the limit",
    "vc update team --virtual-cluster {}": "write --min CPU=4,GPU=1",
    "run --maximum 2 -- x": f"write --virtual-cluster '{BOUNDS}'",
    "retry x": "`vctl job rerun`",
    "free": "`vctl available-resources`",
    "export": "`vctl vc export`",
    "vc create team --nodes 2": "write --replica-sets '{\"8c16g\": 2}' for whole nodes",
    "run --min 2 -- x": f"write --virtual-cluster '{BOUNDS}'",
    "run --mail-user me@x -- x": "write --notify mailto:NAME@HOST",
    "run --mail-type END -- x": "write --notify mailto:NAME@HOST",
    "job edit sweep --array %4": "write --max-running 4",
    "events train": "`vctl events --job train`",
    "task list 7": "`vctl task list --job 7`",
    "run --error e.log -- x": "`vctl logs` prints both",
    "run --requeue -- x": "did you mean --max-retries?",
    "run --export ALL -- x": "did you mean --env?",
    "run --exclusive -- x": "nobody else uses what a job reserves",
    "job delete --nice 5 x": "see `vctl job delete --help`",
    "vc -c team-a list": "options follow the command: `vctl vc list -c …`",
    "-c team-a run -- x": "options follow the command: `vctl run -c …`",
    "run --wrap x": "-- sh -c '…'",
    "scontrol show job 1": "`vctl job status`",
    "scontrol show nodes": "`vctl node list`",
    "scontrol show partition": "`vctl vc list`",
    "scontrol update x": "`vctl job edit`",
    "scontrol hold 1": "`vctl job hold`",
    "nodes list": "`vctl node list`",
    "nodes drain n": "`vctl node drain`",
    "nodes x": "see `vctl nodes --help`",
    "--num-cpus 2 run -- x": "options follow the command: `vctl run --num-cpus …`",
    "--num-cpus=2 run -- x": "options follow the command: `vctl run --num-cpus …`",
    "--priority 2 job submit -- x": "options follow the command: `vctl job submit --priority …`",
    "--num-cpus 2": "see `vctl status --help`",
    "--wacth 2": "did you mean --watch?",
    "--limt 3 job list": "options follow the command: `vctl job list --limt …`",
    "nod": "`vctl node`",
    "rnu -- x": "`vctl run`",
    "sbmit -- x": "`vctl run`",
    "squeu": "`vctl ps`",
    "cancle 7": "`vctl stop`",
    "drian n": "`vctl node drain`",
    "job cancle 7": "`vctl job stop`",
    "train": "`vctl --help` lists the commands",
}


@pytest.mark.parametrize(("line", "wanted"), MISTYPES.items(), ids=list(MISTYPES))
def test_words_of_other_tools_get_the_right_hint(cli: Cli, line: str, wanted: str) -> None:
    """spec 13: what people of Slurm, Ray and kubectl type is answered with the command that is meant."""
    ran = cli(line)
    assert (ran.code, ran.out) == (2, "")
    assert wanted in ran.err


def test_the_spec_in_a_hint_is_one() -> None:
    bounds = parse_cluster_spec(json.loads(BOUNDS))
    assert (bounds.flexible_min["CPU"], bounds.flexible_max["CPU"]) == (4 * SCALE, 8 * SCALE)


def test_every_hint_names_what_exists() -> None:
    for theirs, ours in catalog.ELSEWHERE.items():
        with pytest.raises(BadSpec):
            catalog.find([theirs])
        if ours not in catalog.GROUPS:
            command, rest = catalog.find(ours.split())
            own = {name for param in command.params for name in param.info.names}
            assert all(word in {"--", *own} for word in rest if word.startswith("-")), ours
    options = {name for command in COMMANDS.values() for p in command.params for name in p.info.names}
    assert all(catalog.named_options(answer) <= options for answer in catalog.OTHER_OPTIONS)
    kinds = COMMANDS["list"].params[0].info.choices
    assert set(catalog.OTHER_KINDS.values()) <= set(kinds)


@pytest.mark.parametrize("group", catalog.GROUPS)
def test_the_page_of_a_group_lists_its_commands(cli: Cli, group: str) -> None:
    ran = cli(group, "--help")
    assert ran.code == 0
    assert all(command.help[:20] in ran.out for command in catalog.members(group))


# ---- the quick reader and typer read the same ----

LINES = [
    "job submit -- true",
    "job submit true --flag -- x",
    "job submit --no-wait -c a --priority -5 --env A=1 --env B=2 -- a -- b",
    "job submit --name=x --nodes 2 -- -x",
    "run -n 2 -g 1 -d --cwd / -- a",
    "run --detach a -n 2",
    "ps -a",
    "stop a b",
    "job submit -o json --env-file=f -- a ''",
    "job list",
    "job list -a --limit 3 --filter a=b --filter c!=d",
    "job list --watch 2 --no-header -o csv",
    "job status x --home /y",
    "job status -- -x",
    "job stop a b c --grace 3s",
    "job stop a --no-wait b",
    "vc create x --divisible --replica-sets '{}'",
    "vc create --divisible --indivisible x",
    "vc update x",
    "vc update x --divisible",
    "vc update --indivisible x --revision 12345678901234567890",
    "vc tree",
    "vc tree x",
    "node add --count 3 --resources {}",
    "node add n --label a=b --resources {}",
    "list jobs --detail",
    "events --since 3",
    "status --watch 0.5",
    "prune --older-than 3d",
    "prune --older-than ''",
]


@pytest.mark.parametrize("line", LINES)
def test_quick_and_typer_read_the_same(line: str) -> None:
    command, rest = catalog.find(shlex.split(line))
    assert declare.read(command, rest) == bridge.read(command, rest)


REFUSED = [
    "node add --count 3",
    "task run",
    "job list --nope",
    "job list --limit x",
    "job list --limit",
    "node list extra",
    "job status",
    "job status a b",
    "job list --all=1",
    "vc create",
    "node add --count 1.5",
    "status --watch x",
]


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_wrong_goes_to_typer_which_refuses_it(cli: Cli, line: str) -> None:
    command, rest = catalog.find(line.split())
    assert declare.read(command, rest) is None
    ran = cli(line)
    assert ran.code == 2
    assert ran.err.startswith("Error: ")
    assert "\nFix: " in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("line", ["job list --limit 1_0", "node list -w 1e1"])
def test_rare_spellings_are_left_to_typer(line: str) -> None:
    command, rest = catalog.find(line.split())
    assert declare.read(command, rest) is None


@pytest.mark.parametrize(("before", "out"), [("", ""), ("import threading; ", "tidied up\n")])
def test_a_command_ends_without_what_the_interpreter_would_tidy_up(cli: Cli, before: str, out: str) -> None:
    """That takes longer than many a command; where threads may be left, it waits for them."""
    code = "import atexit, sys; atexit.register(print, 'tidied up'); sys.argv[1:] = ['--version']"
    ran = python("-c", f"{before}{code}; from vctl.__main__ import run; run()", home=cli.home)
    assert (ran.returncode, ran.stdout) == (0, f"vctl 0.1.0\n{out}")


def test_version_needs_no_typer(cli: Cli) -> None:
    code = "import sys; sys.argv = ['vctl', '--version']; from vctl.__main__ import main; main()"
    ran = python("-c", f"{code}; print([m for m in sys.modules if m.startswith('vctl')])", home=cli.home)
    assert ran.stdout.splitlines()[0] == "vctl 0.1.0"
    assert "cli" not in ran.stdout


@pytest.mark.parametrize("columns", ["20", "44", "80", "200"])
def test_a_help_page_fits_and_breaks_no_word_that_fits(
    command: Command, cli: Cli, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for words in (command.path.split(), command.path.split()[:1]):
        page = cli(*words, "--help").out.partition("Examples:")[0]
        assert max(map(len, page.splitlines())) <= int(columns)
        boxes = [line for line in page.splitlines() if line[:1] in "╭│╰" and line]
        assert {len(line) for line in boxes} == {int(columns)}
    shown = " ".join(page.replace("│", " ").split())
    for word in command.help.split():
        assert len(word) > int(columns) - 4 or word in shown


def test_help_needs_neither_typer_nor_rich(tmp_path: Path) -> None:
    """They take ten times as long to import as the rest of a help page (finding 31)."""
    for words in (["--help"], ["job", "--help"], ["run", "-h"]):
        script = (
            f"import sys; from vctl.cli import app; app.run({words});"
            " print({'typer', 'rich', 'click'} & {*sys.modules})"
        )
        assert python("-c", script, home=tmp_path).stdout.splitlines()[-1] == "set()", words


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ps --help", True), ("ps -a --limit 3 -h", True), ("ps --limit --help", False), ("ps --nosuch --help", False),
        ("run --help", True), ("run -n 2 -h", True), ("run true --help", False), ("run -- true --help", False),
        ("wait a --help", True), ("ps -ah", True),
    ],
)  # fmt: skip
def test_help_is_asked_for_where_an_option_stands(line: str, wanted: bool) -> None:
    command, rest = catalog.find(line.split())
    assert declare.asks_for_help(command, rest) is wanted


def test_help_obeys_the_setting_of_colours_and_shows_itself_where_settings_are_wrong(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for color in ("always", "never"):
        monkeypatch.setenv("VCTL_COLOR", color)
        assert ("\x1b" in cli("--help").out) is (color == "always")
        other = {"always": "never", "never": "always"}[color]  # a flag comes first, wherever it stands
        for line in (
            f"--color {other} --help", f"--color={other} ps --help", f"ps --help --color {other}",
            f"vc --color={other} --help",
        ):  # fmt: skip
            assert ("\x1b" in cli(line).out) is (other == "always"), line
    monkeypatch.setenv("VCTL_COLOR", "nonsense")
    ran = cli("ps", "--help")
    assert (ran.code, "Usage: vctl ps" in ran.out) == (0, True)
