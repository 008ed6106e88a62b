"""Write results/broken_defenses.md: what defenses claim, what an adaptive attacker gets behind them, and why.

    python studies/broken_defenses.py

The numbers are the rows of attacks/adaptive_attacks.csv; `leakbench reproduce adaptive_attacks` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from leakbench.box import box_of, caveats_of, evidence_of
from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import markdown_table, one_line
from leakbench.reproduce.columns import interval
from leakbench.reproduce.file import body_of, results_folder, rows_path
from leakbench.reproduce.page import on_one_network
from leakbench.reproduce.published import rows_of
from leakbench.reproduce.reproduce import write_index
from leakbench.reproduce.table import table_of
from leakbench.storage.atomic import write_atomically
from leakbench.study.rows import RowStore
from leakbench.study.stale import stale_lines, stale_names

TABLE = "adaptive_attacks"
RESULTS = results_folder()

KNOWS = ("oblivious", "defense")
"""The two attackers of each defense; one without both rows is not on the page yet."""


@dataclass(frozen=True)
class Claimed:
    """A defense on the page.

    Args:
        claim: What its source says that it does.
        why: Why the adaptive attacker gets what it gets.
    """

    claim: str
    why: str


DEFENSES: Mapping[str, Claimed] = {
    "noise_gaussian": Claimed(
        "Gaussian noise of variance 0.01 on the gradient stops reconstruction (Zhu et al. 2019).",
        "The largest coordinates of an unclipped gradient are far above the noise, and its likelihood weighs each coordinate.",
    ),
    "noise_laplace": Claimed(
        "Laplace noise of variance 0.01 on the gradient stops reconstruction (Zhu et al. 2019).",
        "As for Gaussian noise.",
    ),
    "prune_90": Claimed(
        "A gradient without its smallest 90 % shows no image; 20 % to 30 % are enough against DLG (Zhu et al. 2019).",
        "The remaining tenth has more numbers than an image, and shows which coordinates were pruned.",
    ),
    "prune_threshold": Claimed(
        "Pruning the smallest 80 % of a client's update stops reconstruction (Wei et al. 2023, section 4.1).",
        "As for single gradients: the attacker prunes its guess at the same coordinates.",
    ),
    "dssgd": Claimed(
        "Sending a random tenth of the coordinates above a threshold limits what leaks (Shokri and Shmatikov 2015).",
        "The tenth that is sent is exact, and shows which coordinates it has.",
    ),
    "sign": Claimed(
        "The sign of each coordinate hides the example (baseline of Wu et al. 2023).",
        "Each sign limits the guess to a half-space, and there are more signs than pixels.",
    ),
    "sign_client": Claimed(
        "The sign of a client's update hides its examples.",
        "As for the sign of a gradient.",
    ),
    "soteria": Claimed(
        "Pruning the features from which an input is reconstructed best hides it (Sun et al. 2021).",
        "The columns that were set to zero show the mask, and the layers before carry the image.",
    ),
    "soteria_as_released": Claimed(
        "As soteria, as its released code runs on a batch.",
        "As for soteria.",
    ),
    "precode": Claimed(
        "Random numbers in a bottleneck make the gradient useless for matching (Scheliga et al. 2022).",
        "The gradient of the bottleneck shows the random numbers exactly, by a quotient.",
    ),
    "nvflare_percentile": Claimed(
        "A privacy filter of NVIDIA FLARE: the smallest 10 % of an update become zero, and the others are clamped.",
        "No coordinate is noisy, and most are not clamped.",
    ),
    "nvflare_svt": Claimed(
        "A privacy filter of NVIDIA FLARE, by the sparse vector technique.",
        "The clamp is a twentieth of the noise, so that little of the update is left, for the model as well. Its pure epsilon of "
        "one update is still about 350.",
    ),
    "rdlv_filter": Claimed(
        "Noise in units of a percentile of the update limits what can be reconstructed (Hatamizadeh et al. 2023).",
        "The default is a tenth of the percentile: large coordinates are far above it.",
    ),
    "qsgd": Claimed(
        "None: it compresses updates (Alistarh et al. 2017). Compression is often named as a defense.",
        "The attacker uses the largest and the mean error of each coordinate's rounding.",
    ),
    "top_k_error_feedback": Claimed(
        "None: it compresses updates (Stich et al. 2018). The update has 1 % of the coordinates.",
        "As for pruning: the coordinates that are sent are exact.",
    ),
    "lr_perturbation": Claimed(
        "A random learning rate of each client makes reconstruction fail (Wan et al. 2023).",
        "One unknown factor: the attacker fits it.",
    ),
    "outpost": Claimed(
        "Noise where the Fisher information is large, less in later iterations, stops reconstruction (Wang et al. 2023).",
        "In the first iteration one tensor's gradient in nine is sent bare, and elsewhere zeros show what was pruned.",
    ),
    "outpost_as_released": Claimed(
        "As outpost, as its code runs since September 2024.",
        "The code computes the noisy gradients and discards them: what is sent is the gradient itself.",
    ),
    "censor": Claimed(
        "A random direction orthogonal to the gradient hides the example and trains as well (Zhang et al. 2025).",
        "One release is not reconstructed here. The lengths of the tensors are exact and identify the victim, and the model does "
        "not learn from a direction orthogonal to its gradient.",
    ),
    "censor_as_released": Claimed(
        "As censor, as its code projects.",
        "The projection divides by the norm and not by its square, so that the sent direction is not orthogonal.",
    ),
    "graddefense": Claimed(
        "Noise on the slices of a gradient with the largest sensitivity stops reconstruction (Wang et al. 2022).",
        "The noise of the released code is smaller than a search tolerates.",
    ),
    "graddefense_clip": Claimed(
        "As graddefense, with its clip and larger noise.",
        "Half of the slices are sent as they are.",
    ),
    "ats": Claimed(
        "Transformed images cannot be reconstructed from their gradients (Gao et al. 2021).",
        "The transformed image is reconstructed, and a policy has a few outcomes, which are undone.",
    ),
    "mixup": Claimed(
        "Mixed examples hide each other (Huang et al. 2021 tests this).",
        "A weight near 1 shows its example, also to the oblivious attacker; other mixes were not separated here.",
    ),
    "mixup_capped": Claimed(
        "As mixup, with four examples and no weight above 0.65 (Huang et al. 2021).",
        "One mix was not separated here; the largest part of it is recognised. Without knowledge the search finds more.",
    ),
    "instahide": Claimed(
        "Mixed examples with random signs cannot be reconstructed (Huang et al. 2020).",
        "One mix was not separated here; some parts are recognised. Carlini et al. (2021) separate many mixes of the same "
        "examples, which is not built.",
    ),
    "oasis": Claimed(
        "Rotated copies in the batch hide an image (Jeter et al. 2024, against servers that read rows).",
        "An honest server's search finds the image together with its copies.",
    ),
    "dcs2": Claimed(
        "A concealed example whose gradient is close to the private one hides it in their sum (Wu et al. 2024).",
        "The attacker searches the concealed example as one more input; the last layer shows both labels.",
    ),
    "fedkl": Claimed(
        "Scales and shifts from a private key make the gradient useless for reconstruction (Ren et al. 2023).",
        "The scales and shifts are few numbers, which the attacker searches together with the image. What remains hidden is the "
        "contrast, by the normalisation and not by the key.",
    ),
    "fedkl_evaluation": Claimed(
        "As fedkl, with the normalisation in evaluation mode, as in a test of its code.",
        "As for fedkl; without the normalisation the image is found.",
    ),
}

TEXT = """# Broken defenses

