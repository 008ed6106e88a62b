"""A Flower app that misbehaves as its config's `case` says, for the client `only` or for all; leakbench must handle it."""

import sys

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from leakbench.flower import observe

SETTINGS = {
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.5},
    "maximize": {"maximize": True},
    "decay": {"weight_decay": 0.1},
    "slower": {},
}


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Sigmoid(), nn.Linear(8, 3))


def build_signed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def build_masked():
    model = build()
    model.register_buffer("mask", torch.tensor([True, False]))
    model.register_buffer("count", torch.tensor(3))
    return model


def build_lazily():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.Sigmoid(), nn.LazyLinear(3))


def build_too_large():
    return nn.Sequential(nn.Linear(99, 8), nn.LazyLinear(3))


def build_wrongly():
    raise KeyError("no such network")


def build_never():
    print("nothing to build")
    sys.exit(0)


def build_mixing():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Linear(8, 3))


NETWORKS = {"signed": build_signed, "masked": build_masked, "mixing": build_mixing}
client, server = ClientApp(), ServerApp()


def loss_of(case):
    def loss(logits, labels):
        return nn.functional.cross_entropy(logits, labels, reduction="sum" if case == "sum" else "mean")

    return loss


def optimizer_of(case, model, rate):
    if case == "groups":
        groups = [{"params": model[1].parameters(), "lr": rate / 10}, {"params": model[3].parameters()}]
        return torch.optim.SGD(groups, lr=rate)
    if case == "decay of one":
        groups = [{"params": model[1].parameters()}, {"params": model[3].parameters(), "weight_decay": 0.1}]
        return torch.optim.SGD(groups, lr=rate)
    if case == "betas":
        return torch.optim.Adam(model.parameters(), lr=rate, betas=(0.5, 0.9))
    return torch.optim.SGD(model.parameters(), lr=rate, **SETTINGS.get(case, {}))


def batch_of(case, size, rng):
    x, y = torch.rand(size, 1, 4, 4, generator=rng), torch.randint(3, (size,), generator=rng)
    if case == "nan":
        return x * float("nan"), y
    if case == "normalised":
        return (x - 0.5) / 0.25, y
    if case == "pixels":
        return x * 255, y
    return (x[:0], y[:0]) if case == "empty" else (x, y)


def stepped(loss):
    loss.backward()
    return loss


@client.train()
def train(message, context):
    config, number = context.run_config, context.node_config["partition-id"]
    case = config["case"] if config["only"] in (-1, number) else ""
    if case == "raises":
        raise ValueError("no such file")
    if case == "exits":
        sys.exit(0)
    model, rng = NETWORKS.get(case, build)(), torch.Generator().manual_seed(number)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer, loss = optimizer_of(case, model, config["rate"]), loss_of(case)
    for i in range(0 if case == "idle" else config["steps"]):
        more = {"larger": 1, "uneven": i}.get(case, 0)
        x, y = batch_of(case, config["batch"] + more, rng)
        observe(x, y[:0] if case == "unpaired" else y, model, loss)
        optimizer.zero_grad()
        if case == "closure":
            optimizer.step(lambda: stepped(loss(model(x), y)))  # noqa: B023  Called at once.
            continue
        loss(model(x), y).backward()
        optimizer.step()
        if case == "slower":
            optimizer.param_groups[0]["lr"] /= 2
    state = model.state_dict()
    if case == "short":
        del state["3.bias"]
    if case == "poisoned":
        state["1.weight"][0, 0] = float("inf")
    if case == "far":
        state["1.weight"][0] = 3e38
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    case = context.run_config["case"]
    if case == "server raises":
        raise RuntimeError("no such strategy")
    if case == "server exits":
        sys.exit(0)
    model = NETWORKS.get(case, build)()
    if case in ("weights", "far"):
        model[1].weight.data[0, 0] = float("nan") if case == "weights" else -3e38
    strategy = FedAvg(fraction_evaluate=0.0)
    rounds = context.run_config["num-server-rounds"]
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)


class Older(NumPyClient):
    def fit(self, parameters, config):
        raise ValueError("no such file")


def older_server(context):
    start = ndarrays_to_parameters([tensor.numpy() for tensor in build().state_dict().values()])
    strategy = OlderFedAvg(fraction_evaluate=0.0, initial_parameters=start)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1))


older_client, older = ClientApp(client_fn=lambda context: Older().to_client()), ServerApp(server_fn=older_server)
