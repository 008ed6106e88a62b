"""Fishing on CIFAR-10: which examples of a batch of 32 it isolates, how exact their gradient is, and what AutoLeak reconstructs.

    python studies/fishing.py [--data-dir FOLDER] [--only TEXT] [--page]

Writes fishing.csv (one row per batch) and fishing.md to results/servers; with `--page` only the page, from the existing CSV.
`--only` measures the rows whose name contains the text, such as "lenet_cpl, class, unique", again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import torch
from fishing_page import NETWORKS, ROWS, name_of, page
from shared.options import checked, parser
from shared.rows import measured, store_of
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.isolation import answered
from leakbench.attack.servers.catch import Catch
from leakbench.attack.servers.fishing import Fishing
from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.answers import Reconstruction
from leakbench.core.recipe import catalog_folder, load
from leakbench.core.rng import generator, generators
from leakbench.core.scripts import one_line
from leakbench.core.types import Network, Parameters
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, Victims, public_examples, view_of
from leakbench.federated.simulate import train
from leakbench.federated.view import Knowledge, View
from leakbench.measure.closeness import eta_of
from leakbench.measure.metrics import rmse
from leakbench.models import one_hot
from leakbench.models.layers import entering
from leakbench.reproduce.choose import chosen
from leakbench.study.rows import Row

RESULTS = Path(__file__).parents[1] / "results" / "servers"
MANY = {"drawn": 100, "unique": 20, "of one class": 40}
"""Number of batches of each kind. AutoLeak gets the gradients of the first `INVERTED` that isolated one example."""
INVERTED, BATCH, OF, SEED = 8, 32, 0, 0
SOLVED = ("lenet_cpl", "mlp_relu")
"""The networks on which AutoLeak takes minutes and not hours."""


def cell_of(network: str, data_dir: Path | None) -> Cell:
    """Return the cell whose data, federation and network are used."""
    model, rounds = NETWORKS[network]
    asked = Request(
        dataset="cifar10",
        attack="fishing",
        model=model,
        leak_model=model,
        leak_batch=BATCH,
        victims=1,
        seed=SEED,
        train_rounds=rounds,
        clients_per_round=10,
    )
    return prepare(asked, data_dir)


def honest(cell: Cell, rounds: int) -> Network:
    """Return the network at its first weights, or after that many rounds."""
    model, start = fresh_network(cell, trained=rounds > 0)
    found, s = Network(model, start), cell.settings
    for now in train(found, cell.data, hand_out(cell), s.federation, cell.defense, s.seed) if rounds else ():
        found = dataclasses.replace(found, parameters=now.parameters)
        print(f"round {now.round + 1}: accuracy {now.accuracy:.3f}", flush=True)
    return found


def batches(cell: Cell, kind: str) -> Tensor:
    """Return (V, 1, 1, B) examples: as they are drawn, with one example of class c, which comes first, or all of it."""
    pool, labels = cell.data.victims, cell.data.train_targets
    mine, others = pool[labels[pool] == OF], pool[labels[pool] != OF]
    found = []
    for number in range(MANY[kind]):
        rng = generator(SEED, kind, number)

        def some(of: Tensor, many: int, rng: torch.Generator = rng) -> Tensor:
            return of[torch.randperm(len(of), generator=rng)[:many]]

        one = {"drawn": (pool, 0), "unique": (mine, 1), "of one class": (mine, BATCH)}[kind]
        first = some(one[0], one[1] or BATCH)
        found.append(torch.cat([first, some(others, BATCH - len(first))]))
    return torch.stack(found)[:, None, None]


def alike(one: Parameters, other: Parameters) -> Tensor:
    """Return (V,) cosines of gradients."""
    a, b = (torch.cat([g.flatten(1) for g in grads.values()], 1).double() for grads in (one, other))
    return nn.functional.cosine_similarity(a, b)


def caught_by(catch: Catch, plain: Network, sent: Network, inputs: Tensor, labels: Tensor, by: str) -> Tensor:
    """Return (V, B): who of the batches moves anything below the last layer, by the definition and not by the gradient."""
    if by == "class":
        return labels == OF
    row, bias = (sent.parameters[f"{catch.layer}{kind}"][OF] for kind in ("weight", "bias"))
    known = entering(plain, catch.layer, inputs.flatten(0, 1)).reshape(*labels.shape, -1)
    return (labels == OF) != (known @ row + bias > 0)


def measure(cell: Cell, plain: Network, row: str, by: str, kind: str) -> list[Row]:
    """Return a row for each batch: whom the server caught, and the cosines where that is one example of class c."""
    server = Fishing(of=OF, by=by, share=1.0 if kind == "of one class" else None)  # type: ignore[arg-type]
    public = public_examples(cell, server.public)
    sent, catch = server(plain, public, Knowledge(examples=BATCH), generator(SEED, "server"))
    indices = batches(cell, kind)
    flat = indices.flatten(1)
    inputs, labels = cell.data.train_inputs[flat], cell.data.train_targets[flat]
    caught = caught_by(catch, plain, sent, inputs, labels, by)
    mine, others = (caught & (labels == OF)).sum(1), (caught & (labels != OF)).sum(1)
    lanes = torch.arange(len(flat))
    shown, before = (shown_by(cell, at, indices, lanes) for at in (Sent(sent, catch), Sent(plain)))
    target = inputs[lanes, (caught & (labels == OF)).int().argmax(1)][:, None]
    truth = one_hot(torch.full((len(flat), 1), OF), cell.data.classes)
    alone, _ = catch.isolated(shown)
    own = dataclasses.replace(shown, batch=1).respond(target, truth)
    columns = {
        "caught": mine,
        "others": others,
        "chance": torch.full((len(flat),), catch.chance),
        "honest": alike(before.update, dataclasses.replace(before, batch=1).respond(target, truth)),
        "leaked": alike(shown.update, own),
        "isolated": alike(alone.update, alone.respond(target, truth)),
    }
    table = pd.DataFrame({name: values.numpy() for name, values in columns.items()})
    one = (mine == 1) & (others == 0)
    table.loc[~one.numpy(), ["honest", "leaked", "isolated"]] = float("nan")
    table["eta"] = eta_of(cell.data, SEED, None)
    table["rmse"] = float("nan")
    if kind != "drawn" and cell.settings.leak_model in SOLVED:
        inverted(table, shown.of(one.nonzero()[:INVERTED, 0]), target[one][:INVERTED], one)
    named = table.assign(row=row, batch=range(len(table)))
    return named[["row", "batch", *table.columns]].to_dict("records")


def shown_by(cell: Cell, sent: Sent, indices: Tensor, lanes: Tensor) -> View:
    """Return the view of a server that sent this network."""
    return view_of(cell, "type-1", 0, Victims(indices), lanes, sent)


def inverted(table: pd.DataFrame, view: View, target: Tensor, one: Tensor) -> None:
    """Write how close AutoLeak comes to the one that was caught."""
    attack = load(Attack, catalog_folder("attacks") / "autoleak.yaml")
    rngs = generators(SEED, "attack", [(v,) for v in range(view.victims)])
    found = answered(attack.method, (view,), rngs)
    assert isinstance(found, Reconstruction)
    where = table.index[one.numpy()][:INVERTED]
    table.loc[where, "rmse"] = rmse(found.inputs[:, :1], target)[:, 0].numpy()


def main() -> None:
    """Measure what is missing and write the page."""
    given = checked(parser(__doc__, "--data-dir", "--only", "--page").parse_args())
    torch.set_num_threads(1)
    names = [name_of(*row) for row in ROWS]
    store = store_of(RESULTS / "fishing.csv", names)
    rows = (store.existing if given.page else store).read()
    wanted = chosen(names, given.only)
    ready: dict[str, tuple[Cell, Network]] = {}

    def rows_of(name: str) -> list[Row]:
        network, by, kind = ROWS[names.index(name)]
        if network not in ready:
            cell = cell_of(network, given.data_dir)
            ready[network] = cell, honest(cell, NETWORKS[network][1])
        return measure(*ready[network], name, by, kind)

    if not given.page:
        missing = [name for name in wanted if given.only or name not in set(rows["row"])]
        rows = measured(store, missing, rows_of, lambda row: f"{row['caught']} {row['isolated']}")
    (RESULTS / "fishing.md").write_text(page(rows))


if __name__ == "__main__":
    one_line(main)
