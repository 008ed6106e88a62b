"""Batch normalisation against gradient inversion: one network and the same faces, by what the attacker knows of the statistics.

    python studies/batch_norm.py [--data-dir FOLDER] [--only TEXT] [--page]

Writes batch_norm.csv (one row for each image) and batch_norm.md to results/attacks; with `--page` only the page, from the existing
CSV. Cells in the CSV are not measured again. `--only` measures the cells whose name contains the text, even if the CSV has them,
and no other cell; a name is like "B = 4, network 0, late, train, batch". A late network is trained once for all of its cells.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import torch
from batch_norm_page import BATCHES, KNOWLEDGE, NETWORKS, STAGES, STEPS, page
from shared.options import checked, parser
from shared.rows import measured, store_of
from torch import Tensor, nn

from leakbench.attack.isolation import answered
from leakbench.attack.null.pictures import null_attack
from leakbench.attack.slots.distance import Cosine
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.answers import Reconstruction
from leakbench.core.rng import generator, generators
from leakbench.core.scripts import one_line
from leakbench.core.types import Network, Parameters
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.statistics import attacker_statistics
from leakbench.experiment.victims import Sent, draw_victims, public_examples, truth, view_of
from leakbench.federated.view import View
from leakbench.measure.closeness import closeness_of, eta_of
from leakbench.models import one_hot, parameters
from leakbench.models.batch_norm import in_client_mode
from leakbench.reproduce.choose import chosen
from leakbench.study.rows import Row

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attacks"

MODEL, SEED, VICTIMS = "lenet_dlg_gelu_batch_norm", 0, 4
"""Network, seed, and number of victims of each draw of the first weights."""

RATE, EXAMPLES = 0.3, 64
"""Learning rate and batch size of the training."""


def cell_of(mode: str, statistics: str, batch: int, data_dir: Path | None) -> Cell:
    """Return the cell of one attacker and batch size; the victims of cells of a batch size are the same."""
    prior = KNOWLEDGE[mode, statistics].prior
    request = Request(
        attack=str(HERE / "recipes" / f"batch_norm_{'prior' if prior else 'none'}.yaml"),
        dataset="lfw",
        leak_model=MODEL,
        victim_mode=mode,
        statistics=statistics,
        taps=("type-1",),
        victims=VICTIMS * NETWORKS,
        networks=NETWORKS,
        leak_batch=batch,
        train_rounds=0,
        candidates=VICTIMS * NETWORKS,
        seed=SEED,
    )
    return resolve_cell(request, data_dir)


def name_of(mode: str, statistics: str, batch: int, stage: str, number: int) -> str:
    """Return the name of one cell, which `--only` selects by."""
    return f"B = {batch}, network {number}, {stage}, {mode}, {statistics}"


def trained(cell: Cell, number: int, steps: int) -> tuple[nn.Module, float]:
    """Return a network after SGD steps in train mode with the batches' own statistics, and its accuracy in eval mode.

    Args:
        cell: A cell of victims in train mode.
        number: Draw of the first weights.
        steps: Number of steps, each of a random batch of the training examples; victims are among them.
    """
    model, _ = fresh_network(cell, False, number)
    in_client_mode(model, "train")
    data, rng = cell.data, generator(SEED, "training", number)
    for _ in range(steps):
        rows = torch.randint(len(data.train_targets), (EXAMPLES,), generator=rng)
        loss = nn.functional.cross_entropy(model(data.train_inputs[rows]), data.train_targets[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.sub_(RATE * gradient)
    in_client_mode(model, "eval")
    with torch.no_grad():
        right = model(data.test_inputs).argmax(1) == data.test_targets
    return model, float(right.float().mean())


def distance_of_truth(view: View, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cosine distance (V,) between the observed update and that of the true examples in the attacker's network."""
    with torch.no_grad():
        update = view.respond(inputs, one_hot(labels, view.classes))
    return Cosine()(update, view.update, view)


