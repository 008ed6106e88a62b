"""The federation of a cell: that of the data set's recipe with the changes of a request."""

from __future__ import annotations

import dataclasses
from typing import Any

from leakbench.cell.settings import Settings
from leakbench.core.errors import InputError
from leakbench.core.request import Request
from leakbench.data.availability import written_availability
from leakbench.data.partition import partition_of
from leakbench.data.recipe import Federation
from leakbench.defense import Defense

__all__ = ["by_passes", "check_scaffold", "federation_of"]

OPTIONS = {field.name: field.name for field in dataclasses.fields(Federation)} | {"rounds": "train_rounds"}
"""{setting of a federation: the field of a request that changes it}."""


def federation_of(request: Request, plain: Federation) -> Federation:
    """Return a federation with the settings that a request has instead of the recipe's.

    Raises:
        InputError: For settings that do not fit together.
    """
    asked = {name: value for name, field in OPTIONS.items() if (value := getattr(request, field)) is not None}
    f = {name: getattr(plain, name) for name in OPTIONS} | asked
    if "clients" in asked and "clients_per_round" not in asked:
        f["clients_per_round"] = min(f["clients_per_round"], f["clients"])
    _check_counts(f, request.examples_per_person)
    f |= _local_iterations(f, "local_iterations" in asked) | _algorithm(f, "algorithm" in asked)
    if f["momentum"] and f["client_optimizer"] != "sgd":
        raise InputError(
            f"momentum: got {f['momentum']:g} with --client-optimizer {f['client_optimizer']}, expected 0, or sgd"
        )
    f["availability"] = written_availability(f["availability"])
    if f["algorithm"] == "scaffold" and (f["momentum"] or f["weight_decay"] or f["client_optimizer"] != "sgd"):
        raise InputError(
            "algorithm: scaffold takes plain SGD, whose steps its control variates average; leave --momentum, --weight-decay and"
            " --client-optimizer out"
        )
    if request.partition is not None:
        f["partition"] = partition_of(request.partition)
    return dataclasses.replace(plain, **f)


def _check_counts(f: dict[str, Any], examples_per_person: int) -> None:
    """Raise InputError if a number is larger than the one that limits it."""
    held = f["examples_per_client"]
    if f["clients_per_round"] > f["clients"]:
        raise InputError(
            f"clients-per-round: got {f['clients_per_round']}, more than there are clients ({f['clients']}); give"
            f" --clients {f['clients_per_round']} or more, or at most --clients-per-round {f['clients']}"
        )
    for name, got in (("batch", f["batch"]), ("examples-per-person", examples_per_person)):
        if got > held:
            raise InputError(
                f"{name}: got {got}, more than the {held} examples that a client holds; give at most --{name} {held},"
                f" or --examples-per-client {got} or more"
            )


def _local_iterations(f: dict[str, Any], asked: bool) -> dict[str, int]:
    """Return the numbers of epochs and of local iterations; a request for local iterations leaves the epochs out.

    Raises:
        InputError: For epochs that are not whole batches.
    """
    if asked or not f["epochs"]:
        return {"epochs": 0}
    if f["examples_per_client"] % f["batch"]:
        raise InputError(
            f"epochs: got batches of {f['batch']} and {f['examples_per_client']} examples of a client, expected a batch size that"
            " divides them; set --batch or --examples-per-client"
        )
    return {"local_iterations": f["epochs"] * (f["examples_per_client"] // f["batch"])}


def _algorithm(f: dict[str, Any], asked: bool) -> dict[str, Any]:
    """Return the algorithm, FedProx for a proximal factor alone, and the proximal factor, 0 for another algorithm.

    Raises:
        InputError: For FedProx without a proximal factor.
    """
    algorithm = "fedprox" if f["proximal"] and not asked else f["algorithm"]
    if algorithm == "fedprox" and not f["proximal"]:
        raise InputError("proximal: not given, expected a number > 0 with --algorithm fedprox, as 0.01")
    return {"algorithm": algorithm, "proximal": f["proximal"] if algorithm == "fedprox" else 0.0}


def check_scaffold(s: Settings) -> None:
    """Raise InputError for what SCAFFOLD's control variates would change, and what is not computed with them."""
    if s.federation.algorithm != "scaffold":
        return
    if s.protocol == "live" and any(s.leak_rounds):
        raise InputError(
            f"leak-rounds: got {','.join(map(str, s.leak_rounds))} with --algorithm scaffold, expected 0: later updates contain the"
            " control variates of earlier rounds, which are not attacked yet"
        )
    if s.canaries:
        raise InputError(
            f"canaries: got {s.canaries} with --algorithm scaffold, which does not audit control variates; leave one of them out"
        )


def by_passes(defense: Defense, s: Settings) -> Defense:
    """Return the defense with the batches of clients that pass over their examples.

    Raises:
        InputError: If the defense draws batches in another way, or if the leaked batch does not divide a client's examples.
    """
    f = s.federation
    if not f.epochs:
        return defense
    if defense.batches == "poisson":
        raise InputError(
            "epochs: the defense draws Poisson batches (batches: poisson), which are not passes over a client's examples; leave"
            " --epochs out, or take a defense with fixed batches"
        )
    if max(s.leak_batch, f.examples_per_client) % s.leak_batch:
        raise InputError(
            f"leak-batch: got {s.leak_batch} with --epochs, expected a divisor of a client's {f.examples_per_client} examples"
        )
    return dataclasses.replace(defense, batches="split")
