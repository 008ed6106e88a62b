"""Recipes of defenses, attacks and data sets."""

from __future__ import annotations

from tests.bad.case import Case, written
from tests.bad.command_line import RUN

DEFENSE = """title: Mine
cite: nobody
unit: example
example: [{clip_layers: {norm: 4.0}}, {gaussian_noise: {multiplier: 6.0, to: each}}]
claim: {moments: {unit: example, noise_multiplier: 6.0}}
"""

ATTACK = """title: Mine
cite: nobody
method:
  gradient_matching:
    labels: last_layer
    space: pixels
    start: {patterned: {tile: 2}}
    distance: squared_l2
    descent: lbfgs
    stop: {iterations: {limit: 3}}
server: honest
"""

BILLION = "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 'lol'}]\n" for n in range(10)
)  # Ten lists of ten lists and so on: 10^9 words if aliases are expanded.


def _of(kind: str, text: str | bytes, *says: str) -> Case:
    return Case([*RUN.split(), f"--{kind}", "mine.yaml"], ("mine.yaml", *says), written("mine.yaml", text))


def _defense(old: str, new: str, *says: str) -> Case:
    assert old in DEFENSE
    return _of("defense", DEFENSE.replace(old, new, 1), *says)


def _attack(old: str, new: str, *says: str) -> Case:
    assert old in ATTACK
    return _of("attack", ATTACK.replace(old, new, 1), *says)


CASES = (
    Case([*RUN.split(), "--defense", "mine.yaml"], ("mine.yaml",)),
    _of("defense", ""),
    _of("defense", "just words"),
    _of("defense", "- a\n- list\n"),
    _of("defense", "title: [unclosed\n"),
    _of("defense", "title: a\n\ttabs: b\n"),
    _of("defense", b"title: \xff\xfe\n"),
    _of("defense", b"title: \x00\n"),
    _of("defense", "a: !!python/object/apply:os.system ['touch hacked']\n"),
    _of("defense", BILLION),
    _of("defense", "&a [*a]\n"),
    _of("defense", "title: a\n" + "[" * 3000 + "]" * 3000 + "\n"),
    _of("defense", DEFENSE + "title: Twice\n", "title"),
    _of("defense", DEFENSE + "1: one\n"),
    _defense("title: Mine\n", "", "title"),
    _defense("title: Mine", "title: {a: b}", "title"),
    _defense("cite: nobody", "cites: nobody", "cites"),
    _defense("unit: example", "unit: exemple", "unit", "exemple"),
    _defense("clip_layers", "clip_layer", "clip_layer", "clip_layers"),
    _defense("norm: 4.0", "norm: -4.0", "norm", "-4.0"),
    _defense("norm: 4.0", "norm: four", "norm", "four"),
    _defense("norm: 4.0", "norm: .nan", "norm", "nan"),
    _defense("norm: 4.0", "norm: null", "norm"),
    _defense("norm: 4.0", "norms: 4.0", "norms"),
    _defense("{norm: 4.0}", "{}", "norm"),
    _defense("multiplier: 6.0", "multiplier: .inf", "multiplier"),
    _defense("to: each", "to: all", "to", "all"),
    _defense("to: each", "to: [each]", "to"),
    _defense("{clip_layers: {norm: 4.0}}", "3", "3"),
    _defense("example:", "exampel:", "exampel"),
    _defense("moments: {", "momentts: {", "momentts"),
    _defense("unit: example, noise", "unit: record, noise", "unit", "record"),
    _defense("noise_multiplier: 6.0", "noise_multiplier: -6", "noise_multiplier", "-6"),
    _attack("gradient_matching", "gradient_macthing", "gradient_macthing"),
    _attack("labels: last_layer", "labels: the_last", "labels", "the_last"),
    _attack("tile: 2", "tile: 0", "tile", "0"),
    _attack("limit: 3", "limit: 3.5", "limit", "3.5"),
    _attack("limit: 3", "limit: -1", "limit", "-1"),
    _attack("distance: squared_l2", "distance: {squared_l2: {p: 3}}", "p"),
    _attack("server: honest", "server: honset", "server", "honset"),
    _attack("server: honest", "server: os.system", "server", "os.system"),
    _attack("server: honest", "knows: all\nserver: honest", "knows", "all"),
    _of("dataset", "title: Mine\ncite: c\nlicense: l\nformat: {embedded: {set: digit, sha256: " + "0" * 64 + "}}\n"),
    _of("dataset", "title: Mine\nformat: {csv: {file: x.csv}}\n"),
)
