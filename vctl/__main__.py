"""Entry point of the ``vctl`` command. What must be instant is answered before anything is imported."""

import sys


def main() -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:]
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


if __name__ == "__main__":
    sys.exit(main())
