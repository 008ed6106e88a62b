"""What clients can see of the models that malicious servers send, and how often clients refuse honest models.

    python studies/conspicuous.py [--data-dir FOLDER] [--only TEXT] [--page]

Measures honest networks at random weights and after some rounds, and the same networks as malicious servers send them, with
batches of clients. Writes conspicuous.csv and conspicuous.md to results/servers; with `--page` only the page, from the existing
CSV. `--only` measures the rows whose name, such as `mnist, cnn`, contains the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from conspicuous_page import page_of
from shared.options import checked, parser
from shared.rows import store_of
from torch import Tensor

from leakbench.attack.fit_store import FitStore, fit_folder
from leakbench.attack.servers.first_layer import QuantileRows, TrapWeights
from leakbench.attack.servers.fishing import Fishing
from leakbench.attack.servers.imprint import Imprint
from leakbench.attack.servers.peftleak import PeftLeak
from leakbench.attack.servers.scale_mia import ScaleMia
from leakbench.attack.servers.seer import Seer
from leakbench.attack.servers.server import Learns, Server
from leakbench.core.rng import generator
from leakbench.core.scripts import one_line
from leakbench.core.types import Network
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.partition import Partition
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.experiment.conspicuous import seen_of
from leakbench.federated.simulate import train
from leakbench.federated.view import Knowledge, Public
from leakbench.models import build, parameters
from leakbench.models.gates import gated_biases
from leakbench.models.trainable import ALL, with_trainable
from leakbench.reproduce.choose import chosen

RESULTS = Path(__file__).parents[1] / "results" / "servers"

PICTURES = ("mnist", "cifar10", "lfw")
MODELS = ("cnn", "lenet_cpl", "mlp_1000")
OF_LEARNERS = ("cnn_fc_1024", "mlp_256")
"""Networks of the servers that learn what they send."""
ADAPTERS = "vit_tiny_patch8 adapters:r=64"
PAIRS = {
    **{f"{data}, {model}": (data, model) for data in PICTURES for model in MODELS},
    **{f"adult, {model}": ("adult", model) for model in ("mlp", "mlp_sigmoid")},
    **{f"mnist, {model}": ("mnist", model) for model in OF_LEARNERS},
    f"cifar10, {ADAPTERS}": ("cifar10", ADAPTERS),
}
"""{name: (data set, network and, after a space, what is trained of it)}."""
SIZES, LARGE = (1, 8, 32), {"mlp_256": 64}
"""The batch sizes, and one more for the network of `seer`, which is measured with it on other pages."""

NETWORKS, HONEST, LIED = 20, 80, 20
"""How many honest networks at random weights; over how many batches in all, as of a trained one; how many batches of a lie."""

SLOW = {ADAPTERS: 20}
"""{network: its number of batches of honest networks, and none after training}, for a network with slow gradients."""

COHORT, STEPS, ROUNDS = 10, 20, 10
"""How the networks are trained: clients a round, local iterations, rounds; the rest as the data set's recipe says."""

SEED = 0


def lies(data: str, model: str) -> dict[str, Server]:
    """Return {name: server} of those that can rewrite a network."""
    if model == "cnn":
        return {
            "imprint, sparse": Imprint(),
            "imprint, cumulative": Imprint(form="cumulative"),
            "fishing": Fishing(of=0),
        }
    if model == "mlp_1000":
        return {"trap": TrapWeights(s=0.7 if data == "mnist" else 0.95), "quantile_rows": QuantileRows()}
    of_others: dict[str, dict[str, Server]] = {
        "cnn_fc_1024": {"scale_mia": ScaleMia()},
        "mlp_256": {"seer": Seer()},
        ADAPTERS: {"peftleak": PeftLeak()},
    }
    return of_others.get(model, {})


def fresh(model: str, data: Dataset, number: int) -> Network:
    """Return an honest network at random weights."""
    name, _, trained = model.partition(" ")
    built = build(name, data.shape, data.classes, generator(SEED, "model", number))
    built = with_trainable(built, trained or ALL, generator(SEED, "trainable", number), data.shape)
    return Network(built, parameters(built))


