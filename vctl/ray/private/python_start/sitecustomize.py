"""Python imports this when it starts in a job with a private Ray: `ray stop` there ends that Ray alone.

Ray's own `ray stop` ends every Ray of the user on the machine. It is replaced by ``ray_stop.py`` however it is
called: by its name, by its path, or as ``python -m ray.scripts.scripts stop``. Then comes the ``sitecustomize``
that the program would have had, and ``sys.path`` is as it would have been. Every Python of a job reads this
file, so it is short, and written for any version of Python 3.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_STOP = os.path.join(os.path.dirname(_HERE), "ray_stop.py")
_PYTHONS_VALUES = ("-W", "-X", "--check-hash-based-pycs")
_RAYS_VALUES = ("--logging-level", "--logging-format")


def arguments_of_a_stop(words: "list[str]") -> "list[str] | None":
    """The arguments of Ray's command if these words of a command line are a `ray stop`, else None."""
    rest = _without_options(words[1:], _PYTHONS_VALUES)
    if rest[:2] == ["-m", "ray.scripts.scripts"]:
        rest = rest[2:]
    elif rest and os.path.basename(rest[0]) == "ray":
        rest = rest[1:]
    else:
        return None
    return rest if _without_options(rest, _RAYS_VALUES)[:1] == ["stop"] else None


def _without_options(words: "list[str]", with_value: "tuple[str, ...]") -> "list[str]":
    """The words from the first one on that is no option; ``-m`` and ``-c`` of Python count as none."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        rest = rest[2 if rest[0] in with_value else 1 :]
    return rest


def _import_the_other_one() -> None:
    """Import the ``sitecustomize`` of the next folder that has one."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


if __name__ == "sitecustomize":
    _arguments = arguments_of_a_stop(getattr(sys, "orig_argv", []))
    if _arguments is not None:
        os.execv(sys.executable, [sys.executable, _STOP] + _arguments)  # noqa: RUF005
    _import_the_other_one()
