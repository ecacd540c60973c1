"""Entry point of the ``vctl`` command. What must be instant is answered before anything is imported."""

import os
import sys


def main() -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:]
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_standard_files()
    try:
        from vctl.cli.command_client import hand_over

        code = hand_over(words)
    except KeyboardInterrupt:
        return 130
    return answer(words) if code is None else code


def answer(words: list[str]) -> int:
    """Carry a command line out in this process."""
    if words == ["--version"] or words == ["version"]:
        from vctl import __version__

        sys.stdout.write(f"vctl {__version__}\n")
        return 0
    if words[:1] == ["__complete"]:
        from vctl.cli.completion import offer

        return offer(words[1:])
    try:
        from vctl.cli.app import run

        return run(words)
    except KeyboardInterrupt:  # while it is still imported
        return 130


def _open_standard_files() -> None:
    """What the caller has closed leads to nowhere: else the next file that is opened would get the output."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
