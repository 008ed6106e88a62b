"""Small Flower apps for the tests; imports flwr."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from leakbench.flower import observe

SHAPE, CLASSES, RATE = (1, 4, 4), 3, 0.5


def network(batch_norm: bool = False) -> nn.Module:
    """Return a small network, always at the same weights."""
    torch.manual_seed(0)
    middle: list[nn.Module] = [nn.BatchNorm1d(5)] if batch_norm else []
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), *middle, nn.Sigmoid(), nn.Linear(5, CLASSES))


def batches(client: int, number: int, steps: int = 2, batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (L, B, *s) and labels (L, B) of a client in a round."""
    rng = torch.Generator().manual_seed(1000 * number + client)
    return torch.rand(steps, batch, *SHAPE, generator=rng), torch.randint(CLASSES, (steps, batch), generator=rng)


def client(
    *mods: Any,
    build: Callable[[], nn.Module] = network,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    observes: bool = True,
    given: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]] = batches,
) -> ClientApp:
    """Return an app whose clients take some steps on random examples."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        descent = optimizer(model.parameters(), lr=RATE)
        number = int(message.content["config"].get("server-round", 1))
        for x, y in zip(*given(int(context.node_config["partition-id"]), number), strict=True):
            if observes:
                observe(x, y, model, nn.functional.cross_entropy)
            descent.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            descent.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict(content), reply_to=message)

    return app


def fed_avg(clients: int) -> FedAvg:
    """Return FedAvg of this many clients, which all train."""
    return FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)


def trained(
    grid: Any, strategy: Any, rounds: int = 1, build: Callable[[], nn.Module] = network
) -> dict[str, np.ndarray]:
    """Return the arrays after this many rounds."""
    found = strategy.start(grid=grid, initial_arrays=ArrayRecord(build().state_dict()), num_rounds=rounds)
    return {name: array.numpy() for name, array in found.arrays.items()}


def asked(node: int = 2, number: int | None = 1, arrays: dict[str, torch.Tensor] | None = None) -> Message:
    """Return a train message to a node; a grid must exist."""
    config = ConfigRecord({} if number is None else {"server-round": number})
    record = ArrayRecord(network().state_dict() if arrays is None else arrays)
    return Message(RecordDict({"arrays": record, "config": config}), node, "train")
