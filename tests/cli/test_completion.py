import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Cli, python
from vctl.cli.completion import FILES, script

SCRIPT = ROOT / "completions/vctl.bash"


@pytest.mark.parametrize("shell", FILES)
def test_the_files_are_up_to_date(shell: str) -> None:
    text = (ROOT / "completions" / FILES[shell]).read_text(encoding="utf-8")
    assert text == script(shell), f"run: vctl completion {shell} > completions/{FILES[shell]}"


def offered(line: str, stub: Path) -> list[str]:
    """What bash offers at the end of a line; the last word is the one being completed."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in [str(stub), *words[1:]])
    program = (
        f"source {SCRIPT}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _vctl; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=stub.parent,
    )
    assert ran.stderr == ""
    return [word for word in ran.stdout.splitlines() if word]


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A vctl that knows three ids of each kind."""
    path = tmp_path / "vctl"
    path.write_text('#!/bin/sh\n[ "$1" = __complete ] && printf "%s-1\\n%s-2\\nother\\n" "$2" "$2"\n')
    path.chmod(0o755)
    (tmp_path / "data.env").write_text("")
    return path


CASES = {
    "first words": ("vctl jo", ["job"]),
    "words of a group": ("vctl job s", ["submit", "status", "stop"]),
    "options": ("vctl job list --li", ["--limit"]),
    "help everywhere": ("vctl status --he", ["--help"]),
    "choices of an option": ("vctl job list -o js", ["json", "jsonl"]),
    "choices after =": ("vctl job list --output = ya", ["yaml"]),
    "live jobs": ("vctl job status jobs-", ["jobs-1", "jobs-2"]),
    "live clusters of an option": ("vctl job submit -c clu", ["clusters-1", "clusters-2"]),
    "several live ids": ("vctl job stop jobs-1 o", ["other"]),
    "no second id where one is wanted": ("vctl job status jobs-1 jobs", []),
    "live nodes": ("vctl node drain nodes-1", ["nodes-1"]),
    "kinds": ("vctl list j", ["jobs"]),
    "objects of a kind": ("vctl get nodes n", ["nodes-1", "nodes-2"]),
    "files": ("vctl job submit --env-file dat", ["data.env"]),
    "options in front": ("vctl -o json job li", ["list"]),
    "values are not words": ("vctl job submit --name job --num", ["--num-cpus", "--num-gpus"]),
    "after -- the words are the user's": ("vctl job submit -- data.", ["data.env"]),
    "files behind the user's command": ("vctl job submit -- python dat", ["data.env"]),
    "files behind a command without --": ("vctl run python dat", ["data.env"]),
    "no commands behind the first word": ("vctl run -- python base64", []),
    "options of a short word": ("vctl run --det", ["--detach"]),
    "live jobs of a short word": ("vctl logs jobs-", ["jobs-1", "jobs-2"]),
    "options after the command are the user's": ("vctl job submit ./run --no", []),
    "free values offer nothing": ("vctl job submit --name x", []),
}


@pytest.mark.parametrize(("line", "wanted"), CASES.values(), ids=list(CASES))
def test_bash_offers(stub: Path, line: str, wanted: list[str]) -> None:
    assert offered(line, stub) == wanted


FISH = {
    "vctl job status jobs-1 jobs": ["jobs-1", "jobs-2"],
    "vctl job submit ./run --no": ["--no-local-node", "--no-wait", "--nodes"],
}
"""Where fish differs: it does not count words, so it offers what the others know to be too much."""


def test_bash_offers_commands_for_the_first_word_only(stub: Path) -> None:
    """spec 13: `submit -- python <TAB>` offers files, not every command there is."""
    assert "base64" in offered("vctl job submit -- base6", stub)
    for line in ("vctl job submit -- ", "vctl job submit -- python ", "vctl task run -- python "):
        assert sorted(offered(line, stub)) == ["data.env", "vctl"], line


def shell_of(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: its completion was compared, not run")
    return found


@pytest.mark.parametrize(("line", "wanted"), CASES.values(), ids=list(CASES))
def test_fish_offers(stub: Path, line: str, wanted: list[str]) -> None:
    """The same words as bash, in any order; fish joins what stands before an equals sign to it."""
    line = line.replace(" = ", "=")
    ran = subprocess.run(
        [shell_of("fish"), "--no-config", "-c", f"source {ROOT}/completions/vctl.fish; complete -C '{line}'"],
        capture_output=True, text=True, timeout=30, check=True, cwd=stub.parent, stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "HOME": str(stub.parent)},
    )  # fmt: skip
    assert ran.stderr == ""
    found = [word.partition("\t")[0].removeprefix("--output=") for word in ran.stdout.splitlines()]
    assert sorted(found) == sorted(FISH.get(line, wanted))


ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; fpath=(FOLDER $fpath); autoload -Uz compinit; compinit -u -D; setopt no_beep; stty cols 400'
zpty -w z 'compadd() { builtin compadd -O _got "$@" 2>/dev/null; _all+=("${_got[@]}"); builtin compadd "$@" }'
zpty -w z 'typeset -ga _all; _gen() { compstate[insert]=; compstate[list]=; _main_complete; print -r -- "<<<$_all>>>" }'
zpty -w z 'zle -C all-found complete-word _gen; bindkey "^X" all-found; print -r -- "<<<"READY">>>"'
zpty -r -m z out '*<<<READY>>>*'
zpty -w -n z "$1"$'\x18'
zpty -r -m z out '*<<<*>>>*'
print -r -- "$out"
zpty -d z
"""
"""Types a line into a real zsh on a terminal and presses a key that prints what completion adds."""


@pytest.mark.parametrize(("line", "wanted"), CASES.values(), ids=list(CASES))
def test_zsh_offers(stub: Path, line: str, wanted: list[str]) -> None:
    program = stub.parent / "ask.zsh"
    program.write_text(ZSH.replace("FOLDER", str(ROOT / "completions")))
    ran = subprocess.run(
        [shell_of("zsh"), "-f", str(program), line.replace(" = ", "=")],
        capture_output=True, text=True, timeout=30, check=True, cwd=stub.parent, stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "HOME": str(stub.parent)},
    )  # fmt: skip
    found = re.findall(r"<<<(.*?)>>>", ran.stdout)[-1].split()
    assert sorted(set(found)) == sorted(wanted)


def test_live_ids_come_without_typer_and_never_fail(nodes: Cli, tmp_path: Path) -> None:
    nodes("job", "submit", "--no-wait", "--submission-id", "x", "--", "true")
    assert python("-m", "vctl", "__complete", "jobs", home=nodes.home).stdout.split() == ["x", "last"]
    assert python("-m", "vctl", "__complete", "nodes", home=nodes.home).stdout.split() == [
        "4c8g-00",
        "4c8g-01",
    ]
    for words, home in ((["jobs"], tmp_path / "none"), (["things"], nodes.home), ([], nodes.home)):
        ran = python("-m", "vctl", "__complete", *words, home=home)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert not (tmp_path / "none").exists()


def test_live_clusters(nodes: Cli) -> None:
    ran = python("-m", "vctl", "__complete", "clusters", home=nodes.home)
    assert ran.stdout.split() == ["primary"]
