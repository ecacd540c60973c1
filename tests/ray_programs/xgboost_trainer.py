"""Train with XGBoost: two workers train one model on their parts of a data set of Data."""

import tempfile

import ray
import ray.train
import xgboost
from ray.train import RunConfig, ScalingConfig
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

ray.init(log_to_driver=False)


def loop():
    part = ray.train.get_dataset_shard("train").materialize().to_pandas()
    matrix = xgboost.DMatrix(part.drop(columns="y"), part["y"])
    xgboost.train(
        {"objective": "reg:squarederror", "tree_method": "hist"},
        matrix,
        num_boost_round=20,
        evals=[(matrix, "train")],
        callbacks=[RayTrainReportCallback(metrics={"error": "train-rmse"})],
    )


result = XGBoostTrainer(
    loop,
    datasets={"train": ray.data.from_items([{"x": float(n), "y": float(3 * n)} for n in range(400)])},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=tempfile.mkdtemp(), name="xgboost"),
).fit()
assert result.error is None
assert result.metrics["error"] < 30, result.metrics
model = RayTrainReportCallback.get_model(result.checkpoint)
assert abs(model.predict(xgboost.DMatrix([[100.0]], feature_names=["x"]))[0] - 300) < 60
print("xgboost")
