"""Checks that tables and records belong together. They do not after a restore, in a copy, or without records.

In these cases another scheduler may have started the runs that these tables are about to start, and may have
observed their ends. So runs that the tables have assigned are not started again: without records they are
lost.
"""

from __future__ import annotations

import os

from vctl.runtime import records_mark
from vctl.runtime.protocol import Runtime
from vctl.store import observed, runs
from vctl.store.database import PLACE
from vctl.store.store import Store


def settle(store: Store, runtime: Runtime) -> str | None:
    """Make tables and records belong together. Returns a message if they did not, and there are live runs."""
    known = store.recall(PLACE) or ""
    mark = records_mark.read(store.home)
    if mark is not None and not mark.copied and mark.name == known:
        return None
    why = "the tables were restored, or their records are gone: jobs that had started are not started again"
    if mark is not None and mark.copied:
        aside = records_mark.set_aside(store.home)
        why = (
            "this state was copied: jobs that the original had started are not started again;"
            f" the copied records are in {aside}"
        )
    else:
        runtime.drop_ended()
    name = os.urandom(8).hex()
    records_mark.write(store.home, name)
    with store.transaction():
        begun = runs.never_again(store)
        observed.remember(store, PLACE, name)
    return why if begun else None
