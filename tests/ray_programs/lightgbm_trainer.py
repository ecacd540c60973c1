"""Train with LightGBM: a worker trains a model on a data set of Data, and reports it."""

import tempfile

import lightgbm
import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback

ray.init(log_to_driver=False)


def loop():
    part = ray.train.get_dataset_shard("train").materialize().to_pandas().astype(float)
    data = lightgbm.Dataset(part.drop(columns="y"), label=part["y"])
    lightgbm.train(
        {
            "objective": "regression",
            "metric": "rmse",
            "min_data_in_leaf": 5,
            "verbosity": -1,
            "num_threads": 1,
        },
        data,
        num_boost_round=20,
        valid_sets=[data],
        valid_names=["train"],
        callbacks=[RayTrainReportCallback(metrics={"error": "train-rmse"})],
    )


result = LightGBMTrainer(
    loop,
    datasets={"train": ray.data.from_items([{"x": float(n), "y": float(3 * n)} for n in range(400)])},
    scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=tempfile.mkdtemp(), name="lightgbm"),
).fit()
assert result.error is None
assert RayTrainReportCallback.get_model(result.checkpoint).num_trees() == 20
print("lightgbm")
