"""The answer of a command and its forms: one JSON value feeds table, json, jsonl, yaml, csv and name."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from vctl import cli, ops
from vctl.cli.table import Cell, Column
from vctl.core.listed import Alike, Listed, Values, field_of, filled, mapped
from vctl.core.text import harmless, visible

if TYPE_CHECKING:
    from vctl.cli.screen import Screen

Data = Mapping[str, Any]
Draw = Callable[["Screen"], Iterable[str]]
API_VERSION = "vctl/v1"
OLDEST_FIRST = ("EventList", "TaskList", "LeaseList")
OWN_WORDS = ("entrypoint", "name", "metadata")
"""Fields with text of users, in which no id is replaced by an alias."""


class Answer:
    """``data`` is the JSON form; ``rows`` are its lines in jsonl and csv, ``names`` those of ``-o name``."""

    def __init__(
        self,
        data: Any,
        *,
        rows: Sequence[Data],
        names: Sequence[object],
        draw: Draw | None = None,
        more: int = 0,
        code: int = 0,
        redraw: Callable[[Sequence[Data]], Draw] | None = None,
        form: str = "",
    ) -> None:
        self.data = data
        self.rows = rows
        self.names = names
        self.draw = draw
        self.sentences: list[str] = []
        """The text that is shown instead of a drawing; it needs no rich."""
        self.more = more
        self.code = code
        self.columns: Sequence[str] | None = None
        """The fields to show; None: all fields of the rows."""
        self.newest_last = False
        """Whether the first rows are left out where not all fit on the screen."""
        self.redraw = redraw
        """Makes the drawing of a list for other rows."""
        self.form = form
        """The name of the documented form of the rows of a list, which has their fields in order."""


def listing(
    kind: str,
    items: Sequence[Data],
    total: int,
    key: str,
    columns: Sequence[Column],
    none: str,
    form: str = "",
) -> Answer:
    """A list of objects in its envelope; ``none`` is the text of an empty list.

    ``form``: the name of the documented form of the objects, if it does not follow from ``kind``.
    """

    def drawn(rows: Sequence[Data]) -> Draw:
        def draw(screen: "Screen") -> Iterator[str]:
            if rows:
                return screen.blocks(columns, rows)
            return screen.text((none, "dim")) if screen.header and not total else iter(())

        return draw

    envelope = {"api_version": API_VERSION, "kind": kind, "items": items, "total": total}
    names = field_of(items, key)
    answer = Answer(
        envelope, rows=items, names=names, draw=drawn(items), more=total - len(items), redraw=drawn,
        form=form or kind.replace("List", "Form"),
    )  # fmt: skip
    answer.newest_last = kind in OLDEST_FIRST
    return answer


def single(data: Data, name: object, draw: Draw | None = None, *, code: int = 0) -> Answer:
    """One object; without ``draw`` all its fields are shown."""
    return Answer(
        data,
        rows=[data],
        names=[name],
        draw=draw or (lambda screen: screen.pairs(_fields(data), raw=OWN_WORDS)),
        code=code,
    )


def single_by(key: str) -> Callable[[Data], Answer]:
    """A function that shows one object, whose name is in this field."""
    return lambda data: single(data, data[key])


def amounts(data: Mapping[str, float]) -> Answer:
    """A resource map."""
    columns = [
        Column("RESOURCE", "resource"),
        Column("AMOUNT", lambda row: cli.words.amount(row["resource"], row["amount"]), right=True),
    ]
    rows = [{"resource": name, "amount": value} for name, value in data.items()]
    answer = Answer(data, rows=rows, names=list(data), draw=lambda screen: screen.table(columns, rows))
    answer.columns = ("resource", "amount")
    return answer


def done(data: Data, name: object, sentence: str) -> Answer:
    """The answer to a change of one object: a sentence, or the object as data."""
    answer = Answer(data, rows=[data], names=[name])
    answer.sentences = [sentence]
    return answer


def each(
    kind: str, key: str, items: Sequence[Data], sentence: Callable[[Data], str], *, code: int = 0
) -> Answer:
    """The answer to a change of one object or several objects: the object, or a list."""
    if len(items) == 1:
        answer = done(items[0], items[0][key], sentence(items[0]))
    else:
        answer = listing(kind, items, len(items), key, [], "")
        answer.draw, answer.sentences = None, [sentence(item) for item in items]
    answer.code = code
    return answer


LONGEST = 20
"""The most entries of a field that are all shown; of a longer field half as many, and the number of the others."""


def _fields(data: Data) -> Iterator[tuple[str, Cell | str]]:
    for name, value in data.items():
        if name in ("status", "state") and isinstance(value, str):
            yield name, cli.words.state(value)
        elif name == "array" and isinstance(value, Mapping):
            yield from _array(value)
        elif isinstance(value, (list, Mapping)) and len(value) > LONGEST:
            first = LONGEST // 2
            shown = value[:first] if isinstance(value, list) else dict(islice(value.items(), first))
            yield name, f"{cli.words.value(name, shown)} and {len(value) - first} more (all: -o json)"
        else:
            yield name, cli.words.value(name, value)


def _array(about: Data) -> Iterator[tuple[str, Cell | str]]:
    """The progress of an array, and which of its members did not succeed, and why."""
    states = ", ".join(f"{count} {state}" for state, count in about["states"].items())
    at_once = "" if about["at_once"] is None else f", at most {about['at_once']} at a time"
    yield "members", f"{about['count']} of {about['indices']}: {states}{at_once}"
    for group in about["failures"]:
        yield group["status"].lower(), Cell(ops.arrays.why_failed(group), "red")


def write(answer: Answer, form: str, stream: TextIO, *, header: bool) -> None:
    """Write data in one of its forms other than ``table``, which ``screen`` draws."""
    if form == "json":
        stream.writelines(map(harmless, _indented(answer.data, _encoder(stream))))
        stream.write("\n")
    elif form == "jsonl":
        data = answer.data
        is_list = not isinstance(data, dict) or (data.get("api_version") == API_VERSION and "items" in data)
        stream.writelines(_json(row, stream) + "\n" for row in (answer.rows if is_list else [data]))
    elif form == "yaml":
        stream.write(cli.yaml.dump(answer.data))
    elif form == "csv":
        _write_csv(answer, stream, header=header)
    else:
        stream.writelines(f"{_single_line(name, stream)}\n" for name in answer.names)


def _json(value: Any, stream: TextIO) -> str:
    return harmless(_encoder(stream)(value, ","))


Encode = Callable[[Any, str], str]
"""Encodes a value as JSON, with the given text between entries."""


def _encoder(stream: TextIO) -> Encode:
    from json import JSONEncoder

    fine = (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")

    @cache
    def encoder(comma: str) -> JSONEncoder:
        colon = ":" if comma == "," else ": "
        return JSONEncoder(ensure_ascii=not fine, separators=(comma, colon), default=list)  # a ``Listed``

    return lambda value, comma: encoder(comma).encode(value)


def _indented(value: Any, encode: Encode, pad: str = "\n") -> Iterator[str]:
    """The text of ``json.dumps(value, indent=2)`` in pieces, many times faster.

    Adjacent values without contents are encoded together, with a comma that contains the indentation. If all
    objects of a list have the same fields, the values of each field are encoded together.
    """
    inside = pad + "  "
    comma = "," + inside
    if not isinstance(value, (dict, list, Listed)) or not value:
        yield encode(value, comma)
    elif not isinstance(value, dict):
        fields = _fields_of(value)
        wholes = (_whole(item, encode, inside) + comma for item in value)
        parts = wholes if fields is None else _rows(fields, len(value), encode, inside)
        last = "[" + inside
        for part in parts:
            yield last
            last = part
        yield last.removesuffix(comma) + pad + "]"
    else:
        before, plain = "{" + inside, dict[str, Any]()
        for name, part in value.items():
            if not isinstance(part, (dict, list, Listed)) or not part:
                plain[name] = part
                continue
            if plain:
                yield before + encode(plain, comma)[1:-1]
                before, plain = comma, {}
            yield f"{before}{encode(name, comma)}: "
            yield from _indented(part, encode, inside)
            before = comma
        yield (before + encode(plain, comma)[1:-1] if plain else "") + pad + "}"


def _whole(value: Any, encode: Encode, pad: str) -> str:
    return "".join(_indented(value, encode, pad))


def _fields_of(value: "list[Any] | Listed[Any]") -> dict[str, Values] | None:
    """The values of each field of objects that have the same fields in the same order; None for anything else."""
    if isinstance(value, Listed):
        return value.fields()
    names = list(value[0]) if type(value[0]) is dict else []
    if not names or not all(type(item) is dict and list(item) == names for item in value):
        return None
    return dict(zip(names, zip(*map(dict.values, value), strict=True), strict=True))


def _rows(fields: Mapping[str, Values], count: int, encode: Encode, pad: str) -> Iterator[str]:
    """The texts of objects, each with a comma behind it."""
    inside = pad + "  "
    patterns = [
        (f",{inside}{encode(name, ',').replace('%', '%%')}: %s", _each(values, encode, inside))
        for name, values in fields.items()
    ]
    patterns[0] = ("{" + patterns[0][0][1:], patterns[0][1])
    patterns[-1] = (patterns[-1][0] + pad + "}," + pad, patterns[-1][1])
    return filled(patterns, count)


def _each(values: Values, encode: Encode, pad: str) -> Values:
    """The JSON texts of the values of a field; only that of a list or map with contents has several lines."""
    if isinstance(values, Alike) or not {dict, list}.isdisjoint(map(type, values)):
        return mapped(lambda value: _whole(value, encode, pad), values)
    return encode(list(values), "\n")[1:-1].split("\n")


def _single_line(name: object, stream: TextIO) -> str:
    """A name or field as it is; on a terminal without control characters."""
    return visible(str(name)) if stream.isatty() else str(name)


def fields(answer: Answer) -> list[str]:
    """The fields of the objects of a list in the order of their documented form; of an empty list all of that form."""
    from vctl.spec import documents

    form = getattr(getattr(documents, answer.form, None), "__annotations__", {})
    present = dict.fromkeys(name for row in answer.rows for name in row)
    if answer.form and not answer.rows:
        return list(form)
    return [*(name for name in form if name in present), *(name for name in present if name not in form)]


def _write_csv(answer: Answer, stream: TextIO, *, header: bool) -> None:
    """Write all fields of all rows; nested values are JSON inside their field."""
    import csv

    rows, names = answer.rows, answer.columns or fields(answer)
    writer = csv.writer(stream, lineterminator="\n")
    if header and names:
        writer.writerow(names)
    for row in rows:
        writer.writerow([_csv_field(row.get(name), stream) for name in names])


def _csv_field(value: Any, stream: TextIO) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return _json(value, stream)
    return _single_line(value, stream) if isinstance(value, str) else value


def drop(stream: TextIO) -> None:
    """Redirect a stream to ``/dev/null``, so that the last flush of the interpreter does not fail, too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
