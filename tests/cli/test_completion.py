"""Completion (spec 13): ``vctl __complete`` knows the words, and the scripts of three shells show them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Cli, python
from tests.specification import spec
from vctl.cli.completion import FILES, SCRIPTS, candidates

pytestmark = spec("13.completion")

LONGEST_SCRIPT = 25


@pytest.mark.parametrize("shell", FILES)
def test_the_files_are_up_to_date_and_leave_the_words_to_vctl(shell: str) -> None:
    text = (ROOT / "completions" / FILES[shell]).read_text(encoding="utf-8")
    assert text == SCRIPTS[shell], f"run: vctl completion {shell} > completions/{FILES[shell]}"
    assert len(text.splitlines()) <= LONGEST_SCRIPT


@pytest.fixture
def state(nodes: Cli) -> Cli:
    """Three jobs, two nodes and a cluster."""
    for name in ("train-1", "train-2", "other"):
        ran = nodes("job", "submit", "--no-wait", "--name", "big one", "--submission-id", name, "--", "true")
        assert ran.code == 0, ran.err
    assert nodes("vc", "create", "team-a", "--divisible", "--replica-sets", '{"4c8g": 1}').code == 0
    return nodes


def offered(line: str) -> list[str]:
    """The words that begin as the last one of the line does; what begins with a colon is for the shell."""
    *_, current = words = line.split(" ")[1:]
    current = current.partition("=")[2] if current.startswith("--") and "=" in current else current
    return [word for word, _ in candidates(words) if word.startswith((current, ":"))]


CASES = {
    "first words": ("vctl jo", ["job"]),
    "words of a group": ("vctl job s", ["submit", "status", "stop"]),
    "options": ("vctl job list --li", ["--limit"]),
    "help everywhere": ("vctl status --he", ["--help"]),
    "help of a group": ("vctl job -", ["--help"]),
    "options in front of the command": ("vctl --", ["--output", "--color", "--home", "--help", "--version"]),
    "the opposite of a flag": ("vctl vc update team-a --indi", ["--indivisible"]),
    "choices of an option": ("vctl job list -o js", ["json", "jsonl"]),
    "choices after =": ("vctl job list --output=ya", ["yaml"]),
    "choices after the = of bash": ("vctl job list --output = ya", ["yaml"]),
    "an option whose value may be missing": ("vctl job status --watch tr", ["train-2", "train-1"]),
    "jobs": ("vctl job status tr", ["train-2", "train-1"]),
    "the last job": ("vctl job logs la", ["last"]),
    "clusters of an option": ("vctl job submit -c t", ["team-a"]),
    "the primary": ("vctl vc get p", ["primary"]),
    "several ids": ("vctl job stop train-1 o", ["other"]),
    "no second id where one is wanted": ("vctl job status train-1 tr", []),
    "nodes": ("vctl node drain 4c", ["4c8g-00", "4c8g-01"]),
    "kinds": ("vctl list j", ["jobs"]),
    "objects of a kind": ("vctl get nodes 4", ["4c8g-00", "4c8g-01"]),
    "virtual nodes": ("vctl get vnodes team", ["team-a/0"]),
    "conditions with jobs": (
        "vctl run --after n",
        ["notok:other", "notok:train-2", "notok:train-1", "notok:last"],
    ),
    "jobs of a condition": ("vctl run --after ok:tr", ["ok:train-2", "ok:train-1"]),
    "jobs of a condition after =": ("vctl run --after=any:o", ["any:other"]),
    "a bare job to wait for": ("vctl run --after oth", ["other"]),
    "no jobs of an unknown condition": ("vctl run --after nok:", []),
    "the condition where bash splits": ("vctl run --after ok : tr", ["train-2", "train-1"]),
    "words behind a condition that bash splits": ("vctl run --after ok : other --num-c", ["--num-cpus"]),
    "strategies": ("vctl task run --strategy S", ["SPREAD"]),
    "a node of a strategy": (
        "vctl task run --strategy NODE:",
        ["NODE:4c8g-00", "NODE:4c8g-01", "NODE:team-a/0"],
    ),
    "a node of a strategy after =": ("vctl task run --strategy=NODE:t", ["NODE:team-a/0"]),
    "what holds if that node is full": (
        "vctl task run --strategy NODE:4c8g-00:",
        ["NODE:4c8g-00:soft", "NODE:4c8g-00:spill"],
    ),
    "the node where bash splits": ("vctl task run --strategy NODE : 4", ["4c8g-00", "4c8g-01"]),
    "behind the node where bash splits": ("vctl task run --strategy NODE : 4c8g-00 : s", ["soft", "spill"]),
    "words behind a strategy that bash splits": (
        "vctl task run --strategy NODE : 4c8g-00 : soft --num-c",
        ["--num-cpus"],
    ),
    "states": ("vctl ps --state S", ["SUCCEEDED", "STOPPED"]),
    "states of the kind": ("vctl list nodes --state D", ["DRAINING", "DRAINED", "DEAD"]),
    "states of tasks": ("vctl task list --state=F", ["FINISHED", "FAILED"]),
    "states of clusters": ("vctl vc list --state A", ["ACTIVE"]),
    "one more state": ("vctl ps --state FAILED,S", ["FAILED,SUCCEEDED", "FAILED,STOPPED"]),
    "no state twice": ("vctl ps --state FAILED,F", []),
    "causes": ("vctl run --retry-on N", ["NodeFailed"]),
    "private": ("vctl run --private t", ["tmp"]),
    "one more private": ("vctl vc create x --private=tmp,p", ["tmp,pids"]),
    "one more cause": ("vctl run --retry-on=NodeFailed,E", ["NodeFailed,ExitCode"]),
    "files": ("vctl job submit --env-file dat", [":file"]),
    "folders": ("vctl job submit --cwd=/t", [":dir"]),
    "options and their values in front": ("vctl -o json --color=never job li", ["list"]),
    "values are not words": ("vctl job submit --name job --num", ["--num-cpus", "--num-gpus"]),
    "an = inside a value": ("vctl job submit --env A=b --num-c", ["--num-cpus"]),
    "behind -- the words are the user's": ("vctl job submit -- data.", [":command 3"]),
    "the user's later words": ("vctl job submit -n 1 -- python --x=dat", [":command 5"]),
    "the user's command without --": ("vctl run pyth", [":command 1"]),
    "its later words": ("vctl run python dat", [":command 1"]),
    "options behind the user's command are its own": ("vctl job submit ./run --no", [":command 2"]),
    "options of a short word": ("vctl run --det", ["--detach"]),
    "jobs of a short word": ("vctl logs tr", ["train-2", "train-1"]),
    "free values": ("vctl job submit --name x", []),
    "shells": ("vctl completion z", ["zsh"]),
}


@pytest.mark.parametrize(("line", "wanted"), CASES.values(), ids=list(CASES))
def test_candidates(state: Cli, line: str, wanted: list[str]) -> None:
    assert offered(line) == wanted


def test_every_candidate_has_a_description_where_one_helps(state: Cli) -> None:
    assert all(about for line in ([""], ["job", ""], ["job", "list", "-"]) for _, about in candidates(line))
    assert dict(candidates(["job", "status", ""])) == {
        "other": "PENDING big one",
        "train-2": "PENDING big one",
        "train-1": "PENDING big one",
        "last": "The job submitted last.",
    }


def test_the_state_directory_on_the_line_counts(state: Cli, tmp_path: Path) -> None:
    assert offered(f"vctl --home {tmp_path / 'none'} job status tr") == []
    assert offered(f"vctl job list --home {state.home} --output ya") == ["yaml"]
    state_elsewhere = shutil.move(state.home, tmp_path / "elsewhere")
    assert offered("vctl job status train-1") == []
    assert offered(f"vctl --home={state_elsewhere} job status train-1") == ["train-1"]


def test_a_word_that_is_wrong_or_no_state_gives_nothing_and_no_message(nodes: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "none"
    for words, home in (
        (["job", "status", ""], empty),
        (["things", ""], nodes.home),
        (["job", "things", ""], nodes.home),
    ):
        ran = python("-m", "vctl", "__complete", *words, home=home)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert not empty.exists()
    assert python("-m", "vctl", "__complete", home=empty).stdout.startswith("run\tRun a command")


SHELLS = {
    "vctl jo": ["job"],
    "vctl job s": ["submit", "status", "stop"],
    "vctl job list --li": ["--limit"],
    "vctl job list --output=ya": ["yaml"],
    "vctl job status tr": ["train-1", "train-2"],
    "vctl vc get t": ["team-a"],
    "vctl job submit --env-file dat": ["data.env"],
    "vctl job submit --env-file=dat": ["data.env"],
    "vctl job submit --cwd fol": ["folder/"],
    "vctl job submit -- python dat": ["data.env"],
    "vctl run python base64": [],
    "vctl job submit --name x": [],
}
"""What a shell adds to the words: it filters, it finds files, it asks for the user's own words."""


