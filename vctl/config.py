"""Settings and the origin of each. Precedence: flag > environment > ./.vctl.toml > user file > default.

The table ``SETTINGS`` lists all of them. Without a settings file only the environment is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vctl.core.resources import CPU, DEFAULT_UNITS, MEMORY, OBJECT_STORE_MEMORY
from vctl.core.values import value
from vctl.errors import BadSpec
from vctl.spec.fields import as_text, did_you_mean, refuse, show
from vctl.spec.ids import resolve_cluster_id
from vctl.spec.quantities import check_resource_name, parse_duration, parse_size

PROJECT_FILE = ".vctl.toml"
USER_FILE = "vctl/config.toml"

OUTPUTS = ("table", "json", "jsonl", "yaml", "csv", "name")
COLORS = ("auto", "always", "never")
DUMB = ("dumb", "unknown")
"""Values of ``TERM`` for terminals that show only plain text: no colours, and no line is redrawn."""
JOB_SCOPES = ("own", "all")
CGROUPS = ("auto", "all", "off")
RAY_JOBS = ("lazy", "private", "none")
_SOCKET = "socket "
"""How the origin of an address begins that follows from the setting ``socket``."""
FOREIGN = ("ignore", "report", "avoid")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@value(frozen=True, slots=True)
class Setting:
    """One setting. ``kind`` names its parser; ``default`` has the form that the parser returns."""

    name: str
    kind: str
    env: str
    help: str
    default: object = None


SETTINGS: tuple[Setting, ...] = (
    Setting("home", "path", "VCTL_HOME", "State directory: database, locks, logs."),
    Setting("cluster", "cluster", "VCTL_CLUSTER", "Cluster to submit to without -c."),
    Setting("address", "text", "VCTL_ADDRESS", "URL of a server to use instead of the state directory."),
    Setting("token_file", "path", "VCTL_TOKEN_FILE", "File that holds the token of the server."),
    Setting(
        "socket",
        "path",
        "VCTL_SOCKET",
        "Socket of the shared service of this machine, which is used where there is one.",
        "/run/vctl/vctl.sock",
    ),
    Setting("output", "output", "VCTL_OUTPUT", f"Form of results: {', '.join(OUTPUTS)}.", "table"),
    Setting("color", "color", "VCTL_COLOR", f"Colour: {', '.join(COLORS)}.", "auto"),
    Setting(
        "local_node",
        "flag",
        "VCTL_LOCAL_NODE",
        "Whether this machine is registered as a node automatically.",
        default=True,
    ),
    Setting(
        "ray",
        "text",
        "VCTL_RAY",
        "Address of a Ray cluster that the scheduler works on, or auto; unset: none.",
    ),
    Setting(
        "unit_resources",
        "names",
        "VCTL_UNIT_RESOURCES",
        "Resources of numbered instances, beside GPU.",
        DEFAULT_UNITS,
    ),
    Setting(
        "job_scope",
        "job_scope",
        "VCTL_JOB_SCOPE",
        "Objects that submitted jobs may change: own (their cluster and their submissions) or all.",
        "own",
    ),
    Setting(
        "notify",
        "notify",
        "VCTL_NOTIFY",
        "Who is told of the start and the end of each job: a command, a URL or mailto:ADDRESS.",
    ),
    Setting(
        "ray_jobs",
        "ray_jobs",
        "VCTL_RAY_JOBS",
        "Ray of jobs from Ray's job API: lazy (default where Ray is installed), private or none.",
    ),
    Setting(
        "foreign_gpu_processes",
        "foreign",
        "VCTL_FOREIGN_GPU_PROCESSES",
        "Processes on GPUs that nobody booked: ignore; report; avoid: the GPU takes no new job.",
        "report",
    ),
    Setting(
        "foreign_gpu_memory",
        "size",
        "VCTL_FOREIGN_GPU_MEMORY",
        "GPU memory up to which such processes are not avoided.",
        256 << 20,
    ),
    Setting(
        "idle_gpu_after",
        "duration",
        "VCTL_IDLE_GPU_AFTER",
        "Time without use after which a booked GPU is reported as idle; 0: never.",
        1800,
    ),
    Setting("kill_grace", "duration", "VCTL_KILL_GRACE", "Time between SIGTERM and SIGKILL.", 3),
    Setting(
        "maintenance_interval",
        "interval",
        "VCTL_MAINTENANCE_INTERVAL",
        "Time between maintenance rounds.",
        30,
    ),
    Setting(
        "lease_idle_timeout",
        "duration",
        "VCTL_LEASE_IDLE_TIMEOUT",
        "Idle time after which a lease is returned.",
        10,
    ),
    Setting(
        "lease_cooldown", "duration", "VCTL_LEASE_COOLDOWN", "Shortest time before a lease is returned.", 2
    ),
    Setting(
        "lease_duration",
        "duration",
        "VCTL_LEASE_DURATION",
        "Duration of a lease; unset: as long as it is used.",
    ),
    Setting(
        "reclaim_grace",
        "duration",
        "VCTL_RECLAIM_GRACE",
        "Time between the notice to a borrower and the end of its job.",
        30,
    ),
    Setting("provider", "text", "VCTL_PROVIDER", "Node provider, as JSON or @file; unset: none."),
    Setting(
        "provider_timeout", "duration", "VCTL_PROVIDER_TIMEOUT", "Time limit of a provider's command.", 300
    ),
    Setting(
        "autostart",
        "flag",
        "VCTL_AUTOSTART",
        "Whether commands start a scheduler when none runs.",
        default=True,
    ),
    Setting(
        "idle_exit", "duration", "VCTL_IDLE_EXIT", "Idle time after which a background scheduler ends.", 60
    ),
    Setting("lock_timeout", "duration", "VCTL_LOCK_TIMEOUT", "How long to wait for another writer.", 30),
    Setting(
        "log_max_bytes",
        "size",
        "VCTL_LOG_MAX_BYTES",
        "Largest size of a log; the latest bytes are kept; 0: no limit.",
        0,
    ),
    Setting(
        "cgroups",
        "cgroups",
        "VCTL_CGROUPS",
        "Runs that get a cgroup: auto (those with --memory; all of a shared service), all or off.",
        "auto",
    ),
    Setting(
        "supervisor_per_job",
        "flag",
        "VCTL_SUPERVISOR_PER_JOB",
        "Whether each running process has a supervisor of its own.",
        default=False,
    ),
)
OF_THE_SCHEDULER = (
    "ray", "maintenance_interval", "lease_idle_timeout", "lease_cooldown", "lease_duration", "reclaim_grace",
    "provider", "provider_timeout", "idle_exit", "log_max_bytes", "foreign_gpu_processes", "foreign_gpu_memory",
    "idle_gpu_after", "cgroups",
)  # fmt: skip
"""The settings that a scheduler reads once, when it starts: a command that has another value changes nothing."""
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


@value(frozen=True, slots=True)
class Config:
    """The value and the origin of every setting; immutable."""

    values: Mapping[str, object]
    origins: Mapping[str, str]
    """Setting -> ``flag``, ``environment VCTL_X``, ``file PATH`` or ``default``; of an address also ``socket PATH``."""
    cwd: str
    env: Mapping[str, str]

    def get(self, name: str) -> Any:
        """The value of a setting: durations in seconds, sizes in bytes, ``unit_resources`` as a frozenset."""
        return self.values[name]

    @property
    def local_node(self) -> bool:
        """Whether this machine is registered as a node automatically; never with the setting ``ray``."""
        return bool(self.values["local_node"]) and not self.values["ray"]

    def rows(self) -> Iterator[tuple[Setting, object, str]]:
        """Setting, value and origin of each, for ``config show``; the state directory is the one in use."""
        for setting in SETTINGS:
            value = str(self.home()) if setting.name == "home" else self.values[setting.name]
            yield setting, value, self.origins[setting.name]

    def with_flags(self, flags: Mapping[str, object]) -> Config:
        """A copy with the command-line flags on top; a flag with the value None was not given."""
        values, origins = dict(self.values), dict(self.origins)
        for name, given in flags.items():
            if given is not None:
                where = "--" + name.replace("_", "-")
                values[name], origins[name] = _parse(_setting(name), given, where, self.cwd, self.env), "flag"
        return Config(values, origins, self.cwd, self.env)

    def with_service(self) -> Config:
        """A copy that uses the shared service of this machine: unless a state directory or a server is set."""
        path = str(self.values["socket"])
        if self.values["address"] or self.values["home"]:
            return self
        if self.origins["socket"] == "default" and not os.path.exists(path):
            return self
        values = {**self.values, "address": f"unix:{path}"}
        return Config(values, {**self.origins, "address": f"{_SOCKET}{path}"}, self.cwd, self.env)

    @property
    def is_shared(self) -> bool:
        """Whether the server in use is the shared service of this machine, as no other was chosen."""
        return self.origins["address"].startswith(_SOCKET)

    @property
    def nearer(self) -> str:
        """The fix for what works only beside the state, not through a server."""
        if str(self.values["address"]).startswith("unix:"):
            return (
                "run it as the account of the service: sudo -u vctl vctl … --home /var/lib/vctl/state;"
                " where the state is yours, with VCTL_ADDRESS unset"
            )
        return "run it there, with VCTL_ADDRESS unset"

    def of_the_scheduler(self) -> dict[str, object]:
        """The settings that a scheduler with this configuration goes by."""
        return {name: self.values[name] for name in OF_THE_SCHEDULER}

    def handed_on(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the named settings that were set, as environment variables for another process."""
        return {
            BY_NAME[name].env: _as_text(self.values[name], self.cwd)
            for name in names
            if self.origins[name] != "default" and self.values[name] is not None
        }

    def home(self) -> Path:
        """The state directory: as set, else ``$XDG_STATE_HOME/vctl``, else ``~/.local/state/vctl``."""
        if self.values["home"]:
            return Path(str(self.values["home"]))
        return Path(_base(self.env, "XDG_STATE_HOME", ".local/state"), "vctl")


