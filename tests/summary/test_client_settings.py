"""The settings of the clients' training are in the summary, in the words of the report, and among what a gate compares."""

from pathlib import Path

import pytest

import leakbench
from leakbench.report.words import training
from leakbench.storage.summary import Summary

CHANGED = {
    "momentum": 0.9,
    "weight_decay": 0.01,
    "algorithm": "fedprox",
    "proximal": 0.1,
    "epochs": 2,
    "availability": "beta:5,1",
}


def test_a_run_contains_the_settings_of_its_clients(tmp_path: Path) -> None:
    result = leakbench.run(
        dataset="cancer", attack="identification", protocol="live", taps=("type-1",), train_rounds=1, victims=2,
        networks=1, candidates=4, clients=4, clients_per_round=2, examples_per_client=6, batch=3, momentum=0.9,
        weight_decay=0.01, proximal=0.1, epochs=2, availability="beta:5,1.0", out=tmp_path,
    )  # fmt: skip
    assert {name: result.summary[name] for name in CHANGED} == CHANGED
    assert result.summary["client_optimizer"] == "sgd"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"momentum": 0.9}, "momentum 0.9"),
        ({"weight_decay": 0.0005}, "weight decay 0.0005"),
        ({"algorithm": "fedprox", "proximal": 0.1}, "FedProx with proximal 0.1"),
        ({"algorithm": "scaffold"}, "SCAFFOLD"),
        ({"epochs": 2}, "2 epochs of a client"),
        ({"availability": "diurnal:0.5"}, "availability diurnal:0.5"),
        ({"client_optimizer": "adam"}, "clients step by Adam"),
    ],
)
def test_the_line_of_the_training_names_each_setting(fields: dict[str, object], words: str) -> None:
    plain = {"rounds": 3, "accuracy": 0.5, "threat": "honest", "protocol": "live", "client_optimizer": "sgd"}
    line = training(Summary.of(plain | fields))
    assert line.split(" | ")[3:] == [words]
    assert words not in training(Summary.of(plain))