def sent_by(server: Server, network: Network, public: Public, size: int) -> Network:
    """Return the network that a malicious server sends to clients with batches of a size."""
    given = (network, public, Knowledge(examples=size), generator(SEED, "server"))
    sent, _ = server.learn(*given, FitStore(fit_folder())) if isinstance(server, Learns) else server(*given)
    return sent


def after_rounds(model: str, data: Dataset, federation: Federation, partition: Partition) -> Network:
    """Return the network as an undefended federation has trained it."""
    undefended = Defense(title="none", cite="none", unit="example")
    network = fresh(model, data, 0)
    for done in train(network, data, partition, federation, undefended, SEED):
        network = dataclasses.replace(network, parameters=done.parameters)
    return network


def batches(partition: Partition, size: int, many: int, whose: str) -> Iterator[Tensor]:
    """Yield the examples (B,) of clients drawn at random, a batch each."""
    rng = generator(SEED, whose, size)
    for _ in range(many):
        own = partition.indices[int(torch.randint(len(partition.indices), (), generator=rng))]
        yield own[torch.randperm(len(own), generator=rng)[:size]]


def looked_at(networks: list[Network], data: Dataset, drawn: Iterator[Tensor]) -> Iterator[dict[str, float]]:
    """Yield the statistics of each batch, to four digits, in turn of one network after another."""
    gates = gated_biases(networks[0].model, data.shape)
    for number, own in enumerate(drawn):
        network = networks[number % len(networks)]
        found = seen_of(network, data.train_inputs[own], data.train_targets[own], gates)
        yield {name: float(f"{value:.4g}") for name, value in found.items()}


def measure(name: str, data_dir: Path | None) -> pd.DataFrame:
    """Return a row a batch of one network on one data set: honest and lied, before and after training, at each batch size."""
    dataset, model = PAIRS[name]
    _, recipe, data = load_dataset(dataset, data_dir)
    federation = dataclasses.replace(recipe.federation, clients_per_round=COHORT, local_iterations=STEPS, rounds=ROUNDS)
    rng = generator(SEED, "partition")
    partition = federation.partition(data.train_targets, federation.clients, federation.examples_per_client, rng)
    start = [fresh(model, data, number) for number in range(NETWORKS)]
    by_rounds = {0: start}
    if model not in SLOW:
        by_rounds[ROUNDS] = [after_rounds(model, data, federation, partition)]
    public = Public(data.public_inputs, data.public_targets)
    rows: list[dict[str, Any]] = []
    for rounds, networks in by_rounds.items():
        for size in (*SIZES, *([LARGE[model]] if model in LARGE else [])):
            key = {"dataset": dataset, "model": model, "rounds": rounds, "batch": size}
            seen = looked_at(networks, data, batches(partition, size, SLOW.get(model, HONEST), "honest"))
            rows += [{**key, "server": "honest", **each} for each in seen]
            for server, lie in lies(dataset, model).items():
                sent = sent_by(lie, networks[0], public, size)
                seen = looked_at([sent], data, batches(partition, size, LIED, "lied"))
                rows += [{**key, "server": server, **each} for each in seen]
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, and write the page."""
    given = checked(parser(__doc__, "--data-dir", "--only", "--page").parse_args())
    torch.set_num_threads(1)
    store = store_of(RESULTS / "conspicuous.csv")
    if not given.page:
        rows = store.read() if store.path.exists() else pd.DataFrame()
        for name in chosen(PAIRS, given.only):
            found = measure(name, given.data_dir)
            if len(rows):
                rows = rows[(rows["dataset"] + ", " + rows["model"]) != name]
            rows = pd.concat([rows, found], ignore_index=True)
            store.write(rows)
            print(f"{name}: {len(found)} batches", flush=True)
    (RESULTS / "conspicuous.md").write_text(page_of(store.existing.read()))


if __name__ == "__main__":
    one_line(main)
