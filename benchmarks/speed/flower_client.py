"""The client of a Flower app for the private round, in a separate module, since Ray's processes import it by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.speed.plain import Step, local_training
from benchmarks.speed.task import BATCH, HELD, BenchTask, fresh_model, task
from benchmarks.speed.ways import private_step
from leakbench.engine.memory import keep_freed_memory

__all__ = ["client_app"]


@lru_cache(maxsize=1)
def _at_hand(way: str) -> tuple[BenchTask, nn.Module, Step]:
    """Return the data, a model and its local iteration, which a process of Ray creates once."""
    keep_freed_memory()
    torch.set_num_threads(1)  # One core per client, as in Ray's resources.
    return (task(1, 1), *private_step(way, fresh_model()))


def _train(message: Message, context: Context) -> Message:
    config: Any = message.content["config"]
    arrays: Any = message.content["arrays"]
    made, model, step = _at_hand(str(config["way"]))
    inputs, labels = made.held(int(context.node_config["partition-id"]))
    local_training(model, arrays.to_torch_state_dict(), step, inputs, labels, BATCH, int(config["iterations"]))
    trained = {n: p.detach() for n, p in model.named_parameters()}
    counted = MetricRecord({"num-examples": HELD})
    return Message(content=RecordDict({"arrays": ArrayRecord(trained), "metrics": counted}), reply_to=message)


def client_app() -> ClientApp:
    """Return the client."""
    app = ClientApp()
    app.train()(_train)
    return app
