"""Train with PyTorch: two workers average their gradients (gloo), with batches of a data set of Data."""

import tempfile

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

ray.init(log_to_driver=False)


def loop():
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=50):
            loss = torch.nn.functional.mse_loss(
                model(batch["x"].view(-1, 1).float()).view(-1), batch["y"].float()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    weight = torch.tensor([model.module.weight.item()])
    both = [torch.zeros(1), torch.zeros(1)]
    torch.distributed.all_gather(both, weight)
    assert both[0] == both[1], both
    assert loss.item() < 0.5, loss


result = TorchTrainer(
    loop,
    datasets={"train": ray.data.from_items([{"x": n / 400, "y": 3 * n / 400} for n in range(400)])},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=tempfile.mkdtemp(), name="torch"),
).fit()
assert result.error is None
print("torch")
