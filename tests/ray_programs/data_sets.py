"""Data: transformations, shuffles, groups, files, an actor pool, an iterator."""

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import ray

ray.init(log_to_driver=False)
numbers = ray.data.range(1000, override_num_blocks=4)
assert numbers.map_batches(lambda batch: {"id": batch["id"] * 2}).sum("id") == 999_000
assert numbers.filter(lambda row: row["id"] % 2 == 0).count() == 500
assert [row["id"] for row in numbers.sort("id", descending=True).take(2)] == [999, 998]
groups = numbers.map(lambda row: {"of": row["id"] % 3, "id": row["id"]}).groupby("of").count().take_all()
assert sorted(row["count()"] for row in groups) == [333, 333, 334]


class Add:
    def __init__(self, amount):
        self.amount = amount

    def __call__(self, batch):
        return {"id": batch["id"] + self.amount}


added = numbers.map_batches(Add, fn_constructor_args=(5,), concurrency=1)
assert added.min("id") == 5
folder = tempfile.mkdtemp()
pq.write_table(pa.table({"a": list(range(50))}), f"{folder}/one.parquet")
read = ray.data.read_parquet(folder)
assert read.count() == 50
assert sum(len(batch["a"]) for batch in read.iter_batches(batch_size=7)) == 50
print("data")
