"""Flower's own differential privacy, as its code runs: what leaks behind each wrapper, and its epsilon claimed, valid and audited.

    python results/flower_wrappers.py [--victims 20] [--page]

Needs `pip install 'leakbench[flower]'`. Each of Flower's five wrappers runs one round of its real strategy and mods on
`InProcessGrid`, of 100 clients with one digit each, and is attacked by autoleak, which knows clip and noise; then its release is
audited by calling the same code some thousand times. Writes flower_wrappers.csv and flower_wrappers.md beside itself; with
`--page` only the page, from the rows that are there.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from shared.options import parser

from leakbench.attack import Attack
from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.flower.installed import check_flwr
from leakbench.models import build
from leakbench.privacy.audit.function import CallableRelease
from leakbench.privacy.audit.own import audit_callable
from leakbench.recipe import resolve
from leakbench.run.experiment import hand_out
from leakbench.scripts import markdown_table, one_line

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod
    from flwr.serverapp.strategy import Strategy

HERE = Path(__file__).parent

CLIENTS, ROUNDS, RATE, DELTA = 100, 10, 0.1, 1e-5
CLIP, Z, COUNT = 0.1, 1.0, 5.0
"""C, which binds on all of these updates and is what an adaptive clip begins with; z; the noise on an adaptive clip's count."""

AUDITED = 4
"""How many clients a release has that is audited."""

LOCAL_EPSILON = 10.0
"""What LocalDpMod is told; with a sensitivity of C its noise is then .48 C on each update."""

TEXT = """# Flower's wrappers of differential privacy: what leaks behind each

One round of {clients} clients with one digit each (8 x 8, LeNet with sigmoids, one step at a learning rate of {rate}), by Flower's own strategies
and mods (flwr {flwr}) on `leakbench.flower.InProcessGrid`. C = {clip}, z = {z}; LocalDpMod is told epsilon = {local:g}, delta = 1e-5.
{victims} victims, ASR of `autoleak`, which knows the clip and the noise of what it reads. `arrival`: what the server receives, to the bit what the client
sent; `behind the server`: what the wrapper's clip leaves of one update, the bare sum's noise not in it.

{leaks}

A client-side wrapper clips at the client and a server-side one at the server; the noise of all four is added by the server, to the mean. Whoever reads an update before
it is summed up, at the client or at the server, sees no noise, and a clip alone hides nothing from who knows of it. Only LocalDpMod noises what a client sends.

## Epsilon

{rounds} rounds, all clients in each (q = 1), one client's update made zero, delta 1e-5. *Claimed*: by the script of Flower's documentation; of LocalDpMod {rounds} times its own epsilon, at
{rounds} times its delta. *Valid*: of the released models, and against who reads single updates on arrival. *Audited*: one release, by the wrapper's real code; noise over how far one client moves
the sum of {audited} updates, measured and as stated, and the lower bound of its epsilon at 95 % confidence.

{epsilons}

{reasons}

An update of all zeros, which stands for a client that is absent, raises ZeroDivisionError in each of them, so that the audit makes it 1e-20. The noise is drawn from NumPy's
global generator, which the audit seeds. The two fixed wrappers do what they state. The adaptive ones noise with the clip after its step, not the one that clipped, and step
it the wrong way (`flower_adaptive_server_as_released`). LocalDpMod takes its sensitivity on trust: with a tenth of its clip the noise is a tenth of what its epsilon needs.

Written by `python results/flower_wrappers.py`.
"""


@dataclass(frozen=True)
class Wrapper:
    """One wrapper of Flower's as it is run.

    strategy: around FedAvg.  mods: of the client.  outgoing, behind: what it does to one update before it is sent, and before it is
    aggregated, as the attacker knows it.  recipe: the same defense in the catalog, for the epsilon; None for one made of `outgoing`.
    sigma: noise over the bound on the sum, as stated.  claim: the epsilon that is claimed; None: the recipe's.
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
    from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
    from flwr.serverapp.strategy import (
        DifferentialPrivacyClientSideAdaptiveClipping,
        DifferentialPrivacyClientSideFixedClipping,
        DifferentialPrivacyServerSideAdaptiveClipping,
        DifferentialPrivacyServerSideFixedClipping,
    )

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
            "ClientSideFixedClipping", fixed(client_fixed), lambda: [fixedclipping_mod], clip, clip, "flower_fixed_server", Z
        ),
        Wrapper("ServerSideAdaptiveClipping", adaptive(server_adaptive), list, None, clip, released, Z),
        Wrapper(
            "ClientSideAdaptiveClipping", adaptive(client_adaptive), lambda: [adaptiveclipping_mod], clip, clip, released, Z
        ),
        Wrapper("LocalDpMod", lambda i, _: i, local(CLIP), clipped(whole), clipped(whole), None, whole, total),
        Wrapper(
            "LocalDpMod, sensitivity C / 10", lambda i, _: i, local(CLIP / 10), clipped(tenth), clipped(tenth), None, whole, total
        ),
    ]


def local_z(sensitivity: float) -> float:
    """Return LocalDpMod's noise over its clip."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / LOCAL_EPSILON / CLIP


