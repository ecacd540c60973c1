"""Entry point of the ``vctl`` command. It answers ``--version`` before it imports the rest of the program."""

import gc
import os
import sys

YOUNG = 200_000
"""The number of new containers after which the garbage collector looks at its youngest generation."""


def main() -> int:
    """Run the command line and return the exit code."""
    words: list[str] = []
    try:
        if None in (sys.stdin, sys.stdout, sys.stderr):
            _open_standard_files()
        words = sys.argv[1:]
        if words == ["--version"] or words == ["version"]:
            from vctl import __version__

            sys.stdout.write(f"vctl {__version__}\n")
            sys.stdout.flush()
            return 0
        from vctl.cli import command_client

        if (code := command_client.hand_over(words)) is not None:
            return code
        from vctl.cli.entry import carry_out

        return carry_out(words)
    except KeyboardInterrupt:  # during the imports
        return 130
    except Exception as error:  # noqa: BLE001 - reported, and raised again with VCTL_DEBUG=1
        return _failed(error, words)


def _failed(error: Exception, words: list[str]) -> int:
    """Report an error of an import, or one that came before the command line could report it."""
    if os.environ.get("VCTL_DEBUG") == "1":
        raise error
    try:
        from vctl.cli import app

        if isinstance(error, ImportError):
            error = app.not_loaded(error)
        return app.failed(error, words)
    except Exception:  # noqa: BLE001 - the cause is the same, and this needs no import
        sys.stderr.write(f"Error: vctl could not be loaded: {error}\n")
        sys.stderr.write("Fix: look whether open files, memory or the disk are used up, then try again\n")
        return 1


def run() -> None:
    """Run the command line, then exit without the interpreter's cleanup: the kernel frees memory faster."""
    gc.set_threshold(YOUNG)  # imports leave no garbage; looking for it takes a tenth of the time
    code = main()
    if "threading" in sys.modules:
        sys.exit(code)  # waits for threads that still run
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, MemoryError):
        sys.exit(code)  # the interpreter flushes again and reports the error
    os._exit(code)


def _open_standard_files() -> None:
    """Open closed standard files on /dev/null: otherwise the next opened file would receive the output."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - stays open until the process ends
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    run()
