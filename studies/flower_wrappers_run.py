"""The runs behind `flower_wrappers.py`: one round of each of Flower's wrappers, attacked; its release, audited; its epsilons."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flower_wrappers_page import AUDITED, CLIENTS, CLIP, COUNT, DELTA, LOCAL_EPSILON, RATE, ROUNDS, Z
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from leakbench.attack import Attack
from leakbench.auditing.function import CallableRelease
from leakbench.auditing.own import audit_callable
from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.recipe import resolve
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.external.attack import attack_trace
from leakbench.external.attacker import Attacker
from leakbench.flower import InProcessGrid, ProbeStrategy, StepProbeMod, TapGrid, UpdateTapMod, attach, observe
from leakbench.flower.trace import TrainingOptions, trace_at
from leakbench.models import build


@dataclass(frozen=True)
class Wrapper:
    """A wrapper from Flower, as it is run.

    strategy: The strategy around FedAvg.  mods: The client's mods.  outgoing, behind: The change of one update before it is sent,
    and before it is aggregated, as the attacker knows it.  recipe: The same defense in the catalog, for the epsilon; None for
    `outgoing`.  sigma: Noise divided by the bound on the sum, as stated.  claim: The claimed epsilon; None for the recipe's.
    """

    name: str
    strategy: Callable[[Strategy, int], Strategy]
    mods: Callable[[], list[Mod]]
    outgoing: Defense | None
    behind: Defense | None
    recipe: str | None
    sigma: float | None
    claim: float | None = None


def wrappers() -> list[Wrapper]:
    """Return Flower's wrappers, and FedAvg without one."""

    def fixed(kind: Any) -> Callable[[Strategy, int], Strategy]:
        return lambda inner, clients: kind(inner, Z, CLIP, clients)

    def adaptive(kind: Any) -> Callable[[Strategy, int], Strategy]:
        return lambda inner, clients: kind(inner, Z, clients, initial_clipping_norm=CLIP, clipped_count_stddev=COUNT)

    def local(sensitivity: float) -> Callable[[], list[Mod]]:
        return lambda: [LocalDpMod(CLIP, sensitivity, LOCAL_EPSILON, DELTA)]

    clip, released = clipped(None), "flower_adaptive_server_as_released"
    server_fixed, client_fixed = DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping
    server_adaptive = DifferentialPrivacyServerSideAdaptiveClipping
    client_adaptive = DifferentialPrivacyClientSideAdaptiveClipping
    whole, tenth = local_z(CLIP), local_z(CLIP / 10)
    total = ROUNDS * LOCAL_EPSILON
    return [
        Wrapper("none", lambda inner, _: inner, list, None, None, "none", None),
        Wrapper("ServerSideFixedClipping", fixed(server_fixed), list, None, clip, "flower_fixed_server", Z),
        Wrapper(
            "ClientSideFixedClipping",
            fixed(client_fixed),
            lambda: [fixedclipping_mod],
            clip,
            clip,
            "flower_fixed_server",
            Z,
        ),
        Wrapper("ServerSideAdaptiveClipping", adaptive(server_adaptive), list, None, clip, released, Z),
        Wrapper(
            "ClientSideAdaptiveClipping",
            adaptive(client_adaptive),
            lambda: [adaptiveclipping_mod],
            clip,
            clip,
            released,
            Z,
        ),
        Wrapper("LocalDpMod", lambda i, _: i, local(CLIP), clipped(whole), clipped(whole), None, whole, total),
        Wrapper(
            "LocalDpMod, sensitivity C / 10",
            lambda i, _: i,
            local(CLIP / 10),
            clipped(tenth),
            clipped(tenth),
            None,
            whole,
            total,
        ),
    ]


def as_any(record: Any) -> Any:
    """Return a record of a message, whose kind no type tells."""
    return record


def local_z(sensitivity: float) -> float:
    """Return LocalDpMod's noise over its clip."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / LOCAL_EPSILON / CLIP


def clipped(z: float | None) -> Defense:
    """Return the recipe that clips a client's update at C and, where z is given, adds noise of z C to it."""
    noise = () if z is None else (GaussianNoise(multiplier=z, to="each"),)
    return Defense(title="a clip", cite="flwr", unit="client", client=(ClipWhole(norm=CLIP), *noise))


