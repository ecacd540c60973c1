"""What a benchmark found: figures with their unit, each compared with one of them, and remarks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """Samples of one quantity; ``base`` names the figure it is divided by."""

    name: str
    unit: str
    samples: Sequence[float]
    base: str | None = None

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """Nearest rank; of few samples it is the largest."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


@dataclass(slots=True)
class Report:
    """The figures of one benchmark."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, name: str, unit: str, samples: float | Sequence[float], *, base: str | None = None) -> None:
        """Add a figure of one or many samples."""
        several = [samples] if isinstance(samples, int | float) else list(samples)
        assert several, f"{self.title}: nothing was measured for {name}"
        self.figures.append(Figure(name, unit, several, base))

    def remark(self, text: str) -> None:
        """Say something that the figures do not."""
        self.remarks.append(text)

    def ratio(self, figure: Figure) -> float | None:
        """Its median divided by that of its base."""
        base = next((other for other in self.figures if other.name == figure.base), None)
        return figure.median / base.median if base is not None and base.median else None

    def data(self) -> dict[str, Any]:
        """The JSON form."""
        figures = {
            figure.name: {
                "unit": figure.unit,
                "median": figure.median,
                "p99": figure.p99,
                "min": min(figure.samples),
                "max": max(figure.samples),
                "samples": len(figure.samples),
                **({"base": figure.base, "ratio": self.ratio(figure)} if figure.base else {}),
            }
            for figure in self.figures
        }
        return {"title": self.title, "figures": figures, "remarks": self.remarks}

    def markdown(self) -> str:
        """The table of a page."""
        lines = [
            f"## {self.title}",
            "",
            "| | median | p99 | unit | ratio |",
            "| --- | ---: | ---: | --- | --- |",
        ]
        for figure in self.figures:
            ratio = self.ratio(figure)
            beside = "" if ratio is None else f"{ratio:.2f} x {figure.base}"
            lines.append(
                f"| {figure.name} | {figure.median:.4g} | {figure.p99:.4g} | {figure.unit} | {beside} |"
            )
        return "\n".join([*lines, "", *(f"- {remark}" for remark in self.remarks)]).rstrip()

    def text(self) -> str:
        """The table people read."""
        header = ("", "median", "p99", "min", "max", "n", "ratio")
        rows: list[tuple[str, ...]] = [header]
        for figure in self.figures:
            ratio = self.ratio(figure)
            numbers = (figure.median, figure.p99, min(figure.samples), max(figure.samples))
            rows.append(
                (
                    f"{figure.name} [{figure.unit}]",
                    *(f"{number:.4g}" for number in numbers),
                    str(len(figure.samples)),
                    "" if ratio is None else f"{ratio:.2f} x {figure.base}",
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = [
            "  ".join(
                cell.ljust(width) if column in (0, 6) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, "", *lines, *(f"- {remark}" for remark in self.remarks)])