def load(
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Config:
    """All settings for a directory and an environment (default: those of this process)."""
    env = os.environ if env is None else env
    try:
        folder = os.path.abspath(cwd or ".")
    except FileNotFoundError:
        raise BadSpec(
            "the current directory has been removed", fix="change to a directory that exists, with cd"
        ) from None
    values = {setting.name: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, "default")
    if env.get("NO_COLOR"):  # no-color.org; a settings file, VCTL_COLOR and a flag override it
        values["color"], origins["color"] = "never", "environment NO_COLOR"
    elif env.get("TERM") in DUMB:
        values["color"], origins["color"] = "never", "environment TERM"
    for file in _files(folder, env):
        for name, given in _read(file, env).items():
            values[name], origins[name] = given, f"file {file}"
    for setting in SETTINGS:
        if text := env.get(setting.env):
            values[setting.name] = _parse(setting, text, setting.env, folder, env)
            origins[setting.name] = f"environment {setting.env}"
    config = Config(values, origins, folder, env)
    return (config.with_flags(flags) if flags else config).with_service()


def _files(cwd: str, env: Mapping[str, str]) -> list[str]:
    """The settings files that exist, the one with precedence last."""
    try:
        user = [os.path.join(_base(env, "XDG_CONFIG_HOME", ".config"), USER_FILE)]
    except BadSpec:  # the user has no home directory, so no settings file
        user = []
    return [file for file in (*user, os.path.join(cwd, PROJECT_FILE)) if os.path.isfile(file)]


def _base(env: Mapping[str, str], variable: str, below_home: str) -> str:
    """An XDG base directory. A relative path is ignored, as the XDG specification requires."""
    base = env.get(variable, "")
    return base if os.path.isabs(base) else os.path.join(_user_home(env), below_home)


def _user_home(env: Mapping[str, str]) -> str:
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        import pwd

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = ""
    if not os.path.isabs(home):
        raise BadSpec(
            f"user {os.getuid()} has no home directory, so there is no default state directory",
            fix="set VCTL_HOME to a directory on a local disk",
        )
    return home


def _read(file: str, env: Mapping[str, str]) -> dict[str, object]:
    import tomllib

    try:
        with open(file, "rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise _in_file(
            file, "", f"cannot be read: {error.strerror}", "make it readable, or remove it"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _in_file(file, "", f"not TOML: {error}", "correct the text at that position") from None
    except UnicodeDecodeError:
        raise _in_file(file, "", "not UTF-8 text", "save it as UTF-8") from None
    return {
        name: _parse(_setting(name, file), value, f"{file}: {name}", os.path.dirname(file), env)
        for name, value in document.items()
    }


def _in_file(file: str, key: str, problem: str, fix: str) -> BadSpec:
    return refuse(f"{file}: {key}" if key else file, problem, fix)


def _setting(name: str, file: str = "") -> Setting:
    if name in BY_NAME:
        return BY_NAME[name]
    fix = did_you_mean(name, BY_NAME)
    raise _in_file(file, show(name), "no such setting", fix) if file else refuse(name, "no such setting", fix)


def _parse(setting: Setting, value: object, where: str, base: str, env: Mapping[str, str]) -> object:
    """Parse one value from any source; a relative path starts at ``base``."""
    if setting.kind == "path":
        text = as_text(value, where, "a path")
        if text == "~" or text.startswith("~/"):
            text = _user_home(env) + text[1:]
        if not text or "\0" in text:
            raise refuse(
                where, f"{show(value)} is not a path", "name a directory or file, or remove the setting"
            )
        return os.path.normpath(os.path.join(base, text))
    return _PARSERS[setting.kind](value, where)


def _as_text(value: object, cwd: str) -> str:
    """A value as text that means the same in another directory: the path in ``@file`` becomes absolute."""
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    if isinstance(value, bool):
        return "1" if value else "0"
    text = str(value)
    return "@" + os.path.join(cwd, text[1:]) if text.startswith("@") else text


def _flag(value: object, where: str) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _YES or word in _NO:
        return word in _YES
    raise refuse(where, f"{show(value)} is neither yes nor no", "write true or false")


def _text(value: object, where: str) -> str:
    text = as_text(value, where, "the value").strip()
    if not text or not text.isprintable():
        raise refuse(where, f"{show(value)} is not a text", "write a text, or remove the setting")
    return text


def _notify(value: object, where: str) -> str:
    from vctl.spec.notify import check_notify

    text = _text(value, where)
    check_notify(text, where)
    return text


def _names(value: object, where: str) -> frozenset[str]:
    """Parse resource names, a list or a text with commas. The default unit resources are added."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise refuse(where, f"{show(value)} is not a list of names", 'write ["GPU", "FPGA"]')
    names = [as_text(item, where, "a resource name").strip() for item in items]
    for name in names:
        check_resource_name(name, where)
        if name in (CPU, MEMORY, OBJECT_STORE_MEMORY):
            raise refuse(
                where, f"{name} is an amount, it has no numbered instances", "list devices such as GPU"
            )
    return frozenset(names) | DEFAULT_UNITS


def _choice(words: tuple[str, ...]) -> Callable[[object, str], str]:
    def parse(value: object, where: str) -> str:
        if value not in words:
            raise refuse(
                where, f"{show(value)} is not one of {', '.join(words)}", did_you_mean(str(value), words)
            )
        return str(value)

    return parse


_PARSERS: Mapping[str, Callable[[object, str], object]] = {
    "text": _text,
    "flag": _flag,
    "names": _names,
    "duration": parse_duration,
    "interval": lambda value, where: parse_duration(value, where, positive=True),
    "size": parse_size,
    "output": _choice(OUTPUTS),
    "color": _choice(COLORS),
    "job_scope": _choice(JOB_SCOPES),
    "ray_jobs": _choice(RAY_JOBS),
    "foreign": _choice(FOREIGN),
    "cgroups": _choice(CGROUPS),
    "notify": _notify,
    "cluster": lambda value, where: resolve_cluster_id(as_text(value, where, "a cluster id"), where),
}
