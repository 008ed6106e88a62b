"""A search starts from the reconstruction of a closed form, and autoleak tries closed forms before its stages."""

import dataclasses

import pytest
import torch
from torch import nn

from leakbench.attack import Attack
from leakbench.attack.slots.start import START
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from tests.attack import test_patch_embedding, test_r_gap

RECIPE = {
    "title": "t",
    "cite": "c",
    "method": {
        "gradient_matching": {
            "labels": "last_layer",
            "start": {"reconstructed": {"method": "patch_embedding"}},
            "distance": "squared_l2",
            "descent": "lbfgs",
            "stop": {"iterations": {"limit": 1}},
        }
    },
}


def test_a_search_starts_from_a_closed_form() -> None:
    """The start is the reconstruction itself; where there is none, it is the value."""
    shown, x = test_patch_embedding.view()
    rngs = test_patch_embedding.rngs()
    attack = construct(Attack, RECIPE)
    assert attack.needs.alone and attack.needs.kinds == ("image",)
    start = attack.method.start
    torch.testing.assert_close(start(shown, rngs), x, rtol=0, atol=1e-6)
    lost = {n: torch.full_like(u, torch.nan) for n, u in shown.update.items()}
    assert (start(dataclasses.replace(shown, update=lost), rngs) == 0.5).all()


def test_searches_are_not_starts() -> None:
    assert "reconstructed" in START.parts
    wrong = {"reconstructed": {"method": "autoleak"}}
    method = {"gradient_matching": RECIPE["method"]["gradient_matching"] | {"start": wrong}}
    with pytest.raises(InputError, match="autoleak"):
        construct(Attack, RECIPE | {"method": method})


def test_autoleak_tries_closed_forms_first_where_they_apply() -> None:
    autoleak = resolve("attacks", Attack, "autoleak")[1].method
    for shown, x, rngs, name in (
        (*test_patch_embedding.view(), test_patch_embedding.rngs(), "patch embedding"),
        (*test_r_gap.view(test_r_gap.chain(nn.LeakyReLU(0.2))), test_r_gap.rngs(), "r gap"),
    ):
        answer = autoleak((shown,), rngs)
        assert answer.stages == (name,)
        torch.testing.assert_close(answer.inputs, x, rtol=0, atol=1e-6)
        assert not answer.doubts
    other, _ = test_r_gap.view(test_r_gap.chain(nn.Sigmoid()))
    assert all(type(m).__name__ != "RGap" for m in autoleak._stages(other))