@pytest.fixture
def folder(state: Cli, tmp_path: Path) -> Path:
    """A folder with a file, a folder and the command ``vctl``."""
    path = tmp_path / "here"
    (path / "folder").mkdir(parents=True)
    (path / "data.env").write_text("")
    vctl = path / "vctl"
    vctl.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m vctl "$@"\n')
    vctl.chmod(0o755)
    return path


def asked(shell: str, *words: str, folder: Path) -> str:
    """What a shell prints, run where ``vctl`` is the one of this folder."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed: its script was compared, not run")
    ran = subprocess.run(
        [found, *words], capture_output=True, text=True, timeout=120, check=True, cwd=folder,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)},
    )  # fmt: skip
    assert shell == "zsh" or ran.stderr == ""
    return ran.stdout


def by_bash(line: str, folder: Path) -> list[str]:
    words = line.replace("=", " = ").split(" ")
    program = (
        f"source {ROOT}/completions/vctl.bash; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        '_vctl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = [word for word in asked("bash", "--norc", "-c", program, folder=folder).splitlines() if word]
    return [
        f"{word}/" if (folder / word).is_dir() else word for word in found
    ]  # bash adds it with -o filenames


def by_fish(line: str, folder: Path) -> list[str]:
    program = f"source {ROOT}/completions/vctl.fish; complete -C '{line}'"
    out = asked("fish", "--no-config", "-c", program, folder=folder)
    prefix = re.match(r"--[^=]*=", line.rsplit(" ", maxsplit=1)[-1])
    return [word.partition("\t")[0].removeprefix(prefix[0] if prefix else "") for word in out.splitlines()]


ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; fpath=(FOLDER $fpath); autoload -Uz compinit; compinit -u -D; setopt no_beep; stty cols 400'
zpty -w z 'compadd() { _got=(); builtin compadd -O _got "$@" 2>/dev/null; _all+=("${_got[@]}"); builtin compadd "$@" }'
zpty -w z '_gen() { _all=(); compstate[insert]= compstate[list]=; _main_complete; print -r "<<<$_all>>>" }'
zpty -w z 'zle -C all-found complete-word _gen; bindkey "^X" all-found; print -r -- "<<<"READY">>>"'
zpty -r -m z out '*<<<READY>>>*'
for line in "$@"; do
    zpty -w -n z $'\x15'"$line"$'\x18'
    zpty -r -m z out '*<<<*>>>*'
    print -r -- "$out"
done
zpty -d z
"""
"""Types lines into a real zsh on a terminal and presses a key that prints the words that completion adds."""


