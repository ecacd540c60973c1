"""Jobs that start and are over in one transaction: their rows are written once, as they are at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specification import spec
from tests.world import Folding, World, amounts
from vctl.engine.codec import decode
from vctl.ops import clusters, nodes, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store import feed
from vctl.store.entries import Emitted
from vctl.store.write import write
from vctl.store.write.jobs import whole

pytestmark = spec("8.arrays", "17.durable")

CODES = (0, 0, 3, 0, 1, 0)


@pytest.mark.parametrize("divisible", [True, False])
def test_the_rows_are_those_of_starts_and_ends_written_one_by_one(tmp_path: Path, *, divisible: bool) -> None:
    """In a divisible cluster a job has a cluster of its own, which comes and goes; in others it has none."""
    with World(tmp_path / "state", window=16) as world:
        store = world.store
        nodes.add(store, resources=amounts(1), node_id="n", template="t")
        clusters.create(store, "c", ClusterChange(divisible=divisible, replica_sets={"t": 1}))
        request = JobRequest(
            argv=("x",), submission_id="a", cwd="/", entry=amounts(1), array=parse_array("1-12"), cluster="c"
        )
        submitting.submit(store, request, environment={})
        world.turn()
        world.processes.end(*world.processes.running(), 0)
        world.turn()
        together, one_by_one = Folding(store), Folding(store)
        for code in CODES:
            world.processes.end(*world.processes.running(), code)
        world.turn()
        entries = [
            (row["seq"], Emitted(row["at"], decode(row["change"])))
            for row in feed.journal(store, together.seq)
        ]
        assert len(whole([entry.change for _, entry in entries])[0]) == len(CODES) - 1
        assert together.folded is not None and one_by_one.folded is not None
        write(together.folded, [entry for _, entry in entries], entries[-1][0])
        for seq, entry in entries:
            write(one_by_one.folded, [entry], seq)
        for table, columns in {**Folding.KEPT, "job_counts WHERE count <> 0": "*"}.items():
            sql = f"SELECT {columns} FROM {table} ORDER BY 1, 2"
            expected = one_by_one.folded.execute(sql).fetchall()
            assert together.folded.execute(sql).fetchall() == expected, table
        together.close()
        one_by_one.close()
