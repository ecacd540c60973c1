"""Train: a group of workers with ranks, reports and a checkpoint."""

import json
import os
import tempfile

import ray
import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

ray.init(log_to_driver=False)
folder = tempfile.mkdtemp()


def loop(config):
    rank = ray.train.get_context().get_world_rank()
    for step in range(config["steps"]):
        with tempfile.TemporaryDirectory() as place:
            with open(os.path.join(place, "state.json"), "w") as file:
                json.dump({"step": step}, file)
            checkpoint = Checkpoint.from_directory(place) if rank == 0 else None
            ray.train.report(
                {"step": step, "world": ray.train.get_context().get_world_size()}, checkpoint=checkpoint
            )


result = DataParallelTrainer(
    loop,
    train_loop_config={"steps": 3},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=folder, name="train"),
).fit()
assert result.error is None
with result.checkpoint.as_directory() as place, open(os.path.join(place, "state.json")) as file:
    assert json.load(file) == {"step": 2}
print("train")