def by_zsh(lines: Iterable[str], folder: Path) -> dict[str, list[str]]:
    program = folder.parent / "ask.zsh"
    program.write_text(ZSH.replace("FOLDER", str(ROOT / "completions")))
    answers = re.findall(r"<<<(.*?)>>>", asked("zsh", "-f", str(program), *lines, folder=folder))
    answers = [answer for answer in answers if answer not in ("$_all", '"READY"', "READY")]
    found = {line: sorted(set(answer.split())) for line, answer in zip(lines, answers, strict=True)}
    return {line: [f"{w}/" if (folder / w).is_dir() else w for w in words] for line, words in found.items()}


WANTED = {line: sorted(wanted) for line, wanted in SHELLS.items()}


def test_bash_offers(folder: Path) -> None:
    assert {line: sorted(by_bash(line, folder)) for line in SHELLS} == WANTED


def test_fish_offers(folder: Path) -> None:
    assert {line: sorted(by_fish(line, folder)) for line in SHELLS} == WANTED


def test_zsh_offers(folder: Path) -> None:
    assert by_zsh(SHELLS, folder) == WANTED


def test_bash_offers_jobs_behind_a_colon_where_it_splits_words(folder: Path) -> None:
    for line, wanted in {
        "vctl run --after ok : tr": ["train-1", "train-2"],
        "vctl run --after ok :": ["last", "other", "train-1", "train-2"],
        "vctl run --after any:tr": ["any:train-1", "any:train-2"],
    }.items():
        assert sorted(by_bash(line, folder)) == wanted, line


def test_bash_offers_commands_for_the_first_word_only(folder: Path) -> None:
    """`submit -- python <TAB>` offers files, not every command there is."""
    assert "base64" in by_bash("vctl job submit -- base6", folder)
    for line in ("vctl job submit -- ", "vctl job submit -- python ", "vctl task run -- python "):
        assert sorted(by_bash(f"{line}''", folder)) == ["data.env", "folder/", "vctl"], line


def test_bash_completes_at_the_press_of_a_key(folder: Path) -> None:
    """A real, interactive bash: what TAB leaves on the line is run."""
    script = (
        "import os, pty, sys\n"
        "pid, terminal = pty.fork()\n"
        "if pid == 0:\n"
        "    os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])\n"
        f"os.write(terminal, b'PS1=; source {ROOT}/completions/vctl.bash\\n')\n"
        "os.write(terminal, b'vctl get nodes 4c8g-\\t1 -o name; exit\\n')\n"
        "out = b''\n"
        "while True:\n"
        "    try:\n"
        "        out += os.read(terminal, 65536)\n"
        "    except OSError:\n"
        "        break\n"
        "sys.stdout.write(out.decode())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"},
    )  # fmt: skip
    assert "\n4c8g-01\n" in ran.stdout, ran.stdout