{box}
What each defense claims, and what one search gets behind it from MNIST: without knowledge of the defense (*oblivious*), and with
its recipe (*adaptive*). Both know the network, its weights, the batch size and public examples; the update is that of one
example, with mixup and InstaHide of a batch of five. The shares are of images that are reconstructed to an RMSE of at most
eta. *Identified* is the share of victims that an adaptive ranking picks among the candidates. {networks}
[The rows](attacks/adaptive_attacks.md) have every other measure.

{caution}{table}

A verdict of `reconstructs` next to an ASR near 0 rests on images that are recognised, not on images within eta.

A defense that is not broken here is not shown to be safe: other attacks, other networks and longer searches were not tried. A
broken one may still work where a batch is larger, the network is trained or the attacker knows less than assumed here.
"""


def page(rows: pd.DataFrame, caution: Sequence[str] = (), stale: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the page for the rows of adaptive_attacks.csv.

    Args:
        rows: The rows.
        caution: Lines about stale rows, above the table.
        stale: Names of stale cells by reason.
    """
    rows = rows.assign(
        defense=rows["cell"].str.rsplit(", ", n=1).str[0], knows=rows["cell"].str.rsplit(", ", n=1).str[1]
    ).set_index(["defense", "knows"])
    share = interval("asr")
    names = list(dict.fromkeys(rows.index.get_level_values(0)))
    missing = [name for name in names if name not in DEFENSES]
    if missing:
        raise ValueError(f"DEFENSES: no claim of {', '.join(missing)}")
    names = [name for name in names if all((name, knows) in rows.index for knows in KNOWS)]
    rows = rows[rows.index.isin([(name, knows) for name in names for knows in KNOWS])]
    lines = []
    for name in names:
        oblivious, adaptive = (rows.loc[[(name, knows)]].iloc[0].to_dict() for knows in KNOWS)
        lines.append(
            [
                f"`{name}`",
                point_name(str(adaptive["point"])),
                DEFENSES[name].claim,
                share(oblivious),
                share(adaptive),
                f"{adaptive['null_asr']:.2f}",
                f"{adaptive['identified']:.2f} of {adaptive['candidates']:,.0f}",
                str(adaptive["verdict"]),
                " and ".join(dict.fromkeys(f"{row['victims']:.0f}" for row in (oblivious, adaptive))),
                DEFENSES[name].why,
            ]
        )
    heads = [
        "defense",
        "point",
        "claim",
        "oblivious",
        "adaptive",
        "baseline guess",
        "identified",
        "verdict",
        "victims",
        "why",
    ]
    aware = rows.xs("defense", level="knows")
    reconstructs = aware["verdict"] == "reconstructs"
    above = aware["asr_low"] > aware["null_asr"]
    blind = rows.xs("oblivious", level="knows")
    verdict = (
        f"The adaptive attacker's ASR is above the baseline guess, with its interval, for {above.sum()} of {len(names)} "
        f"defenses, the oblivious one's for {(blind['asr_low'] > blind['null_asr']).sum()}. For {(reconstructs & ~above).sum()} "
        f"others, images of the adaptive attacker are recognised."
    )
    claim = "Defenses that claim to stop reconstruction stop an attacker that knows them."
    box = box_of(
        claim, verdict, evidence_of(rows), " ".join(caveats_of(stale or {}, rows)), f"leakbench reproduce {TABLE}"
    )
    networks = f"Victims are spread over {int(rows['networks'].min())} networks at random weights."
    return TEXT.format(
        box="\n".join(box),
        caution="".join(f"{line}\n" for line in caution),
        table=markdown_table(heads, lines),
        networks=networks,
    )


def read() -> tuple[pd.DataFrame, list[str], Mapping[str, Sequence[str]]]:
    """Return the published rows, the lines about stale ones, and their names by reason."""
    table = table_of(*body_of(TABLE))
    rows = RowStore(rows_path(RESULTS, TABLE), table.format).read()
    judged = list(rows_of(table, rows))
    return rows, [*stale_lines(judged), *on_one_network(table, rows)], stale_names(judged)


def main() -> None:
    """Write the page."""
    text = page(*read())
    write_atomically(RESULTS / "broken_defenses.md", lambda file: file.write_text(text, encoding="utf-8"))
    write_index(RESULTS)


if __name__ == "__main__":
    one_line(main)
