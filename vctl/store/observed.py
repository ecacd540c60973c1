"""What was seen or judged and may be lost: no change, and not in the journal."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.core import tasks as tk
from vctl.store.store import Store


def tell_tasks(store: Store, told: Iterable[tuple[str, str, str]]) -> None:
    """(reason, message, task id): why tasks wait for a place."""
    store.db.executemany(
        f"UPDATE tasks SET state_reason = ?, message = ? WHERE task_id = ? AND state = '{tk.PENDING_NODE}'",
        told,
    )
