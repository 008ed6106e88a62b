"""Definitions of terms on the page: threat models and malicious servers, as far as a run needs them."""

from __future__ import annotations

from leakbench.report.words import Summary
from leakbench.summary.limits import VERBATIM
from leakbench.summary.threat import LETTERS

__all__ = ["legend"]

THREATS = "The threat models of Carletti et al. (SoK: Gradient Inversion Attacks in FL, USENIX Security 2025): "

ISOLATED = "A fishing server isolates one example of a batch of B and leaves the others alone, so that the ASR is at most 1 / B."

ALONE = (
    "An imprint sorts the examples behind an update into bins by one number, such as their brightness. It reads exactly"
    " those that share their bin with no other example."
)

IDEAL = (
    "A server that obtains the whole clipped and noised gradient of an example in a single row and answers with the posterior"
    " mean under a Gaussian of public examples."
)

PERCENTILE = (
    "The share, in percent, of models from an honest server that show a client less of the same than the model that"
    " was sent. Models that show as much count half."
)

D_SNR = (
    "The norm of the largest gradient in a batch over the sum of the norms of all others, in the layer where that is"
    " largest (Garov et al., ICLR 2024). Far above 1, one example dominates the batch."
)


def legend(summary: Summary) -> dict[str, str]:
    """Return {term: its definition} of the terms that the page of a run uses outside its columns."""
    taps = summary["taps"].values()
    seen = summary.get("conspicuous") or {}
    bins = any(tap.get("alone_expected") is not None for tap in taps)
    words = {
        "threat A to H": (
            summary.get("threat_letter"),
            THREATS + "; ".join(f"{letter} {means}" for letter, means in LETTERS.items()) + ".",
        ),
        "by construction": (summary.get("fished") is not None, ISOLATED),
        "alone in its bin": (bins, ALONE),
        "verbatim": (
            bins,
            f"Reconstructed to an RMSE of at most {VERBATIM:g}, a quarter of a step of an 8-bit pixel.",
        ),
        "ideal server": (any(tap.get("asr_ideal") is not None for tap in taps), IDEAL),
        "percentile": (seen, PERCENTILE),
        "D-SNR": ((seen.get("d_snr") or {}).get("value") is not None, D_SNR),
    }
    return {word: meaning for word, (used, meaning) in words.items() if used}
