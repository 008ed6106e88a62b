"""The closed forms of vision transformers are exact where tokens are few, and say where they are not."""

import dataclasses

import pytest
import torch
from torch import Tensor

from leakbench.attack.doubts import RANK
from leakbench.attack.methods.april import April
from leakbench.attack.methods.patch_embedding import PatchEmbedding, unmixed
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters
from leakbench.models.initialise import initialise, torch_default
from leakbench.models.vision_transformer import PlainBlock, vision_transformer

V, SHAPE, CLASSES = 3, (3, 12, 12), 4


def view(
    plain: bool = False, width: int = 60, examples: int = 1, stations: Stations | None = None, patch: int = 4
) -> tuple[View, Tensor]:
    """Return the leak of V victims at a small transformer with 9 patches of 48 numbers, and their inputs."""
    model = vision_transformer("vit", SHAPE, CLASSES, patch=patch, width=width, depth=2, heads=2, plain=plain)
    model = initialise(model, torch_default, generator(0, "model")).double().eval()
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(V, 1, 1, examples, *SHAPE, generator=rng).double()
    y = one_hot(torch.randint(CLASSES, (V, 1, 1, examples), generator=rng), CLASSES).double()
    network = Network(model, parameters(model))
    update = leak("type-1", network, x, y, 0.1, stations or Stations(), Clock(0, 0, 1, 1), None)
    return View("type-1", network, update, examples, SHAPE, CLASSES, 0.1), x[:, 0, 0]


def rngs() -> tuple[torch.Generator, ...]:
    return generators(0, "v", [(v,) for v in range(V)])


def test_the_embedding_gives_the_patches_behind_norms_and_shortcuts() -> None:
    for plain in (False, True):
        shown, x = view(plain)
        answer = PatchEmbedding(rank=1e-12)((shown,), rngs())
        torch.testing.assert_close(answer.inputs, x, rtol=0, atol=1e-6)
        assert not answer.doubts[RANK].any()
        assert PatchEmbedding().applies(shown)


def test_april_gives_the_tokens_of_an_attention_without_norm_or_shortcut() -> None:
    shown, x = view(plain=True)
    answer = April(rank=1e-12)((shown,), rngs())
    torch.testing.assert_close(answer.inputs, x, rtol=0, atol=1e-6)
    assert not answer.doubts[RANK].any()
    other, _ = view(plain=False)
    with pytest.raises(InputError, match="april reads an attention whose inputs are the tokens themselves"):
        April()((other,), rngs())


def test_too_few_equations_have_the_doubt() -> None:
    """36 patches of 12 numbers, but tokens of 20; and an embedding that 30 numbers of a token do not determine."""
    shown, x = view(width=20, patch=2)
    answer = PatchEmbedding()((shown,), rngs())
    assert answer.doubts[RANK].all()
    assert (answer.inputs - x).square().mean() > 1e-4
    narrow, _ = view(plain=True, width=30)
    assert April(rank=1e-12)((narrow,), rngs()).doubts[RANK].all()
    torch.testing.assert_close(
        PatchEmbedding(rank=1e-12)((narrow,), rngs()).inputs, x, rtol=0, atol=1e-6
    )  # The embedding's own gradient needs no inverse of it.


def test_a_clip_of_the_whole_update_changes_nothing_and_one_of_layers_the_brightness() -> None:
    shown, x = view(stations=Stations(example=(ClipWhole(norm=1e-3),)))
    torch.testing.assert_close(PatchEmbedding(rank=1e-12)((shown,), rngs()).inputs, x, rtol=0, atol=1e-6)
    layers, _ = view(stations=Stations(example=(ClipLayers(norm=1e-3),)))
    scaled = PatchEmbedding(rank=1e-12)((layers,), rngs()).inputs
    assert (scaled - x).abs().max() > 0.01
    assert torch.isfinite(scaled).all()


def test_noise_spoils_both() -> None:
    shown, x = view(plain=True)
    rng = torch.Generator().manual_seed(2)
    noise = {
        n: u.square().mean().sqrt() * torch.randn(u.shape, generator=rng).double() for n, u in shown.update.items()
    }
    for method in (PatchEmbedding(), April()):
        errors = []
        for share in (0.0, 1e-8, 1.0):
            update = {n: u + share * noise[n] for n, u in shown.update.items()}
            answer = method((dataclasses.replace(shown, update=update),), rngs())
            errors.append(float((answer.inputs - x).square().mean().sqrt()))
        assert errors[0] <= errors[1] + 1e-9
        assert errors[1] < 0.1 < errors[2]


def test_several_examples_and_other_networks_are_refused() -> None:
    two, _ = view(examples=2)
    with pytest.raises(InputError, match="patch_embedding reads the gradient of one example, got an update of 2"):
        PatchEmbedding()((two,), rngs())
    assert not PatchEmbedding().applies(two)
    plain, _ = view(plain=True, examples=2)
    with pytest.raises(InputError, match="april reads the gradient of one example"):
        April()((plain,), rngs())
    one, _ = view()
    mlp = build("mlp", SHAPE, CLASSES, generator(0, "m"))
    other = dataclasses.replace(one, network=Network(mlp, parameters(mlp)))
    for method in (PatchEmbedding(), April()):
        with pytest.raises(InputError, match="--leak-model vit_tiny"):
            method((other,), rngs())
    frozen = {n: p for n, p in one.network.parameters.items() if n != "patches.positions"}
    unread = dataclasses.replace(one, network=dataclasses.replace(one.network, parameters=frozen))
    with pytest.raises(InputError, match="trained embedding of patches"):
        PatchEmbedding()((unread,), rngs())


def test_the_solution_is_the_shortest_one() -> None:
    """Four unknown rows that two equations determine; a delta of zeros and numbers that are not finite give NaN."""
    rng = torch.Generator().manual_seed(0)
    delta, x = torch.randn(3, 4, 2, generator=rng).double(), torch.randn(3, 4, 5, generator=rng).double()
    gradient = delta.mT @ x
    shortest, lacking = unmixed(delta, gradient, 1e-12)
    torch.testing.assert_close(shortest, torch.linalg.lstsq(delta.mT, gradient, driver="gelsd").solution)
    assert lacking.all()
    delta[0], gradient[1, 0, 0] = 0.0, torch.nan
    unread, lacking = unmixed(delta, gradient, 1e-12)
    assert unread[:2].isnan().all() and unread[2].isfinite().all()
    assert lacking.tolist() == [False, False, True]


def test_a_plain_block_is_a_block_without_its_first_norm_and_shortcuts() -> None:
    block, x = PlainBlock(12, 2), torch.rand(2, 5, 12)
    torch.testing.assert_close(block(x), block.mlp(block.norm2(block.attention(x))))
