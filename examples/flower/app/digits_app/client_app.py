"""The client: it trains, and what it sends passes a defense; the taps are what leakbench adds to watch it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from torch import nn, optim

from digits_app.task import batches, build
from leakbench.flower import DefenseMod, StepProbeMod, UpdateTapMod, observe


def tapped(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Write what leaves the client (type-1), and what it trained by (type-2), where the app's config says so."""
    folder = str(context.run_config["tap-dir"])
    if not folder:
        return call_next(message, context)
    inner: ClientAppCallable = lambda m, c: StepProbeMod(folder)(m, c, call_next)  # noqa: E731
    return UpdateTapMod(folder)(message, context, inner)


def defended(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Apply the defense that the app's config names; a Mod is made at import, where the config is not known yet."""
    return DefenseMod(str(context.run_config["defense"]), seed=0)(message, context, call_next)


app = ClientApp(mods=[tapped, defended])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take some steps of SGD."""
    config, net = context.run_config, build()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = optim.SGD(net.parameters(), lr=float(config["learning-rate"]))
    where = (int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    number = int(message.content["config"]["server-round"])
    steps, batch = int(config["local-steps"]), int(config["batch"])
    for x, y in batches(*where, number, steps, batch):
        observe(x, y, net, nn.functional.cross_entropy)  # For leakbench; nothing where no probe listens.
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": steps * batch})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
