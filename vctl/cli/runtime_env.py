"""``--runtime-env-json``, as Ray users write it: the two fields that mean something here are used."""

from collections.abc import Callable

from vctl.spec.fields import as_mapping, as_text, child
from vctl.spec.source import read_document

OPTION = "--runtime-env-json"
KNOWN = ("env_vars", "working_dir")


def read(document: str, note: Callable[[str], None]) -> tuple[dict[str, str], str | None]:
    """The variables and the working directory; other fields are named in a warning and left alone."""
    example = '{"env_vars": {"A": "1"}}'
    fields = as_mapping(read_document(document, "a runtime environment", OPTION), OPTION, "it", example)
    if others := sorted(set(fields) - set(KNOWN)):
        note(f"Warning: {OPTION}: vctl ignores {', '.join(others)}")
    path = child(OPTION, "env_vars")
    given = as_mapping(fields.get("env_vars") or {}, path, "env_vars", '{"A": "1"}')
    variables = {name: as_text(value, child(path, name), "a variable") for name, value in given.items()}
    directory = fields.get("working_dir")
    return variables, None if directory is None else as_text(
        directory, child(OPTION, "working_dir"), "a directory"
    )
