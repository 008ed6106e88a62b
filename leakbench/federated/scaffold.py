"""SCAFFOLD: control variates of the server and of each client (Karimireddy et al., ICML 2020, Algorithm 1, option II).

A client adds c - c_i to each gradient. After the round, its control variate is c_i+ = c_i - c + (x - y_i) / (L * learning_rate).
Both are computed from what was released anyway: c_i+ from the update after the `client` station, as the server receives it, and c
from the step of the global model, after the noise of the server. So the second message of a client, c_i+ - c_i, is a function of
its update and of c, and shows an attacker of this update nothing new: it is the mean of the directions of the client's steps,
which an attacker that knows the learning rate computes from the update. But the client's next update shows its earlier noise
again, so that the ledger does not count the noise of other clients (`leakbench.privacy.ledger.Schedule`).

The state of all clients is in the memory of the server under `server.`, so checkpoints contain it, and neither another client nor
an attacker gets it.
"""

from __future__ import annotations

from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.types import AT_SERVER, Parameters

__all__ = ["controls_after", "corrections", "first_controls"]

OF_SERVER, OF_CLIENTS = f"{AT_SERVER}control.", f"{AT_SERVER}controls."
"""Starts of the names of c, (*p), and of all c_i, (N, *p)."""

MOST = 500_000_000
"""Largest number of coordinates of all clients' control variates: 2 GB."""


def first_controls(parameters: Parameters, clients: int) -> Parameters:
    """Return the control variates before the first round, which are zero.

    Raises:
        InputError: If those of all clients are too large for memory.
    """
    size = clients * sum(p.numel() for p in parameters.values())
    if size > MOST:
        raise InputError(
            f"algorithm: scaffold stores a control variate for each of {clients} clients, {size} numbers together, expected at most"
            f" {MOST}; lower --clients, or take a smaller --model"
        )
    ours = {f"{OF_SERVER}{n}": p.new_zeros(p.shape) for n, p in parameters.items()}
    return ours | {f"{OF_CLIENTS}{n}": p.new_zeros(clients, *p.shape) for n, p in parameters.items()}


def corrections(memory: Parameters, parameters: Parameters, clients: Tensor) -> Parameters:
    """Return c - c_i, {p: (K, *p)}, of the clients (K,)."""
    return {
        n: memory[f"{OF_SERVER}{n}"] - memory[f"{OF_CLIENTS}{n}"][clients.to(p.device)] for n, p in parameters.items()
    }


def controls_after(
    memory: Parameters, updates: Parameters, step: Parameters, clients: Tensor, cohort: int, length: float
) -> Parameters:
    """Return the control variates after a round.

    c+ = c - K_t / N * (c + step / length) is the mean of all c_i if K_t clients took part and nothing was added to their mean. It
    depends on no number but the public K_t, even if fewer clients took part.

    Args:
        memory: The control variates before the round.
        updates: {p: (1, K, *p)}, the updates that the server received.
        step: {p: (*p)}, the step of the global model.
        clients: (K,), the clients that sent the updates.
        cohort: K_t.
        length: L * learning_rate.
    """
    found: Parameters = {}
    for name, moved in step.items():
        control, controls = memory[f"{OF_SERVER}{name}"], memory[f"{OF_CLIENTS}{name}"].clone()
        where = clients.to(controls.device)
        controls[where] += -control - updates[name][0, : len(where)] / length
        found[f"{OF_CLIENTS}{name}"] = controls
        found[f"{OF_SERVER}{name}"] = control - cohort / len(controls) * (control + moved / length)
    return found
