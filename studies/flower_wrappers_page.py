"""The page of Flower's wrappers of differential privacy, and the setting in which they were measured."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from leakbench.box import box_of
from leakbench.core.scripts import markdown_table

CLIENTS, ROUNDS, RATE, DELTA = 100, 10, 0.1, 1e-5
CLIP, Z, COUNT = 0.1, 1.0, 5.0
"""C, which clips all of these updates and is the initial value of an adaptive clip; z; the noise on an adaptive clip's count."""

AUDITED = 4
"""Number of clients in an audited release."""

LOCAL_EPSILON = 10.0
"""LocalDpMod's epsilon; with a sensitivity of C its noise is .48 C on each update."""

TEXT = """# What leaks behind Flower's wrappers of differential privacy

{box}
One round of {clients} clients with one digit each (8 x 8, LeNet with sigmoids, one step at a learning
rate of {rate}), by Flower's own strategies and mods (flwr {flwr}) on `leakbench.flower.InProcessGrid`.
C = {clip}, z = {z:g}; LocalDpMod has epsilon = {local:g}, delta = 1e-5. ASR of `autoleak` on {victims}
victims; it knows the clip and the noise of the update that it attacks.

- *type-1*: what the client sends.
- *type-0*: what the server receives, bit-identical to what the client sent.
- *behind the server*: one update after the wrapper's clip, without the noise on the sum.

{leaks}

A client-side wrapper clips at the client, a server-side wrapper at the server. All four add noise at
the server, to the mean. An attacker that sees an update before it is summed, at the client or at the
server, sees no noise, and a clip does not protect against an attacker that knows it. Only LocalDpMod
adds noise to what a client sends.

## Epsilon

{rounds} rounds with all clients in each (q = 1); a neighbour has one client's update set to zero;
delta = 1e-5.

- *claimed*: by the script in Flower's documentation; for LocalDpMod, {rounds} times its own epsilon at
  {rounds} times its delta.
- *valid*: for the released models, and against an attacker that sees single updates on arrival.
- *sigma*: the noise divided by how far one client moves the sum of {audited} updates (for LocalDpMod: its
  own update), as stated and as measured.
- *audited*: a lower bound on the epsilon of one release by the wrapper's real code, at 95 %
  confidence.

{epsilons}

{reasons}

Both fixed wrappers do what they state if all clients have equal weights. The adaptive wrappers scale
the noise by the clip after its step instead of the clip that was applied, and they step the clip in
the wrong direction (`flower_adaptive_server_as_released`). LocalDpMod trusts its sensitivity setting:
with a tenth of its clip there, it claims the same epsilon with a tenth of the noise. An update of all
zeros, which represents an absent client, raises ZeroDivisionError in each wrapper, so one coordinate
of it is 1e-20 in the audit. The wrappers draw their noise from NumPy's global generator, which the
audit seeds.
"""


def number(value: Any, digits: int = 2) -> str:
    """Return a number for the page, or `none`."""
    return "none" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _box(rows: pd.DataFrame) -> str:
    wrappers = rows[rows["wrapper"] != "none"]
    leaks = wrappers["type-1 asr_low"] > wrappers["type-1 null_asr"]
    quiet = wrappers[~leaks]
    behind = f" No reconstruction succeeded behind {', '.join(quiet['wrapper'])}." if len(quiet) else ""
    few = (
        f"Few victims: without a reconstruction, the ASR may still be {quiet['type-1 asr_high'].max():.2f}."
        f" Up to {quiet['type-1 identified'].max():.2f} of those victims are identified. "
        if len(quiet)
        else ""
    )
    broken = ", ".join(wrappers.loc[wrappers["audit"] == "violated", "wrapper"]) or "none"
    return "\n".join(
        box_of(
            "Flower's wrappers of differential privacy hide a client's data from the server.",
            f"{leaks.sum()} of {len(wrappers)} wrappers let `autoleak` reconstruct updates on arrival.{behind}"
            f" The audit contradicts the claimed epsilon of: {broken}.",
            f"{int(rows['victims'].iloc[0])} victims for each wrapper, flwr {rows['flwr'].iloc[0]}.",
            f"{few}One round, one network, 8 x 8 digits.",
            "python studies/flower_wrappers.py",
        )
    )


def page(rows: pd.DataFrame) -> str:
    """Return the page for these rows."""
    taps = {"type-1": "type-1 (sent)", "type-0": "type-0 (arrival)", "behind": "behind the server"}
    heads = ["wrapper", *(f"ASR, {called}" for called in taps.values()), "baseline ASR", "identified, type-1"]
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
    shown = [
        "claimed",
        "valid, released",
        "valid, arrival",
        "sigma stated",
        "measured",
        "claimed for one",
        "audited of one",
        "verdict",
    ]
    epsilons = [[row["wrapper"], *(number(row[c]) for c in columns), row["audit"]] for _, row in guarded.iterrows()]
    reasons = [
        f"- {row['wrapper']}: valid: {row['reason']}; audit: {row['audit reason']}." for _, row in guarded.iterrows()
    ]
    return TEXT.format(
        box=_box(rows),
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
