"""Wheels for tests that install packages; no index is needed for them."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, says: str) -> Path:
    """A wheel with one module, whose constant ``SAYS`` is ``says``."""
    path, about = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": f"SAYS = {says!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(file, text)
    return path