def clipped(z: float | None) -> Defense:
    """Return the recipe that clips a client's update at C and, where z is given, adds noise of z C to it."""
    noise = () if z is None else (GaussianNoise(multiplier=z, to="each"),)
    return Defense(title="a clip", cite="flwr", unit="client", client=(ClipWhole(norm=CLIP), *noise))


def leaked(wrapper: Wrapper, victims: int) -> dict[str, Any]:
    """Run one round of a wrapper and return how often its victims are rebuilt at each point."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from leakbench.flower import InProcessGrid, ProbeStrategy, StepProbeMod, TapGrid, UpdateTapMod, attach, observe
    from leakbench.flower.attacked import Attacker, attack_seen
    from leakbench.flower.seen import seen_at
    from leakbench.flower.training import Unknown

    data = load_dataset("digits")[2]
    chosen = data.victims[torch.randperm(len(data.victims), generator=torch.Generator().manual_seed(0))[:CLIENTS]]
    app = ClientApp(mods=wrapper.mods())

    def fresh() -> torch.nn.Module:
        return build("lenet_dlg", data.shape, data.classes, torch.Generator().manual_seed(0))

    def train(message: Message, context: Context) -> Message:
        model, arrays = fresh(), message.content["arrays"]
        model.load_state_dict(arrays.to_torch_state_dict())  # type: ignore[union-attr]
        mine = chosen[int(context.node_config["partition-id"])][None]
        x, y = data.train_inputs[mine], data.train_targets[mine]
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        observe(x, y, model, torch.nn.functional.cross_entropy)
        torch.nn.functional.cross_entropy(model(x), y).backward()
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
            seen = seen_at(Path(folder), tap, 1, fresh(), data.shape, data.classes, Unknown(), victims)
            if isinstance(seen, str):
                raise RuntimeError(seen)
            summary = attack_seen(seen, attacker).summary
            assert summary is not None
            names = ("asr", "asr_low", "asr_high", "null_asr", "rmse", "identified")
            found |= {f"{tap} {name}": summary[name] for name in names}
    return found


def audited(wrapper: Wrapper) -> dict[str, Any]:
    """Audit one release of a wrapper, the sum of all updates, by its own code: of four clients, what counts is one of them."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from leakbench.flower import InProcessGrid

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
            return {"w": ours[0].content["arrays"]["0"].numpy()}  # type: ignore[index, union-attr]
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


def number(value: Any, digits: int = 2) -> str:
    """Return a number for the page; `none` where there is none."""
    return "none" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def page(rows: pd.DataFrame) -> str:
    """Return the page for these rows."""
    taps = {"type-1": "type-1 (sent)", "type-0": "type-0 (arrival)", "behind": "behind the server"}
    heads = ["wrapper", *(f"ASR, {called}" for called in taps.values()), "null ASR", "identified, type-1"]
    leaks = [
        [
            row["wrapper"],
            *(f"{row[f'{t} asr']:.2f} [{row[f'{t} asr_low']:.2f}, {row[f'{t} asr_high']:.2f}]" for t in taps),
            number(row["type-1 null_asr"]),
            number(row["type-1 identified"]),
        ]
        for _, row in rows.iterrows()
    ]
    guarded = rows[rows["sigma stated"].notna()]
    columns = ["claimed", "valid", "valid arrival", "sigma stated", "sigma measured", "claimed once", "audited"]
    shown = ["claimed", "valid, released", "valid, arrival", "sigma stated", "measured", "claimed for one", "audited of one", "verdict"]
    epsilons = [
        [row["wrapper"], *(number(row[c]) for c in columns), row["audit"]] for _, row in guarded.iterrows()
    ]
    reasons = [f"- {row['wrapper']}: valid: {row['reason']}; audit: {row['audit reason']}." for _, row in guarded.iterrows()]
    return TEXT.format(
        clients=CLIENTS,
        audited=AUDITED,
        rounds=ROUNDS,
        rate=RATE,
        clip=CLIP,
        z=Z,
        local=LOCAL_EPSILON,
        flwr=rows["flwr"].iloc[0],
        victims=int(rows["victims"].iloc[0]),
        leaks=markdown_table(heads, leaks),
        epsilons=markdown_table(["wrapper", *shown], epsilons),
        reasons="\n".join(reasons),
    )


def main() -> None:
    """Measure what is asked for and write the rows and the page."""
    asked = parser(__doc__, "--page")
    asked.add_argument("--victims", type=int, default=20, help="attacked at each point [default: 20]")
    given = asked.parse_args()
    if not given.page:
        check_flwr()
        import logging
        from importlib.metadata import version

        import flwr.serverapp  # noqa: F401 - sets its logger's level as it is imported

        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        rows = []
        for wrapper in wrappers():
            leak = leaked(wrapper, given.victims)
            rows.append({"wrapper": wrapper.name, "victims": given.victims, **leak, **accounted(wrapper), **audited(wrapper)})
            rows[-1]["flwr"] = version("flwr")
            print(f"{wrapper.name}: {rows[-1]}", flush=True)
        pd.DataFrame(rows).to_csv(HERE / "flower_wrappers.csv", index=False, float_format="%.6g")
    written = page(pd.read_csv(HERE / "flower_wrappers.csv"))
    (HERE / "flower_wrappers.md").write_text(written, encoding="utf-8")
    print(written)


if __name__ == "__main__":
    one_line(main)
