"""Real filters of NVFlare as transforms, and the filter that records updates: pytest -m nvflare."""

import json

import numpy as np
import pytest
import torch
from command_line import called
from safetensors.numpy import load_file

from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Signal
from leakbench.defense.frameworks import NVFlareFilter

pytest.importorskip("nvflare", reason="no nvflare; pip install 'leakbench[nvflare]'")
pytestmark = [pytest.mark.nvflare, pytest.mark.filterwarnings("ignore")]

PERCENTILE = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
SVT = "nvflare.app_common.filters.svt_privacy.SVTPrivacy"
CLOCK = Clock(0, 0, 1, 1)


def updates(lanes=2, scale=1.0):
    rng = torch.Generator().manual_seed(0)
    shapes = {"w": (30, 4), "b": (7,)}
    return Signal({n: scale * torch.randn(lanes, 1, *shape, generator=rng) for n, shape in shapes.items()})


def flat(grads):
    return torch.cat([g.flatten(2) for g in grads.values()], 2)[:, 0]


def percentile(update, share, gamma, steps):
    """Shokri and Shmatikov as NVFlare reads them: coordinates of a step's update below a quantile are zero, the others clipped."""
    by_step = update / steps
    cutoff = np.quantile(np.abs(by_step), share)
    return steps * np.where(np.abs(by_step) < cutoff, 0.0, np.clip(by_step, -gamma, gamma))


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("share", "gamma"), [(0.0, 0.1), (0.5, 0.2), (0.9, 9.0)])
def test_the_percentile_filter_is_that_of_its_description(steps, share, gamma):
    before = updates()
    part = NVFlareFilter(filter=PERCENTILE, arguments={"percentile": 100 * share, "gamma": gamma})
    after = part(before, Clock(0, 0, 1, steps), generators(0, "noise", [(0,), (1,)]))
    for mine, theirs in zip(flat(before.grads).double().numpy(), flat(after.grads).numpy(), strict=True):
        np.testing.assert_allclose(theirs, percentile(mine, share, gamma, steps), rtol=1e-5, atol=1e-7)


def test_noise_is_the_lane_s_own_and_the_process_s_generators_go_on():
    part = NVFlareFilter(filter=SVT, arguments={"epsilon": 10.0, "gamma": 1.0, "noise_var": 10.0, "fraction": 0.5})
    before = updates()
    np.random.seed(5)
    torch.manual_seed(5)
    expected = np.random.rand(), torch.rand(1)
    np.random.seed(5)
    torch.manual_seed(5)
    both = part(before, CLOCK, generators(0, "noise", [(0,), (1,)]))
    assert np.random.rand() == expected[0] and torch.equal(torch.rand(1), expected[1])
    again = part(before, CLOCK, generators(0, "noise", [(0,), (1,)]))
    assert torch.equal(flat(both.grads), flat(again.grads))
    second = Signal({n: g[1:] for n, g in before.grads.items()})
    alone = part(second, CLOCK, generators(0, "noise", [(1,)]))
    assert torch.equal(flat(alone.grads)[0], flat(both.grads)[1])
    other = part(before, CLOCK, generators(1, "noise", [(0,), (1,)]))
    assert not torch.equal(flat(other.grads), flat(both.grads))


def test_parameters_that_are_not_sent_are_zero():
    path = "nvflare.app_common.filters.exclude_vars.ExcludeVars"
    for arguments in ({"exclude_vars": "^b"}, {"exclude_vars": ("b",)}):  # A recipe's list is read as a tuple.
        before = updates()
        after = NVFlareFilter(filter=path, arguments=arguments)(before, CLOCK, None)
        assert torch.equal(after.grads["w"], before.grads["w"]) and not after.grads["b"].any()


def test_an_attacker_can_differentiate_through_a_filter_without_noise():
    before = updates()
    leaves = {n: g.clone().requires_grad_() for n, g in before.grads.items()}
    part = NVFlareFilter(filter=PERCENTILE, arguments={"percentile": 50, "gamma": 0.8})
    after = part(Signal(leaves), CLOCK, None)
    drawn = part(before, CLOCK, generators(0, "noise", [(0,), (1,)]))
    torch.testing.assert_close(flat(after.grads), flat(drawn.grads))
    sum(g.sum() for g in after.grads.values()).backward()
    slopes, sizes = flat({n: g.grad for n, g in leaves.items()}), flat(before.grads).abs()
    sent = flat(drawn.grads) != 0
    assert 0.4 < sent.float().mean() < 0.6
    torch.testing.assert_close(slopes[sent], (0.8 / sizes[sent]).clamp_max(1.0))
    assert not slopes[~sent].any()


