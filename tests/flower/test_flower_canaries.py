"""Canary clients in a Flower app: what they send through Flower's mods, and the audit of a training from its last model."""

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'leakbench[flower]'")

from flower_apps import client, fed_avg
from flwr.app import ArrayRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from leakbench import canaries
from leakbench.core.errors import InputError
from leakbench.flower import CanaryMod, InProcessGrid, UpdateTapMod
from leakbench.flower.leaks import read_leaks
from leakbench.privacy.accountants import best
from leakbench.privacy.mechanism import Mechanism

CANARIES, OTHERS, NOISE = 100, 2, 4.0


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Sigmoid(), nn.Linear(12, 3))


def trained(noise: float, *mods, seed: int = 0) -> CanaryMod:
    """Return the canaries of one round of Flower's client-side clip to 1, with noise on the sum of all clients."""
    mod, count = CanaryMod(canaries.gradients(build(), CANARIES, seed=seed), first=OTHERS), CANARIES + OTHERS
    base, initial = fed_avg(count), ArrayRecord(build().state_dict())
    private = DifferentialPrivacyClientSideFixedClipping(
        base, noise_multiplier=noise, clipping_norm=1.0, num_sampled_clients=count
    )
    grid = InProcessGrid(client(*mods, mod, build=build), count)
    found = private.start(grid=grid, initial_arrays=initial, num_rounds=1)
    mod.score(initial, found.arrays)
    return mod


def test_an_included_canary_sends_a_clipped_far_update_and_another_one_nearly_nothing(tmp_path) -> None:
    """Buffers are as they were received, and other clients send what they trained."""
    mod = trained(1e-6, UpdateTapMod(tmp_path), fixedclipping_mod)
    sent = read_leaks(tmp_path, "type-1")
    assert [leak.partition for leak in sent] == list(range(CANARIES + OTHERS))
    names = dict(build().named_parameters())
    for leak in sent:
        moved = torch.cat([torch.from_numpy(leak.arrays[n] - leak.sent[n]).flatten() for n in names])
        number = leak.partition - OTHERS
        if number < 0:
            assert int((moved != 0).sum()) > 50
            continue
        assert float(moved.norm()) == pytest.approx(1.0 if mod.canaries.included[number] else 1e-3, rel=1e-3)
        assert int((moved != 0).sum()) == 1
        assert all((a == leak.sent[n]).all() for n, a in leak.arrays.items() if n not in names)


def test_a_sound_app_holds_and_one_without_its_mod_or_noise_is_found() -> None:
    """The claim is that of one sum with noise 4, of which each canary is a part."""
    claimed = best((Mechanism(NOISE, 1.0, 1),), 1e-5)[0]
    verdicts = [
        trained(noise, *mods).canaries.audit(claimed, unit="client", gaussian=True).verdict
        for noise, mods in ((NOISE, (fixedclipping_mod,)), (1e-6, (fixedclipping_mod,)), (NOISE, ()))
    ]
    assert verdicts == ["holds", "violated", "violated"]


def test_a_client_without_a_partition_is_refused() -> None:
    """The mod could not know which canary it is."""
    mod = CanaryMod(canaries.gradients(build(), CANARIES, seed=0), first=0)
    grid = InProcessGrid(client(mod, build=build), 1)
    grid.contexts[2].node_config.clear()
    with pytest.raises(InputError, match="canaries: a client has no partition-id"):
        fed_avg(1).start(grid=grid, initial_arrays=ArrayRecord(build().state_dict()), num_rounds=1)
