"""Settings: which source wins, where each value came from, and what is refused."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.config import SETTINGS, load
from vctl.errors import BadSpec
from vctl.operations.connection import Connection

pytestmark = spec("13.settings")


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".config/vctl").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    return tmp_path


def user_file(home, text):
    (home / ".config/vctl/config.toml").write_text(text)


def project_file(home, text):
    (home / "work/.vctl.toml").write_text(text)


def at(home, flags=None, **env):
    return load(home / "work", {"HOME": str(home), **env}, flags)


def test_defaults(home):
    config = at(home)
    assert config.get("output") == "table"
    assert config.get("cluster") is None
    assert config.get("local_node") is True
    assert config.get("unit_resources") == {"GPU"}
    assert (config.get("kill_grace"), config.get("maintenance_interval")) == (3, 30)
    assert config.get("log_max_bytes") == 0
    assert {config.origins[setting.name] for setting in SETTINGS} == {"default"}


def test_flag_over_environment_over_project_over_user_over_default(home):
    user_file(home, 'output = "csv"\ncluster = "u"\ncolor = "never"\nkill_grace = "5s"\n')
    project_file(home, 'output = "jsonl"\ncluster = "p"\ncolor = "always"\n')
    config = at(home, {"output": "name", "cluster": None}, VCTL_OUTPUT="yaml", VCTL_CLUSTER="e")
    assert [
        (config.get(n), config.origins[n]) for n in ("output", "cluster", "color", "kill_grace", "address")
    ] == [
        ("name", "flag"),
        ("e", "environment VCTL_CLUSTER"),
        ("always", f"file {home}/work/.vctl.toml"),
        (5, f"file {home}/.config/vctl/config.toml"),
        (None, "default"),
    ]


def test_types(home):
    user_file(
        home,
        'local_node = false\nunit_resources = ["GPU", "FPGA"]\nmaintenance_interval = 0.5\n'
        'log_max_bytes = "1GiB"\n',
    )
    config = at(home)
    assert config.get("local_node") is False
    assert config.get("unit_resources") == {"GPU", "FPGA"}
    assert config.get("maintenance_interval") == 0.5
    assert config.get("log_max_bytes") == 2**30
    config = at(
        home, VCTL_LOCAL_NODE="1", VCTL_UNIT_RESOURCES="GPU,TPU", VCTL_CLUSTER="primary", VCTL_OUTPUT=""
    )
    assert config.get("local_node") is True
    assert config.get("unit_resources") == {"GPU", "TPU"}
    assert config.get("cluster") == "kPrimaryClusterID"
    assert config.origins["output"] == "default"


@spec("2.instances")
def test_gpu_has_numbered_instances_whatever_else_the_settings_list(home):
    assert at(home, VCTL_UNIT_RESOURCES="FPGA").get("unit_resources") == {"GPU", "FPGA"}
    user_file(home, 'unit_resources = ["TPU"]\n')
    assert at(home).get("unit_resources") == {"GPU", "TPU"}


def test_no_color(home):
    assert at(home, NO_COLOR="1").get("color") == "never"
    assert at(home, NO_COLOR="1").origins["color"] == "environment NO_COLOR"
    assert at(home, NO_COLOR="").get("color") == "auto"
    assert at(home, {"color": "always"}, NO_COLOR="1").get("color") == "always"
    assert at(home, TERM="dumb").get("color") == "never"
    assert at(home, TERM="dumb").origins["color"] == "environment TERM"
    assert at(home, TERM="xterm").get("color") == "auto"


BAD_FILES = {
    "misspelt": ('ouput = "json"', '"ouput": no such setting', "did you mean output?"),
    "unknown": ("zzz = 1", '"zzz": no such setting', "valid names"),
    "table": ("[daemon]\nx = 1", '"daemon": no such setting', "valid names"),
    "number for a text": ("output = 1", "output: 1 is not one of", "table"),
    "text for a flag": ('local_node = "maybe"', 'local_node: "maybe" is neither', "true"),
    "number for a flag": ("local_node = 1", "local_node: 1 is neither", "true"),
    "bad word": ('output = "jason"', "output: ", "did you mean json?"),
    "bad duration": ('kill_grace = "soon"', "kill_grace: ", "90s"),
    "infinite duration": ("kill_grace = inf", "kill_grace: ", "90s"),
    "no interval": ("maintenance_interval = 0", "maintenance_interval: ", "1s"),
    "date": ("kill_grace = 2020-01-01", "kill_grace: a value of type date", "number"),
    "bad size": ('log_max_bytes = "big"', "log_max_bytes: ", "8GiB"),
    "bad list": ("unit_resources = 1", "unit_resources: ", "FPGA"),
    "bad name in a list": ('unit_resources = ["gpu"]', "unit_resources: ", "GPU"),
    "an amount as a unit": ('unit_resources = ["CPU"]', "unit_resources: CPU is an amount", "devices"),
    "bad cluster": ('cluster = "a b"', "cluster: ", "vctl vc list"),
    "empty path": ('home = ""', "home: ", "directory"),
    "not TOML": ("output = ", "not TOML", "position"),
    "duplicate key": ('output = "csv"\noutput = "csv"', "not TOML", "position"),
}


@pytest.mark.parametrize(("text", "problem", "fix"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_name_the_file_and_the_key(home, text, problem, fix):
    project_file(home, text)
    with pytest.raises(BadSpec) as caught:
        at(home)
    assert caught.value.problem.startswith(f"{home}/work/.vctl.toml")
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_text(home):
    (home / "work/.vctl.toml").write_bytes(b"\xff")
    with pytest.raises(BadSpec, match="UTF-8"):
        at(home)


@pytest.mark.parametrize(
    ("name", "value"),
    [("VCTL_OUTPUT", "xml"), ("VCTL_LOCAL_NODE", "2"), ("VCTL_KILL_GRACE", "-1"), ("VCTL_HOME", "a\0")],
)
def test_bad_environment_names_the_variable(home, name, value):
    with pytest.raises(BadSpec, match=f"^{name}: "):
        at(home, **{name: value})


def test_bad_flag_names_the_flag(home):
    with pytest.raises(BadSpec, match=r"^--output: "):
        at(home, {"output": "xml"})


def test_the_state_directory(home):
    assert at(home).home() == home / ".local/state/vctl"
    assert at(home, XDG_STATE_HOME="/state").home() == Path("/state/vctl")
    assert at(home, XDG_STATE_HOME="relative").home() == home / ".local/state/vctl"
    assert at(home, XDG_STATE_HOME="/state", VCTL_HOME="/x/../y").home() == Path("/y")
    assert at(home, VCTL_HOME="here").home() == home / "work/here"
    assert at(home, VCTL_HOME="~/there").home() == home / "there"
    assert at(home, VCTL_HOME="").home() == home / ".local/state/vctl"
    project_file(home, 'home = "state"')
    assert at(home).home() == home / "work/state"
    user_file(home, 'home = "state"')
    project_file(home, "")
    assert at(home).home() == home / ".config/vctl/state"


def test_xdg_config_home(home):
    (home / "c/vctl").mkdir(parents=True)
    (home / "c/vctl/config.toml").write_text('output = "csv"')
    assert at(home, XDG_CONFIG_HOME=str(home / "c")).get("output") == "csv"


def test_without_home_the_password_file_counts(home, monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("Entry", (), {"pw_dir": "/somewhere"}))
    assert load(home, {}).home() == Path("/somewhere/.local/state/vctl")


def test_without_any_home_it_says_what_to_set(home, monkeypatch):
    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    config = load(home, {})
    assert config.get("output") == "table"
    with pytest.raises(BadSpec, match="no home directory") as caught:
        config.home()
    assert "VCTL_HOME" in caught.value.fix
    assert load(home, {"VCTL_HOME": "/x"}).home() == Path("/x")


def test_a_directory_that_was_removed_under_the_caller(home, monkeypatch):
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadSpec, match="the current directory has been removed") as error:
        load()
    assert "cd" in error.value.fix


def test_rows_show_everything(home):
    rows = list(at(home, VCTL_CLUSTER="team").rows())
    assert [setting.name for setting, _, _ in rows] == [setting.name for setting in SETTINGS]
    shown = {setting.name: (value, origin) for setting, value, origin in rows}
    assert shown["home"] == (str(home / ".local/state/vctl"), "default")
    assert shown["cluster"] == ("team", "environment VCTL_CLUSTER")


def test_the_process_environment_is_the_default(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.setenv("VCTL_OUTPUT", "csv")
    assert load().get("output") == "csv"
    assert load().cwd == os.getcwd()


SERVICE = {
    "a socket that is there": ({"VCTL_SOCKET": "{socket}"}, None, "unix:{socket}"),
    "a socket that was named and is not there": ({"VCTL_SOCKET": "/nowhere/s"}, None, "unix:/nowhere/s"),
    "a state directory": ({"VCTL_SOCKET": "{socket}", "VCTL_HOME": "/srv/x"}, None, None),
    "a state directory as an option": ({"VCTL_SOCKET": "{socket}"}, {"home": "/srv/x"}, None),
    "a server": ({"VCTL_SOCKET": "{socket}", "VCTL_ADDRESS": "http://h:1"}, None, "http://h:1"),
}


@spec("19.service")
@pytest.mark.parametrize(("env", "flags", "address"), SERVICE.values(), ids=list(SERVICE))
def test_the_service_of_the_machine_is_used_unless_another_state_is_named(home, env, flags, address):
    socket = home / "vctl.sock"
    socket.touch()
    config = at(home, flags, **{name: text.format(socket=socket) for name, text in env.items()})
    assert config.get("address") == (address and address.format(socket=socket))
    assert config.is_shared == (address or "").startswith("unix:")


@spec("19.service")
def test_a_settings_file_that_names_a_state_directory_stays_without_the_service(home):
    user_file(home, 'home = "/srv/mine"\n')
    assert at(home, VCTL_SOCKET=str(home)).get("address") is None


@spec("19.service")
@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("unix://run/vctl/vctl.sock", "write unix:///run/vctl/vctl.sock"),
        ("/run/vctl/vctl.sock", "write http://HOST:PORT or unix:/PATH"),
        ("unix:", "write http://HOST:PORT or unix:/PATH"),
    ],
)
def test_an_address_that_is_nearly_one_of_a_socket(address, fix):
    with pytest.raises(BadSpec) as refused:
        Connection(address, None)
    assert fix in refused.value.fix
