"""Flower's own differential privacy, as its code runs: what leaks behind each wrapper, and its epsilon claimed, valid and audited.

    python results/flower_wrappers.py [--victims 20] [--page]

Needs `pip install 'leakbench[flower]'`. Each of Flower's five wrappers runs one round of its real strategy and mods on
`InProcessGrid`, of 100 clients with one digit each, and is attacked by autoleak, which knows clip and noise; then its release is
audited by calling the same code some thousand times. Writes flower_wrappers.csv and flower_wrappers.md beside itself; with
`--page` only the page, from the rows that are there.
"""

from __future__ import annotations

import logging
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from shared.options import parser

from leakbench.flower.installed import check_flwr
from leakbench.scripts import markdown_table, one_line

HERE = Path(__file__).parent

CLIENTS, ROUNDS, RATE, DELTA = 100, 10, 0.1, 1e-5
CLIP, Z, COUNT = 0.1, 1.0, 5.0
"""C, which binds on all of these updates and is what an adaptive clip begins with; z; the noise on an adaptive clip's count."""

AUDITED = 4
"""How many clients a release has that is audited."""

LOCAL_EPSILON = 10.0
"""What LocalDpMod is told; with a sensitivity of C its noise is then .48 C on each update."""

TEXT = """# Flower's wrappers of differential privacy: what leaks behind each

One round of {clients} clients with one digit each (8 x 8, LeNet with sigmoids, one step at a learning rate of {rate}), by Flower's
own strategies and mods (flwr {flwr}) on `leakbench.flower.InProcessGrid`. C = {clip}, z = {z:g}; LocalDpMod is told
epsilon = {local:g}, delta = 1e-5. {victims} victims, ASR of `autoleak`, which knows the clip and the noise of what it reads.
`arrival`: what the server receives, to the bit what the client sent; `behind the server`: what the wrapper's clip leaves of one
update, without the sum's noise.

{leaks}

A client-side wrapper clips at the client, a server-side one at the server; all four add noise at the server, to the mean. Who reads
an update before it is summed up, at the client or at the server, sees no noise, and a clip hides nothing from who knows of it.
Only LocalDpMod noises what a client sends.

## Epsilon

{rounds} rounds, all clients in each (q = 1), one client's update made zero, delta 1e-5. *Claimed*: by the script of Flower's
documentation; of LocalDpMod {rounds} times its own epsilon, at {rounds} times its delta. *Valid*: of the released models, and
against who reads single updates on arrival. *Audited*: one release by the wrapper's real code. Sigma is the noise over how far one
client moves the sum of {audited} updates (of LocalDpMod its own update), as stated and as measured; the lower bound of the epsilon
of one release holds at 95 % confidence.

{epsilons}

{reasons}

The two fixed wrappers do what they state where all clients weigh alike. The adaptive ones noise with the clip after its step, not
the one that clipped, and step it the wrong way (`flower_adaptive_server_as_released`). LocalDpMod takes its sensitivity on trust:
told a tenth of its clip, it claims the same epsilon with a tenth of the noise. An update of all zeros, which stands for a client
that is absent, raises ZeroDivisionError in each of them; in the audit one coordinate of it is 1e-20. Their noise is drawn from
NumPy's global generator, which the audit seeds.

Written by `python results/flower_wrappers.py`.
"""


def number(value: Any, digits: int = 2) -> str:
    """Return a number for the page; `none` where there is none."""
    return "none" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


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
        from flower_wrappers_run import accounted, audited, leaked, wrappers  # noqa: PLC0415

        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        rows = []
        for wrapper in wrappers():
            leak = leaked(wrapper, given.victims)
            rows.append(
                {"wrapper": wrapper.name, "victims": given.victims, **leak, **accounted(wrapper), **audited(wrapper)}
            )
            rows[-1]["flwr"] = version("flwr")
            print(f"{wrapper.name}: {rows[-1]}", flush=True)
        pd.DataFrame(rows).to_csv(HERE / "flower_wrappers.csv", index=False, float_format="%.6g")
    written = page(pd.read_csv(HERE / "flower_wrappers.csv"))
    (HERE / "flower_wrappers.md").write_text(written, encoding="utf-8")
    print(written)


if __name__ == "__main__":
    one_line(main)