def leaked(wrapper: Wrapper, victims: int) -> dict[str, Any]:
    """Run one round of a wrapper and return how often its victims are rebuilt at each point."""

    data = load_dataset("digits")[2]
    chosen = data.victims[torch.randperm(len(data.victims), generator=torch.Generator().manual_seed(0))[:CLIENTS]]
    app = ClientApp(mods=wrapper.mods())

    def fresh() -> torch.nn.Module:
        return build("lenet_dlg", data.shape, data.classes, torch.Generator().manual_seed(0))

    def train(message: Message, context: Context) -> Message:
        model, arrays = fresh(), as_any(message.content["arrays"])
        model.load_state_dict(arrays.to_torch_state_dict())
        mine = chosen[int(context.node_config["partition-id"])][None]
        x, y = data.train_inputs[mine], data.train_targets[mine]
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        observe(x, y, model, torch.nn.functional.cross_entropy)
        loss: Any = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    app.train()(train)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        taps = (UpdateTapMod(folder), StepProbeMod(folder))
        grid = TapGrid(InProcessGrid(attach(app, *taps), CLIENTS), folder)
        inner = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS, min_train_nodes=CLIENTS)
        strategy = wrapper.strategy(ProbeStrategy(inner, folder, "behind"), CLIENTS)
        np.random.seed(0)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(fresh().state_dict()), num_rounds=1)
        for tap, told in (("type-1", wrapper.outgoing), ("type-0", wrapper.outgoing), ("behind", wrapper.behind)):
            attacker = Attacker(resolve("attacks", Attack, "autoleak")[1], told, data)
            trace = trace_at(Path(folder), tap, 1, fresh(), data.shape, data.classes, TrainingOptions(), victims)
            if isinstance(trace, str):
                raise RuntimeError(trace)
            summary = attack_trace(trace, attacker).summary
            assert summary is not None
            names = ("asr", "asr_low", "asr_high", "null_asr", "rmse", "identified")
            found |= {f"{tap} {name}": summary[name] for name in names}
    return found


def audited(wrapper: Wrapper) -> dict[str, Any]:
    """Audit one release of a wrapper, the sum of all updates, by its own code: of four clients, what counts is one of them."""

    if wrapper.sigma is None:
        return {}
    clients, size = AUDITED, 50
    update: dict[str, Any] = {"now": None}
    app = ClientApp(mods=wrapper.mods())

    def train(message: Message, context: Context) -> Message:
        mine = np.full(size, 1e-3 * CLIP, np.float32)
        if int(context.node_config["partition-id"]) == 0:
            mine = update["now"]
        content = {"arrays": ArrayRecord([mine]), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    app.train()(train)
    grid = InProcessGrid(app, clients)

    def release(given: dict[str, Any], seed: int) -> dict[str, Any]:
        canary = given["w"].copy()
        if not canary.any():
            canary[0] = 1e-20  # A clip divides by the norm.
        update["now"] = canary
        np.random.seed(seed)
        inner = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=clients, min_train_nodes=clients)
        strategy = wrapper.strategy(inner, clients)
        sent = ArrayRecord([np.zeros(size, np.float32)])
        messages = strategy.configure_train(1, sent, ConfigRecord(), grid)
        # Flower shuffles its clients by another generator, and with them who draws which noise.
        ours = list(grid.send_and_receive(sorted(messages, key=lambda message: message.metadata.dst_node_id)))
        if not wrapper.recipe:  # Noise of one client's own: what counts is what it sends.
            return {"w": as_any(ours[0].content["arrays"])["0"].numpy()}
        arrays, _ = strategy.aggregate_train(1, ours)
        assert arrays is not None
        return {"w": clients * arrays["0"].numpy()}

    found = audit_callable(CallableRelease(release, "seed"), {"w": (size,)}, 0, DELTA, 1000, wrapper.sigma, CLIP)
    return {
        "sigma stated": wrapper.sigma,
        "sigma measured": found.sigma_measured,
        "audited": max(found.lower_bound, found.lower_bound_family or 0.0),
        "claimed once": found.claimed,
        "audit": found.verdict,
        "audit reason": found.reason,
    }


def accounted(wrapper: Wrapper) -> dict[str, Any]:
    """Return the epsilons of a wrapper over all rounds."""
    cell = prepare(
        Request(
            defense=wrapper.recipe or "none",
            dataset="digits",
            clients=CLIENTS,
            clients_per_round=CLIENTS,
            train_rounds=ROUNDS,
            local_iterations=1,
            batch=1,
        ),
        None,
    )
    defense = cell.defense if wrapper.outgoing is None or wrapper.recipe else wrapper.outgoing
    found = cell_epsilon(defense, cell.data, cell.settings, hand_out(cell), None, DELTA).as_dict()
    arrival = found["by_tap"]["type-1"]
    claimed = found["claimed"] if wrapper.claim is None else wrapper.claim
    return {"claimed": claimed, "valid": found["valid"], "valid arrival": arrival["valid"], "reason": found["reason"]}
