"""`leakbench run`, `epsilon` and `audit` with extreme numbers: a table without NaN, or one line and exit code 2."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from leakbench import cli
from tests.reliability.tally import Tally

__all__ = ["called", "try_runs"]

SMALL = (
    "run --dataset digits --victims 2 --quiet --train-rounds 1 --clients 2 --clients-per-round 1 --local-iterations 1 --batch 2"
    " --candidates 10 --json --device cpu"
)
BRIEF = "--attack cpl --iterations 2"

RECIPES = {
    "clip_small": "example: [{clip_whole: {norm: 1e-15}}, {gaussian_noise: {multiplier: 1, to: sum}}]",
    "clip_large": "example: [{clip_whole: {norm: 1e20}}, {gaussian_noise: {multiplier: 1, to: sum}}]",
    "clip_zero": "example: [{clip_whole: {norm: 0}}]",
    "clip_tiny": "example: [{clip_whole: {norm: 1e-30}}]",
    "clip_infinite": "example: [{clip_whole: {norm: .inf}}]",
    "sigma_0": "example: [{clip_whole: {norm: 1}}, {gaussian_noise: {multiplier: 0, to: sum}}]",
    "sigma_1e9": "example: [{clip_whole: {norm: 1}}, {gaussian_noise: {multiplier: 1e9, to: each}}]",
    "sigma_1e40": "example: [{clip_whole: {norm: 1e20}}, {gaussian_noise: {multiplier: 1e20, to: sum}}]",
    "bare_1e9": "example: [{gaussian_noise: {multiplier: 1e9, to: sum, uncalibrated: true}}]",
    "laplace_1e9": "client: [{laplace_noise: {scale: 1e9}}]",
    "prune_nearly_all": "client: [{prune_threshold: {share: 0.999999}}]",
    "poisson": "batches: poisson\ncohorts: poisson\nbatch: [{clip_whole: {norm: 1}}, {gaussian_noise: {multiplier: 1, to: sum}}]",
    "quantile_runs_away": "server: [{clip_quantile: {initial: 1}}, {quantile_noise: {multiplier: 0, to: sum, count_std: 1}},"
    " {adapt_clip: {learning_rate: 1e30}}]",
}

RUNS: dict[str, str] = {
    # Ones everywhere.
    "--clients 1 --clients-per-round 1 --batch 1 --leak-batch 1 --victims 1": "",
    "--clients 1 --clients-per-round 1 --batch 1 --leak-batch 1 --protocol live --leak-rounds 0,last": "",
    "--candidates 2": "",
    "--candidates 1": "candidates: got 1",
    "--victims 0": "victims: got 0",
    "--batch 0": "batch: got 0",
    "--clients 0": "clients: got 0",
    "--clients-per-round 0": "clients-per-round: got 0",
    "--local-iterations 0": "local-iterations: got 0",
    "--leak-batch 0": "",
    "--train-rounds 0": "",
    "--train-rounds 0 --protocol live --leak-rounds last": "",
    "--train-rounds -1": "train-rounds: got -1",
    # Steps.
    "--learning-rate 1e30": "",
    "--learning-rate 1e30 --protocol live --leak-rounds 0,last": "",
    "--learning-rate 1e30 --protocol live --leak-rounds last --local-iterations 2 --client-optimizer adam": "",
    "--learning-rate 1e-30 --reads weights": "",
    "--learning-rate 0": "learning-rate: got 0",
    "--learning-rate nan": "learning-rate: got nan",
    "--learning-rate inf": "learning-rate: got inf",
    "--learning-rate 1e-45": "learning-rate: got 1e-45",
    # Dropout.
    "--dropout 1": "",
    "--dropout 1 --defense fed_cdp --protocol live --leak-rounds last": "",
    "--dropout 1 --defense quantile": "",
    "--dropout nan": "dropout: got nan",
    "--dropout 1.1": "dropout: got 1.1",
    # Noise and bounds.
    "--defense clip_small.yaml": "",
    "--defense clip_large.yaml": "",
    "--defense clip_zero.yaml": "clip_zero.yaml: example.0: clip_whole: norm: ",
    "--defense clip_tiny.yaml": "clip_tiny.yaml: example.0: clip_whole: norm: ",
    "--defense clip_infinite.yaml": "clip_infinite.yaml: example.0: clip_whole: norm: ",
    "--defense sigma_0.yaml": "",
    "--defense sigma_1e9.yaml --protocol live --leak-rounds 0,last --train-rounds 2": "",
    "--defense sigma_1e40.yaml": "defense: at the example station, its noise has a standard deviation of 1e+40",
    "--defense bare_1e9.yaml": "",
    "--defense laplace_1e9.yaml --protocol live --leak-rounds last": "",
    "--defense prune_nearly_all.yaml": "",
    "--defense poisson.yaml --train-rounds 3": "",
    "--defense poisson.yaml --batch 1 --clients-per-round 2 --train-rounds 3": "",
    "--defense quantile_runs_away.yaml --train-rounds 3 --clients-per-round 2": "",
    "--defense fed_cdp --noise-factor 1e6": "",
    "--defense fed_cdp_valid --noise-factor 1e-6": "",
    "--defense fed_cdp --noise-factor 0": "noise-factor: got 0",
    "--defense fed_cdp --noise-factor nan": "noise-factor: got nan",
    "--defense fed_cdp --clip-factor 1e-6": "",
    "--defense fed_cdp --clip-factor 1e6": "",
    "--defense fed_cdp --clip-factor inf": "clip-factor: got inf",
    # Budgets.
    "--defense fed_cdp_valid --epsilon 1e-9": "",
    "--defense fed_cdp_valid --epsilon 1e9": "",
    "--defense fed_cdp_valid --epsilon 0": "epsilon: got 0",
    "--defense fed_cdp_valid --epsilon nan": "epsilon: got nan",
    "--defense fed_cdp_valid --epsilon inf": "epsilon: got inf",
    "--defense fed_cdp_valid --stop-at-epsilon 1e-9": "stop-at-epsilon: ",
    "--defense fed_cdp_valid --stop-at-epsilon 4 --stop-at-delta 0": "stop-at-delta: got 0",
    "--defense fed_cdp_valid --stop-at-epsilon 4 --stop-at-delta 1": "stop-at-delta: got 1",
    "--defense none --epsilon 1": "",
    # Counts.
    "--success rmse<=1e-300": "",
    "--success rmse<=1": "",
    "--success rmse<=0": "success: got a threshold of 0",
    "--success rmse<=nan": "success: got a threshold of nan",
    "--seed 99999999999999999999": "",
    "--seed -1": "seed: got -1",
    # Networks and tables.
    "--leak-model mlp_relu --init uniform:0": "",
    "--leak-model mlp_relu --init uniform:1e30": "",
    "--leak-model mlp_relu --init uniform:nan": "init: ",
    "--dataset cancer --attack inverting_gradients_table --victims 2": "",
    "--dataset cancer --attack tableak --victims 2": "",
    "--dataset cancer --attack tableak --victims 2 --learning-rate 1e30 --protocol live --leak-rounds last": "",
    "--dataset faces --leak-model resnet18_batch_norm --victim-mode train": "",
    "--dataset faces --leak-model resnet18_batch_norm --victim-mode eval --batch 1 --leak-batch 1": "",
    # Malicious servers and attacks that learn, on models that diverged.
    **{
        f"--attack {name} --learning-rate 1e30 --protocol live --leak-rounds last --taps type-1": ""
        for name in (
            "spear",
            "rows",
            "trap",
            "quantile_rows",
            "fishing",
            "fishing_feature",
            "loki",
            "imprint",
            "scale_mia",
            "seer",
            "autoleak",
        )
    },
    **{
        f"--attack {name} --learning-rate 1e30 --protocol live --leak-rounds last --taps type-2 --leak-batch 1": ""
        for name in ("lmmse", "learning_to_invert", "identification", "decoder", "whitened", "analytic_fc")
    },
}
"""{options of `leakbench run`: the beginning of its error line; empty if it measures or asks for something in one line}."""

OTHERS: dict[str, str] = {
    "epsilon --dataset digits --defense sigma_0.yaml": "",
    "epsilon --dataset digits --defense sigma_1e9.yaml": "",
    "epsilon --dataset digits --defense poisson.yaml --batch 1": "",
    "epsilon --dataset digits --defense poisson.yaml --clients 1 --clients-per-round 1": "",
    "epsilon --dataset digits --defense fed_cdp_valid --train-rounds 0": "",
    "epsilon --dataset digits --defense fed_cdp_valid --noise-factor 1e-6": "",
    "epsilon --dataset digits --defense sigma_1e40.yaml": "defense: at the example station",
    "audit --dataset digits --defense sigma_0.yaml --trials 200": "",
    "audit --dataset digits --defense sigma_1e9.yaml --trials 200": "",
    "audit --dataset digits --defense clip_small.yaml --trials 200": "",
    "audit --dataset digits --defense prune_nearly_all.yaml --trials 200": "",
}

SHORT = (
    "--learning-rate 1e30 --protocol live --leak-rounds last",
    "--learning-rate 1e-45",
    "--defense clip_tiny.yaml",
    "--defense sigma_1e40.yaml",
    "--defense fed_cdp --noise-factor nan",
)


def try_runs(tally: Tally, full: bool, scratch: Path) -> None:
    """Try them in a folder, by the command line in this process; five of them if not `full`."""
    for name, body in RECIPES.items():
        unit = "client" if body.startswith("server") else "example"
        (scratch / f"{name}.yaml").write_text(f"title: t\ncite: c\nunit: {unit}\n{body}\n")
    with contextlib.chdir(scratch):
        for number, (words, says) in enumerate(RUNS.items()):
            if full or words in SHORT:
                with tally.case(f"runs: leakbench run {words}"):
                    brief = "" if "--attack" in words else f" {BRIEF}"
                    _tried(f"{SMALL}{brief} {words} --out run{number}", says, Path(f"run{number}"))
        for words, says in OTHERS.items() if full else ():
            with tally.case(f"runs: leakbench {words}"):
                _tried(words, says, None)


def _tried(words: str, says: str, folder: Path | None) -> None:
    code, out, err = called(*shlex.split(words))
    if code == 2:
        lines = err.strip().splitlines()
        if len(lines) != 1 or not lines[0].startswith(f"leakbench: {says}"):
            raise AssertionError(f"said {err.strip()[:200]!r}, expected one line that begins {says!r}")
        if folder is not None and folder.exists():
            raise AssertionError("refused, and left a folder")
        return
    if code != 0:
        raise AssertionError(f"exit code {code}: {err.strip()[-200:]}")
    if says:
        raise AssertionError(f"measured, expected one line that begins {says!r}")
    if folder is None:
        return
    summary = json.loads(out, parse_constant=_no_number)
    for name, tap in summary["taps"].items():
        lost = tap["failures"] == tap["victims"] * tap["batch"]
        if tap["failures"] is not None and lost and not tap["unanswered"]:
            raise AssertionError(f"{name}: no answer, and no reason why")
        if tap["asr"] is not None and not 0 <= tap["asr_low"] <= tap["asr"] <= tap["asr_high"] <= 1:
            raise AssertionError(f"{name}: ASR {tap['asr']} in [{tap['asr_low']}, {tap['asr_high']}]")
    diverged = any("diverged" in (tap["unanswered"] or {}) for tap in summary["taps"].values())
    said = any(warning.startswith("training diverged") for warning in summary["warnings"])
    if diverged and not said:
        raise AssertionError("a leak is not finite, and no warning says that training diverged")


def _no_number(text: str) -> Any:
    raise AssertionError(f"{text} in what is printed as JSON")


def called(*words: str) -> tuple[int, str, str]:
    """Run `leakbench` in this process; return (exit code, stdout, stderr)."""
    before, out, err, code = sys.argv, io.StringIO(), io.StringIO(), 0
    sys.argv = ["leakbench", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()
