"""Draw the pictures of docs/screens/ with the real commands on terminals of 60x24, 80x24 and 200x50.

python -m docs.screens            writes those that have changed
python -m docs.screens --check    says which are out of date, exit code 1 when any is

The cluster is that of tests/crowd.py at a fixed moment, so the same code draws the same pictures.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests import crowd
from tests.world import World
from vctl.ops import jobs
from vctl.store.locks import SchedulerLock

DOCS = Path(__file__).parent
NOW_S = datetime(2026, 11, 20, 14, 30, tzinfo=UTC).timestamp()
NARROW, USUAL, WIDE = (60, 24), (80, 24), (200, 50)
SCREENS = {
    "status": "status",
    "top": "top",
    "ps": "ps --watch",
    "tree": "vc tree --watch",
    "why": f"why {crowd.WAITS}",
    "events": "list events --watch",
    "timeline": "timeline",
    "nodes": "node list",
    "job": f"job status {crowd.WAITS}",
}
SUBMIT = (
    "job submit --submission-id evaluation-of-the-large-language-model-8 -g 8 --nodes 3 -- python train.py"
)
"""Waits behind 285 others; drawn last, because it changes the state."""
LISTS = ("top", "ps", "tree", "events", "timeline")
"""What is drawn at 60 columns too: rows that have to be told apart."""
CONTROL = re.compile(r"\x1b\[(?![0-9;]*m)[0-9;?]*[a-zA-Z]|\r")


def main(arguments: list[str]) -> int:
    os.environ["TZ"] = "UTC"
    time.tzset()
    stale = []
    home = Path(tempfile.gettempdir(), "vctl-screens")  # its name stands in the pictures
    home.mkdir()
    try:
        world = crowd.build(home, NOW_S)
        assert world.scheduler is not None
        world.scheduler.work.last_round_ms = 1.25
        world.scheduler.heartbeat()
        lock = SchedulerLock(home)  # no command starts another one
        assert lock.acquire("daemon")
        for name, line in [*SCREENS.items(), ("submit", SUBMIT)]:
            for size in [*([NARROW] if name in LISTS else []), USUAL, *([WIDE] if name != "top" else [])]:
                path = DOCS / "screens" / f"{name}-{size[0]}x{size[1]}.svg"
                shown = (
                    waiting_terminal(world, line, size) if name == "submit" else terminal(home, line, size)
                )
                drawn = picture(f"vctl {line}", shown, size)
                if not path.exists() or path.read_text(encoding="utf-8") != drawn:
                    stale.append(path)
                    if "--check" not in arguments:
                        path.parent.mkdir(exist_ok=True)
                        path.write_text(drawn, encoding="utf-8")
        world.close()
        lock.release()
    finally:
        shutil.rmtree(home)
    for path in stale:
        print(f"{'out of date:' if '--check' in arguments else 'wrote'} {path.relative_to(DOCS.parent)}")
    return bool(stale) if "--check" in arguments else 0


def terminal(home: Path, line: str, size: tuple[int, int]) -> str:
    """What a command shows at that moment on a terminal of that size; of a watched one the first look."""
    pid, fd = begin(home, line, size)
    out = b""
    while True:
        try:
            block = os.read(fd, 1 << 16)
        except OSError:
            break
        if not block:
            break
        out += block
    os.waitpid(pid, 0)
    os.close(fd)
    return CONTROL.sub("", out.decode())


def waiting_terminal(world: World, line: str, size: tuple[int, int]) -> str:
    """The line of a command that waits, once the scheduler has said why; then the command and its job are ended."""
    assert world.scheduler is not None
    pid, fd = begin(world.home, line, size)
    out, give_up = b"", time.monotonic() + 15
    while True:
        if select.select([fd], [], [], 0.3)[0]:
            out += os.read(fd, 1 << 16)
        elif b" waits: needs" in out:
            break
        elif time.monotonic() > give_up:
            raise TimeoutError(f"no reason on the screen: {out!r}")
        else:
            world.scheduler.turn()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    name = line.split("--submission-id ")[1].split(maxsplit=1)[0]
    jobs.stop(world.store, name)
    jobs.delete(world.store, name)
    world.turn()
    return f"$ vctl {line}\n" + CONTROL.sub("", out.decode().rpartition("\r")[2])


def begin(home: Path, line: str, size: tuple[int, int]) -> tuple[int, int]:
    """Start a command on a terminal of that size: its pid and the terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        os._exit(command(home, line))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    return pid, fd


def command(home: Path, line: str) -> int:
    """The command line in this process, with a clock that stands still and nothing to repeat."""
    from vctl.cli import app, words
    from vctl.cli.call import Call
    from vctl.store.store import Store

    class Then(datetime):
        @classmethod
        def now(cls, _zone: object = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(NOW_S, UTC)

    def interrupted(_: Call) -> None:
        raise KeyboardInterrupt

    time.sleep(0.05)  # until the terminal has its size
    time.time = lambda: NOW_S
    time.time_ns = lambda: int(NOW_S * 1e9)
    written, then = time.strftime, time.gmtime(NOW_S)
    time.strftime = lambda form, moment=then: written(form, moment)  # type: ignore[misc]
    Store.__init__.__defaults__ = (time.time_ns,)  # the clock of a store that is opened from now on
    words.datetime = Then  # type: ignore[attr-defined, misc]
    Call.pause = interrupted  # type: ignore[method-assign]
    for name in [name for name in os.environ if name.startswith("VCTL_") or name == "NO_COLOR"]:
        del os.environ[name]
    os.environ |= {"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0", "TERM": "xterm-256color",
                   "XDG_CONFIG_HOME": str(home)}  # fmt: skip
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    code = app.run(line.split())
    sys.stdout.flush()
    return code


def picture(title: str, text: str, size: tuple[int, int]) -> str:
    """A terminal of that size as SVG, the fonts those of the reader."""
    console = Console(width=size[0], record=True, file=io.StringIO(), color_system="standard",
                      force_terminal=True, _environ={})  # fmt: skip
    lines = [line.rstrip(" ") for line in text.rstrip("\n").split("\n")]
    for line in [*lines, *[""] * (size[1] - len(lines))]:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    drawn = console.export_svg(title=title, theme=MONOKAI, unique_id="screen")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return drawn.replace("Fira Code", "DejaVu Sans Mono")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