def test_a_filter_that_draws_changes_nothing_for_the_attacker():
    before = updates()
    part = NVFlareFilter(filter=SVT, arguments={"epsilon": 10.0, "gamma": 1.0})
    assert torch.equal(flat(part(before, CLOCK, None).grads), flat(before.grads))


def test_what_the_attacker_runs_explains_the_update_of_the_truth():
    before = updates()
    part = NVFlareFilter(filter=PERCENTILE, arguments={"percentile": 90, "gamma": 1.5})
    sent = part(before, CLOCK, None)
    seen = {n: g[:, 0] for n, g in sent.grads.items()}
    # Another update of the attacker has other largest coordinates; it takes the observed ones.
    guess = Signal({n: torch.full_like(g, 0.1) for n, g in before.grads.items()})
    guessed = part.on_a_guess(seen)(guess, CLOCK, None)
    assert torch.equal(flat(guessed.grads) != 0, flat(sent.grads) != 0)
    torch.testing.assert_close(flat(part.on_a_guess(seen)(before, CLOCK, None).grads), flat(sent.grads))


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("nvflare.apis.dxo.DXO", {}, "expected a subclass of nvflare.apis.filter.Filter"),
        ("nvflare.apis.dxo.copy.deepcopy", {}, "expected a subclass of nvflare.apis.filter.Filter"),
        (f"{PERCENTILE}y", {}, "cannot be imported"),
        (PERCENTILE, {"percent": 3}, "arguments: .*unexpected keyword argument 'percent'"),
    ],
)
def test_other_classes_and_arguments_are_refused_in_one_line(path, arguments, message):
    with pytest.raises(InputError, match=message) as raised:
        NVFlareFilter(filter=path, arguments=arguments)(updates(), CLOCK, None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", [PERCENTILE, SVT])
def test_no_epsilon_follows_and_the_ledger_says_why(tmp_path, monkeypatch, capsys, path):
    recipe = tmp_path / "filtered.yaml"
    recipe.write_text(f"title: t\ncite: c\nunit: client\nclient: [{{nvflare_filter: {{filter: {path}}}}}]\n")
    code, out, err = called(monkeypatch, capsys, "epsilon", "--defense", str(recipe), "--dataset", "digits", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["valid"] is None
    assert (
        told["reason"] == f"none: no epsilon follows from code that is not read: {path.rpartition('.')[2]} of NVFlare"
    )


def tapped(folder, kind, arrays, chain=None, site="site-1", number=2):
    from nvflare.apis.dxo import DXO  # noqa: PLC0415
    from nvflare.apis.fl_constant import ReservedKey  # noqa: PLC0415
    from nvflare.apis.fl_context import FLContext  # noqa: PLC0415

    from leakbench.frameworks import UpdateTapFilter  # noqa: PLC0415

    context, tap = FLContext(), UpdateTapFilter(str(folder))
    context.put(ReservedKey.IDENTITY_NAME, site, private=False, sticky=False)
    if chain:
        tap.set_prop("__chain_type", chain)
    shareable = DXO(kind, dict(arrays)).to_shareable()
    shareable.set_header("current_round", number)
    return tap.process(shareable, context)


def test_the_tap_writes_what_passes_and_changes_nothing(tmp_path):
    from nvflare.apis.dxo import from_shareable  # noqa: PLC0415

    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1], "b": np.float32(3.0).reshape(())}
    for kind, chain, name in (
        ("WEIGHTS", "task_data", "before"),
        ("WEIGHT_DIFF", "task_result", "update"),
        ("WEIGHTS", None, "after"),
    ):
        passed = from_shareable(tapped(tmp_path, kind, arrays, chain)).data
        file = tmp_path / "round2" / name / "site-1.safetensors"
        assert file.stat().st_mode & 0o777 == 0o600
        for one in (passed, load_file(file)):
            assert one.keys() == arrays.keys() and all(np.array_equal(one[n], a) for n, a in arrays.items())


def test_a_site_s_name_is_not_a_path(tmp_path):
    tapped(tmp_path / "leaks", "WEIGHT_DIFF", {"w": np.ones(1, np.float32)}, site="../../etc/x y")
    assert [p.name for p in (tmp_path / "leaks" / "round2" / "update").iterdir()] == ["______etc_x_y.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["leaks"]


def test_an_error_of_the_filter_is_one_line():
    part = NVFlareFilter(filter=PERCENTILE, arguments={"percentile": "abc", "gamma": 0.1})
    with pytest.raises(InputError, match=r"nvflare_filter: its code raised .*; check its arguments") as raised:
        part(updates(), CLOCK, None)
    assert "\n" not in str(raised.value)
