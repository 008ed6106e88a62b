"""A user's own functions that cannot be imported, raise, or return the wrong thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.bad.case import Case, written
from tests.bad.safetensors_files import whole

MODEL = "attack --shape 1,8,8 --classes 10 --attack cpl --update update.safetensors"
AUDIT = "audit --trials 100 --sigma 1 --clip 1"
SCORER = "conformance"

IMPORTS = "import sys, time, torch, numpy as np\nfrom torch import nn\n\n"


def _own(asked: str, option: str, body: str, *says: str) -> Case:
    """Return the function `mine` of the module `own_code`, whose text is `body`."""
    write: Callable[[Path], object] = written("own_code.py", IMPORTS + body)
    named = "callable: " if option == "--callable" else "own_code:mine"
    return Case(f"{asked} {option} own_code:mine", (named, *says), lambda f: (whole(f), write(f)))


def _model(body: str, *says: str) -> Case:
    return _own(MODEL, "--model", body, *says)


def _audit(body: str, *says: str) -> Case:
    return _own(AUDIT, "--callable", body, *says)


def _scorer(body: str, *says: str) -> Case:
    return _own(SCORER, "--scorer", body, *says)


def _named(asked: str, path: str, *says: str) -> Case:
    return Case([*asked.split(), path], (path, *says), lambda f: (whole(f), written("own_code.py", "mine = 3\n")(f)))


LAZY = "def mine(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))\n"

WIDER = "def mine(): return nn.Sequential(nn.Flatten(), nn.Linear(65, 10))\n"

CASES = (
    *[
        _named(f"{asked} {option}", path)
        for asked, option in ((MODEL, "--model"), (AUDIT, "--callable"), (SCORER, "--scorer"))
        for path in ("own_code", "own_code:", ":mine", "own_code:nobody", "nowhere:mine", "own_code:mine", "os:path")
    ],
    _model("def mine(: pass\n", "SyntaxError"),
    _model("1 / 0\n", "ZeroDivisionError"),
    _model("sys.exit(0)\n", "SystemExit"),
    _model("def mine(): raise RuntimeError('no\\ndisk')\n", "RuntimeError", "no"),
    _model("def mine(): sys.exit(0)\n", "SystemExit"),
    _model("def mine(): return 3\n", "int"),
    _model("def mine(): return None\n", "None"),
    _model("def mine(): return nn.Flatten\n", "type"),
    _model("def mine(): return nn.Flatten()\n", "Flatten"),
    _model("def mine(argument): return nn.Flatten()\n", "argument"),
    Case(
        f"{MODEL} --model own_code:mine",
        ("model", "1.weight", "lazy"),
        lambda f: (whole(f), written("own_code.py", IMPORTS + LAZY)(f)),
    ),
    Case(
        f"{MODEL} --model own_code:mine",
        ("update", "1.weight", "(10, 65)"),
        lambda f: (whole(f), written("own_code.py", IMPORTS + WIDER)(f)),
    ),
    _audit("def mine(a): raise ValueError('never')\n", "ValueError", "never"),
    _audit("def mine(a): return None\n", "None"),
    _audit("def mine(a): return 3\n", "int"),
    _audit("def mine(a): return {}\n"),
    _audit("def mine(a): return {n: v[:-1] for n, v in a.items()}\n"),
    _audit("def mine(a): return {n: v * np.nan for n, v in a.items()}\n"),
    _audit("def mine(a): return {n: 'x' for n in a}\n"),
    _audit("def mine(): return {}\n", "takes ()"),
    _audit("def mine(a): sys.exit(3)\n", "SystemExit"),
    _scorer("sys.exit(3)\n", "SystemExit"),
)
