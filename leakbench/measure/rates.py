"""The rates that a run reports, each declared once: how often an attack succeeds, identifies, or infers a label.

A rate is a share in [0, 1]; a higher one is a stronger attack. Summaries, result tables, cards and pages take its field, heading
and meaning from here. The measures of a single reconstruction are in `leakbench.measure.measures`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "ASR",
    "COUNTED",
    "EXACT",
    "EXCLUDABLE",
    "FEATURES",
    "IDENTIFIED",
    "LABELS",
    "LABEL_RANKED",
    "LENGTH",
    "MEMBER_AUC",
    "MEMBER_FOUND",
    "OF_TEXTS",
    "PRECISION",
    "RATES",
    "RECOGNISED",
    "RECORDS",
    "ROUGE_1",
    "ROUGE_2",
    "ROUGE_L",
    "TARGET_ERROR",
    "TOKEN_ACCURACY",
    "TOKEN_PRECISION",
    "TOKEN_RECALL",
    "VERBATIM",
    "Rate",
    "fields_of",
    "upper_limit",
]


@dataclass(frozen=True)
class Rate:
    """A share of examples, victims or features.

    Args:
        name: Field of the summary of a leakage point, and column of result tables.
        heading: Heading in tables.
        meaning: What it measures, in sentences.
        noun: Its name in a sentence; the heading where it is empty.
        outcome: Column of the rows whose mean it is; the name where it is empty.
        baseline: Field of the same rate for the baseline guess; empty where a summary has none.
        bound: Field of the bound on any attack; empty without one.
        interval: Whether a 95 % interval is reported, in the fields `low` and `high`.
        counted: Whether a sentence has the rate 0 or 1, so that the interval is that of a proportion.
        do: Verb of what the attacker does, as "reconstruct"; empty for a rate that no verdict excludes.
        done: What a counted victim is, as "reconstructed"; empty for a rate that no verdict excludes.
    """

    name: str
    heading: str
    meaning: str
    noun: str = ""
    outcome: str = ""
    baseline: str = ""
    bound: str = ""
    interval: bool = True
    counted: bool = False
    do: str = ""
    done: str = ""

    @property
    def low(self) -> str:
        """Field of the lower end of the 95 % interval."""
        return f"{self.name}_low"

    @property
    def high(self) -> str:
        """Field of the upper end of the 95 % interval."""
        return f"{self.name}_high"

    @property
    def ends(self) -> tuple[str, str, str]:
        """Fields of the rate and of both ends of its interval."""
        return self.name, self.low, self.high

    @property
    def excluded(self) -> str:
        """Field of the smallest rate that the evidence excludes."""
        return f"excluded_{self.name}"

    @property
    def column(self) -> str:
        """Column of the rows whose mean the rate is."""
        return self.outcome or self.name

    @property
    def words(self) -> str:
        """Name of the rate in a sentence."""
        return self.noun or self.heading


ASR = Rate(
    "asr",
    "ASR",
    "Attack success rate: the share of attacked examples that are reconstructed to an RMSE (texts: to an edit distance) of at "
    "most eta. Two different examples of this data set are that close once in a thousand pairs. A search that fails or "
    "diverges counts as a failure. The interval is Wilson's on one network. Over several networks it is computed from the "
    "variance between their means. Near 0 and 1 it is for networks like the measured ones, and the line below the table has the "
    "limit over all networks. Members of one batch are not counted as independent.",
    outcome="success",
    baseline="null_asr",
    bound="asr_bound",
    do="reconstruct",
    done="reconstructed",
)

RECOGNISED = Rate(
    "recognised",
    "recognised (baseline)",
    "Share of attacked examples whose reconstruction is closer to its own original than to up to 1,000 other pictures of the "
    "data set, both by SSIM and by the RMSE of the high-passed pictures, scaled to equal contrast; in brackets the same share for "
    "the baseline guess. A person may recognise a picture whose RMSE is above eta.",
    baseline="null_recognised",
    do="recognisably reconstruct",
    done="recognisable",
)

VERBATIM = Rate(
    "verbatim",
    "verbatim",
    "Share of attacked examples that are reconstructed to a quarter of a step of an 8-bit pixel.",
)

PRECISION = Rate(
    "precision",
    "precision",
    "The share of right answers among the answers that were given, whereas the ASR counts all examples.",
    interval=False,
)

LABELS = Rate(
    "label_accuracy",
    "label acc.",
    "Share of examples whose label the attack infers correctly.",
    noun="label accuracy",
    bound="label_bound",
    interval=False,
)

TARGET_ERROR = Rate(
    "target_error",
    "target error",
    "How far the targets that the attack infers are from the true ones, if the network does not name classes: the share of wrong "
    "labels, classes or pixels of a mask, and for numbers in [0, 1] the mean absolute difference; the mean over the heads of a "
    "network. Lower is a stronger attack. An example without an answer counts as the baseline guess, which is the best constant "
    "guess from public targets. The interval is Student's over batches.",
    baseline="null_target_error",
)

IDENTIFIED = Rate(
    "identified",
    "identified",
    "Share of victims that the attacker picks out of a list of candidates, by the likelihood of the leaked gradient, or by the "
    "nearest neighbour of the reconstruction where the attacker has evidence for it. It needs far less leakage than a "
    "picture.",
    noun="identification",
    bound="identified_bound",
    do="identify",
    done="identified",
)

LABEL_RANKED = Rate(
    "label_ranked",
    "label ranked",
    "Share of victims whose label comes first when an attacker that knows the defense ranks all classes by public mean "
    "gradients. It does not depend on the attack. Compare it with the share of the most frequent class. For a batch it is the "
    "label of the first example, which even an attacker that knows the count of each class cannot tell from the others.",
    bound="label_ranked_bound",
)

MEMBER_AUC = Rate(
    "member_auc",
    "member AUC",
    "How often the first example of a batch is ranked above a candidate that is not in the batch, by the likelihood of the "
    "leaked gradient: the area under the curve of true against false positives of membership inference. 0.5 is chance.",
    outcome="member_above",
)

MEMBER_FOUND = Rate(
    "member_tpr",
    "member found",
    "Share of victims recognised as members at a threshold that takes at most 1 % of the other candidates for members: the "
    "true positive rate at a false positive rate of 1 %. Chance gives 1 %.",
    outcome="member_found",
    bound="member_tpr_bound",
)

COUNTED = Rate(
    "label_counts",
    "labels counted",
    "Mean share of a batch's labels that are counted right, by the expected share of each class given the leaked gradient "
    "(classes by public mean gradients). The interval is Student's over batches.",
    baseline="null_label_counts",
)

FEATURES = Rate(
    "feature_accuracy",
    "features right",
    "Mean share of a record's features that are right, as TabLeak counts (Vero et al. 2023): a category if its largest column "
    "is the true one, a number if it is within 0.319 standard deviations. Records of a batch are matched by this measure, and "
    "an example without an answer counts as 0. The interval is Student's over batches.",
    noun="feature accuracy",
    baseline="null_feature_accuracy",
)

RECORDS = Rate(
    "record_match",
    "records right",
    "Share of records with all features right; the share of right features overstates how many people are reconstructed.",
    noun="record match",
    baseline="null_record_match",
)

EXACT = Rate(
    "exact_match",
    "exact",
    "Share of attacked sentences that are reconstructed token for token.",
    baseline="null_exact_match",
    counted=True,
)

ROUGE_1 = Rate(
    "rouge_1",
    "ROUGE-1",
    "Mean F-measure of the words that a reconstructed sentence has in common with its original (Lin 2004, without stemming). A "
    "sentence without a reconstruction counts as 0. The interval is Student's over batches.",
    baseline="null_rouge_1",
)

ROUGE_2 = Rate(
    "rouge_2",
    "ROUGE-2",
    "The same for pairs of neighbouring words, so that their order counts.",
    baseline="null_rouge_2",
)

ROUGE_L = Rate("rouge_l", "ROUGE-L", "The same for the longest common subsequence of words.", baseline="null_rouge_l")

TOKEN_ACCURACY = Rate(
    "token_accuracy",
    "tokens at place",
    "Mean share of the true tokens that are reconstructed at their place in the sentence.",
    baseline="null_token_accuracy",
)

TOKEN_RECALL = Rate(
    "token_recall",
    "tokens found",
    "Mean share of the true tokens that are in the reconstruction, in any order.",
    baseline="null_token_recall",
)

TOKEN_PRECISION = Rate(
    "token_precision",
    "tokens right",
    "Mean share of the reconstructed tokens that are in the original, in any order.",
    baseline="null_token_precision",
)

LENGTH = Rate(
    "length_right",
    "length right",
    "Share of attacked sentences whose number of tokens is right.",
    baseline="null_length_right",
    counted=True,
)

OF_TEXTS = (EXACT, ROUGE_1, ROUGE_2, ROUGE_L, TOKEN_ACCURACY, TOKEN_RECALL, TOKEN_PRECISION, LENGTH)
"""The rates that only texts have."""

RATES = (
    *(ASR, RECOGNISED, VERBATIM, PRECISION, LABELS, IDENTIFIED, LABEL_RANKED, MEMBER_AUC, MEMBER_FOUND, COUNTED),
    *(FEATURES, RECORDS),
    *OF_TEXTS,
)
"""All rates."""

EXCLUDABLE = (ASR, IDENTIFIED, RECOGNISED)
"""The rates for which a verdict states an upper limit, in the order of the fields of a summary."""


def fields_of(rates: tuple[Rate, ...] = RATES) -> tuple[str, ...]:
    """Return the fields of rates and of their baselines, without the ends of intervals."""
    return tuple(field for rate in rates for field in (rate.name, rate.baseline) if field)


def upper_limit(rate: float) -> str:
    """Return the upper limit of a rate in whole percents, rounded up, as "13 %"."""
    return f"{min(100, math.ceil(100 * rate - 1e-9))} %"