def difference(some: Parameters | None, others: Parameters | None) -> float:
    """Return the distance of statistics from others over the length of the others, over all layers and victims."""
    assert some is not None and others is not None
    apart = sum(float((some[name] - others[name]).square().sum()) for name in others)
    return float((apart / sum(float(tensor.square().sum()) for tensor in others.values())) ** 0.5)


def main() -> None:
    """Measure what is missing and write the page."""
    given = checked(parser(__doc__, "--data-dir", "--only", "--page").parse_args())
    torch.set_num_threads(1)
    cells = cache(lambda mode, statistics, batch: cell_of(mode, statistics, batch, given.data_dir))
    networks = cache(lambda number, steps: trained(cells("train", "batch", 1), number, steps))

    def measure(name: str) -> list[Row]:
        mode, statistics, batch, stage, number = keys[name]
        began = time.perf_counter()
        cell, (model, accuracy) = cells(mode, statistics, batch), networks(number, STEPS[stage])
        in_client_mode(model, mode)
        network = Network(model, parameters(model))
        victims = draw_victims(cell, "type-1", 0, hand_out(cell))
        lanes = torch.arange(number, len(victims.indices), NETWORKS)
        view = view_of(cell, "type-1", 0, victims, lanes, Sent(network))
        answer = answered(cell.attack.method, (view,), generators(SEED, "attack", [(0, int(v)) for v in lanes]))
        assert isinstance(answer, Reconstruction)
        all_inputs, all_labels, examples = truth(cell, "type-1", victims)
        real, labels = all_inputs[lanes], all_labels[lanes]
        eta, closeness = eta_of(cell.data, SEED, None), closeness_of(cell.data)
        guessed = null_attack(
            cell.data.public_inputs,
            cell.data.public_targets,
            all_labels.numel(),
            all_labels.flatten(),
            eta,
            generator(SEED, "null"),
        )
        guess = guessed.guesses[guessed.best_for_rmse].reshape(all_inputs.shape)[lanes]
        order = closeness.match(answer.inputs, real)
        inputs = answer.inputs.gather(1, order[..., None, None, None].expand_as(answer.inputs))
        apart, null, at_truth = (
            closeness.distance(inputs, real),
            closeness.distance(guess, real),
            distance_of_truth(view, real, labels),
        )
        names = answer.labels.gather(1, order) == labels
        wrong = {"proxy": torch.nan, "inferred": torch.nan}
        if mode == "train":
            public = public_examples(cell)
            own, *others = (attacker_statistics(network, choice, real, public) for choice in ("given", *wrong))
            wrong = {choice: difference(other, own) for choice, other in zip(wrong, others, strict=True)}
        return [
            {
                "row": name,
                "mode": mode,
                "statistics": statistics,
                "batch": batch,
                "stage": stage,
                "network": number,
                "accuracy": accuracy if STEPS[stage] else torch.nan,
                "victim": int(lanes[v]),
                "example": int(examples[lanes[v], m]),
                "rmse": float(apart[v, m]),
                "null_rmse": float(null[v, m]),
                "eta": eta,
                "label_right": bool(names[v, m]),
                "distance": float(-answer.certainty[v, 0]),
                "distance_of_truth": float(at_truth[v]),
                **{f"error_{choice}": error for choice, error in wrong.items()},
                "iterations": int(answer.steps[v]),
                "seconds": round(time.perf_counter() - began, 1),
            }
            for v in range(len(lanes))
            for m in range(batch)
        ]

    keys = {
        name_of(mode, statistics, batch, stage, number): (mode, statistics, batch, stage, number)
        for batch in BATCHES
        for number in range(NETWORKS)
        for stage in STAGES
        for mode, statistics in KNOWLEDGE
    }
    asked, store = chosen(list(keys), given.only), store_of(RESULTS / "batch_norm.csv", list(keys))
    rows = store.existing.read() if given.page else store.read()
    if not given.page:
        missing = [name for name in asked if given.only or name not in set(rows["row"])]
        rows = measured(store, missing, measure, lambda row: f"example {row['example']}: RMSE {row['rmse']:.3f}")
    (RESULTS / "batch_norm.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
