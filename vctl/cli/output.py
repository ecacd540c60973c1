"""The answer of a command and its forms: one JSON value feeds table, json, jsonl, yaml, csv and name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from vctl.cli.page import Cell, Column, Page

Data = dict[str, Any]
Draw = Callable[[Page], Iterable[str]]
API_VERSION = "vctl/v1"


class Answer:
    """``data`` is the JSON form; ``rows`` are its lines in jsonl and csv, ``names`` those of ``-o name``."""

    def __init__(
        self,
        data: Any,
        *,
        rows: Sequence[Data],
        names: Sequence[object],
        draw: Draw,
        more: int = 0,
        code: int = 0,
        redraw: Callable[[Sequence[Data]], Draw] | None = None,
    ) -> None:
        self.data = data
        self.rows = rows
        self.names = names
        self.draw = draw
        self.more = more
        self.code = code
        self.redraw = redraw
        """The picture of a list when its rows are others."""


def listing(
    kind: str, items: Sequence[Data], total: int, key: str, columns: Sequence[Column], none: str
) -> Answer:
    """Many objects in the list envelope; ``none`` is what people read when there are none."""

    def drawn(rows: Sequence[Data]) -> Draw:
        def draw(page: Page) -> Iterator[str]:
            if rows:
                return page.table(columns, rows)
            return iter([page.paint(none, "dim")] if page.header else [])

        return draw

    envelope = {"api_version": API_VERSION, "kind": kind, "items": items, "total": total}
    names = [item[key] for item in items]
    return Answer(envelope, rows=items, names=names, draw=drawn(items), more=total - len(items), redraw=drawn)


def single(data: Data, name: object, draw: Draw | None = None, *, code: int = 0) -> Answer:
    """One object; without an own picture all its fields are shown."""
    return Answer(
        data, rows=[data], names=[name], draw=draw or (lambda page: page.pairs(_fields(data))), code=code
    )


def amounts(data: Mapping[str, float]) -> Answer:
    """A resource map."""
    from vctl.cli import words

    columns = [
        Column("RESOURCE", "resource"),
        Column("AMOUNT", lambda row: words.amount(row["resource"], row["amount"]), right=True),
    ]
    rows = [{"resource": name, "amount": value} for name, value in data.items()]
    return Answer(data, rows=rows, names=list(data), draw=lambda page: page.table(columns, rows))


def done(data: Data, name: object, sentence: str) -> Answer:
    """Something was changed; people read a sentence."""
    return Answer(data, rows=[data], names=[name], draw=lambda _: [sentence])


def _fields(data: Data) -> Iterator[tuple[str, Cell | str]]:
    from vctl.cli import words

    for name, value in data.items():
        stated = name in ("status", "state") and isinstance(value, str)
        yield name, words.state(value) if stated else words.value(name, value)


def write(answer: Answer, form: str, stream: TextIO, page: Page) -> None:
    """Write an answer in one of the forms."""
    if form == "table":
        stream.writelines(line + "\n" for line in answer.draw(page))
    elif form == "json":
        stream.write(_json(answer.data, indent=2, fine=page.fine) + "\n")
    elif form == "jsonl":
        whole = isinstance(answer.data, dict) and not _is_list(answer.data)
        rows = [answer.data] if whole else answer.rows
        stream.writelines(_json(row, fine=page.fine) + "\n" for row in rows)
    elif form == "yaml":
        from vctl.cli.yaml import dump

        stream.write(dump(answer.data))
    elif form == "csv":
        _write_csv(answer.rows, stream, header=page.header)
    else:
        stream.writelines(f"{name}\n" for name in answer.names)


def _is_list(data: Data) -> bool:
    return data.get("api_version") == API_VERSION and "items" in data


def _json(value: Any, *, indent: int | None = None, fine: bool = True) -> str:
    import json

    return json.dumps(value, indent=indent, ensure_ascii=not fine, separators=None if indent else (",", ":"))


def _write_csv(rows: Sequence[Data], stream: TextIO, *, header: bool) -> None:
    """All fields of all rows; what is nested is JSON inside its field."""
    import csv

    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(stream, lineterminator="\n")
    if header and names:
        writer.writerow(names)
    for row in rows:
        writer.writerow([_csv_field(row.get(name)) for name in names])


def _csv_field(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _json(value) if isinstance(value, (dict, list)) else value
