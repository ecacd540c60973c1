"""What the journal says of a change beside the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Told(NamedTuple):
    """What the journal says of a change beside the change: its public event, unless the kind is empty."""

    kind: str
    object_kind: str
    object_id: str
    cluster_id: str | None = None
    job_id: int | None = None
    data: Mapping[str, Any] = {}
