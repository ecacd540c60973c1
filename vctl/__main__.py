"""Entry point of the ``vctl`` command. What must be instant is answered before anything is imported."""

import gc
import os
import sys

YOUNG = 50_000
"""Containers that may come before the interpreter looks for garbage among them."""


def main() -> int:
    """Run the command line and return the exit code."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_standard_files()
    words = sys.argv[1:]
    if words == ["--version"] or words == ["version"]:
        from vctl import __version__

        try:
            sys.stdout.write(f"vctl {__version__}\n")
            sys.stdout.flush()
        except OSError as error:
            from vctl.cli import app

            return app.failed(error, words)
        return 0
    try:
        from vctl.cli import command_client

        code = command_client.hand_over(words)
        return command_client.carry_out(words) if code is None else code
    except KeyboardInterrupt:  # while something is still imported
        return 130


def run() -> None:
    """Run the command line, and end: the kernel frees memory at once, for which the interpreter takes long."""
    gc.set_threshold(YOUNG)  # nothing that is imported is garbage: to look for it takes a tenth of a command
    code = main()
    if "threading" in sys.modules:
        sys.exit(code)  # there may be threads to wait for
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # the interpreter tries again, and tells of it
    os._exit(code)


def _open_standard_files() -> None:
    """What the caller has closed leads to nowhere: else the next file that is opened would get the output."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    run()
