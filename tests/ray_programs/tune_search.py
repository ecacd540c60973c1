"""Tune: a grid, a scheduler that stops trials early, a trial that fails and is tried again, results."""

import os
import tempfile

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

ray.init(log_to_driver=False)
folder = tempfile.mkdtemp()


def trial(config):
    mark = f"{folder}/{config['x']}"
    if config["x"] == 2 and not os.path.exists(mark):
        open(mark, "w").close()
        raise RuntimeError("the first try fails")
    for step in range(1, 5):
        tune.report({"score": config["x"] * step})


results = tune.Tuner(
    tune.with_resources(trial, {"cpu": 1}),
    param_space={"x": tune.grid_search([1, 2, 3, 4])},
    tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=ASHAScheduler(max_t=4, grace_period=1)),
    run_config=tune.RunConfig(
        storage_path=folder, verbose=0, failure_config=tune.FailureConfig(max_failures=1)
    ),
).fit()
assert len(results) == 4
assert results.num_errors == 0
assert results.get_best_result().config == {"x": 4}
print("tune")
