"""Documents from the command line, files and standard input, and everything that can be wrong with them."""

from __future__ import annotations

import io
import subprocess
import sys
from decimal import Decimal

import pytest

from tests.specification import spec
from vctl.errors import BadSpec
from vctl.spec import source

pytestmark = spec("4.errors")


def read(ref, **how):
    return source.read_document(ref, "a cluster spec", "--virtual-cluster", **how)


def test_inline_file_and_standard_input(tmp_path, monkeypatch):
    want = {"CPU": Decimal("0.1"), "GPU": 1}
    text = '{"CPU": 0.1, "GPU": 1}'
    (tmp_path / "spec.json").write_text(text)
    (tmp_path / "spec").write_text("\ufeff" + text)
    (tmp_path / "spec.yml").write_text("CPU: 0.1\nGPU: 1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read(text) == want
    assert read(f"@{tmp_path}/spec.json") == want
    assert read(f"@{tmp_path}/spec") == want
    assert read(f"@{tmp_path}/spec.yml") == want
    assert read("@~/spec.json") == want
    for given in (text, "\n" + text, "CPU: 0.1\nGPU: 1\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert read("-") == want


def test_yaml_keeps_merges_and_aliases(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "one: &one {resources: {GPU: 1}, labels: {a: x}}\ntwo: {<<: *one, labels: {a: y}}\nthree: *one\n"
    )
    document = read(f"@{path}")
    assert document["two"] == {"resources": {"GPU": 1}, "labels": {"a": "y"}}
    assert document["three"] == document["one"]


INLINE = {
    "empty": ("", "empty", "{}"),
    "blank": (" \n", "empty", "{}"),
    "file without @": ("spec.json", "not JSON", "@spec.json"),
    "single quotes": ("{'CPU': 1}", "line 1 column 2", "double quotes"),
    "trailing comma": (
        '{"CPU": [1, 2,],\n}',
        "line 1",
        "remove the comma before ] and remove the comma before }: '{",
    ),
    "single quotes with an escape": (
        r"{'a': 'it\'s'}",
        "double quotes",
        "put names and strings in double quotes",
    ),
    "no quotes around a name": (
        '{CPU: 1, "b": PACK}',
        "column 2",
        """double quotes: '{"CPU": 1, "b": "PACK"}'""",
    ),
    "words of Python": (
        '{"a": True, "b": None}',
        "column 7",
        """write true and write null: '{"a": true, "b": null}'""",
    ),
    "cut": ('{"a": [{"b": 1}', "column 16", """write ]} at its end: '{"a": [{"b": 1}]}'"""),
    "a number that is none": ('{"CPU": 01}', "column 10", "correct the text at that position"),
    "a comma that is missing": ('{"a": 1 "b": 2}', "column 9", "correct the text at that position"),
    "long": ('{"a": "' + "x" * 400 + '",}', "column 410", "remove the comma before }"),
    "very long": ('{"a": "' + "x" * 20_000 + '",}', "column 20010", "correct"),
    "second line": ('{"CPU": 1,\n "GPU" 2}', "line 2 column 8", "position"),
    "trailing text": ("{} {}", "Extra data", "position"),
    "unclosed": ('{"CPU": ', "Expecting value", "position"),
    "duplicate key": ('{"CPU": 1, "CPU": 2}', '"CPU" appears twice', "keep one"),
    "deep duplicate key": ('[{"a": {"b": 1, "b": 1}}]', '"b" appears twice', "keep one"),
    "nan": ('{"CPU": NaN}', "NaN", "infinite"),
    "infinity": ('{"CPU": Infinity}', "Infinity", "infinite"),
    "minus infinity": ('{"CPU": -Infinity}', "-Infinity", "infinite"),
    "too many digits": ("1" * 5000, "digits", "smaller"),
    "too deep": ("[" * 500 + "]" * 500, "levels deep", "flatten"),
    "recursion": ('{"a":' * 50_000, "levels deep", "flatten"),
    "no file name": ("@", "file name is missing", "@spec.json"),
    "NUL in a file name": ("@a\0b", "not a file name", "read"),
    "control characters": ("\x00\x1b[2J", "not JSON", ""),
}


@pytest.mark.parametrize(("ref", "problem", "fix"), INLINE.values(), ids=INLINE)
def test_bad_texts(ref, problem, fix):
    with pytest.raises(BadSpec) as caught:
        read(ref)
    assert caught.value.problem.startswith("--virtual-cluster: ")
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert caught.value.fix
    assert caught.value.exit_code == 2
    assert caught.value.details == {"path": "--virtual-cluster"}


FILES = {
    "bad JSON": ("a.json", b'{"a" 1}', "(PATH): a cluster spec is expected, but this is not JSON"),
    "empty": ("a.json", b"", "empty"),
    "Latin-1": ("a.json", b'"\xe9"', "not UTF-8"),
    "binary": ("a.yaml", b"\x80\x81", "not UTF-8"),
    "too large": ("a.json", b" " * (source.MAX_BYTES + 1), "larger than"),
    "too much YAML": ("a.yaml", b"- a\n" * (source.MAX_YAML // 4 + 1), "characters of YAML"),
    "bad YAML": ("a.yaml", b"a: [1,\nb: 2", "not YAML"),
    "YAML with a tab": ("a.yaml", b"a:\n\t- b", "line 2"),
    "two YAML documents": ("a.yaml", b"a: 1\n---\nb: 2", "not YAML"),
    "duplicate YAML key": ("a.yaml", b"a: 1\na: 2", "appears twice"),
    "YAML list as key": ("a.yaml", b"? [1]\n: 2", "key"),
    "YAML object": ("a.yaml", b"a: !!python/object:os.system {}", "not YAML"),
    "YAML clock float": ("a.yaml", b"a: 1:30.5", "not a number"),
    "recursive YAML": ("a.yaml", b"&a [*a]", ""),
    "deep YAML": ("a.yaml", b"[" * 200 + b"]" * 200, "levels deep"),
    "very deep YAML": ("a.yaml", b"[" * 20_000, "levels deep"),
    "billion laughs": (
        "a.yaml",
        b"a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 9)),
        "more than",
    ),
}


@pytest.mark.parametrize(("name", "data", "problem"), FILES.values(), ids=FILES)
def test_bad_files(tmp_path, name, data, problem):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BadSpec) as caught:
        read(f"@{path}")
    assert problem.replace("PATH", str(path)) in caught.value.problem
    assert caught.value.fix


def test_unreadable_files(tmp_path):
    for name, problem in (("nope.json", "No such file"), (".", "Is a directory")):
        with pytest.raises(BadSpec, match=problem):
            read(f"@{tmp_path}/{name}")


def test_yaml_infinity_reaches_the_field_as_a_number(tmp_path):
    (tmp_path / "a.yaml").write_text("CPU: .inf")
    assert read(f"@{tmp_path}/a.yaml") == {"CPU": Decimal("Infinity")}


def test_without_pyyaml_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("a: 1")
    with pytest.raises(BadSpec, match="PyYAML is not installed") as caught:
        read(f"@{tmp_path}/a.yaml")
    assert "pip install" in caught.value.fix


def test_plain():
    assert source.plain({"a": [Decimal(1), Decimal("0.5"), "x", None]}) == {"a": [1, 0.5, "x", None]}


@pytest.mark.not_fast("starts a process")
def test_hot_commands_import_nothing_heavy():
    code = (
        "import sys, vctl.spec.job_request, vctl.spec.cluster_spec, vctl.spec.shape, vctl.config\n"
        "vctl.config.load('/', {'HOME': '/'})\n"
        "vctl.spec.cluster_spec.parse_cluster_spec({'flexible_resource_min': {'CPU': 1}})\n"
        "print([m for m in ('pydantic', 'sqlite_utils', 'yaml', 'tomllib', 'difflib', 'hashlib', 'typer')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
