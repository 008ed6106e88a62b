"""Known-answer cases for scorers of gradient-leakage attacks: leakbench's own, a peer's, or yours.

A scorer is any callable `score(truth, answer) -> dict`; `contract.py` says what it gets and what it may return. Each
case calls it once, on generated pictures, and compares the scores with values known beforehand: a closed form, or
scikit-image. A measure that the scorer leaves out is `not measured`, never passed. A peer's function is wrapped in a few
lines, here a function of two pictures, and tested by `leakbench conformance --scorer my_module:score`:

    def score(truth, answer):
        batches = zip(truth["inputs"], answer["inputs"])
        return {"psnr": [[their_psnr(t, a) for t, a in zip(*batch)] for batch in batches]}

Not every fault of an evaluation shows in its scorer. These cannot be tested here: an attacker that uses the truth to
decide when to stop, a truth that was changed before the scorer got it, a success that was judged by eye.
"""

from leakbench.conformance.contract import MEASURES, Answer, Scorer, Truth
from leakbench.conformance.judge import CaseResult, all_cases, conform

__all__ = ["MEASURES", "Answer", "CaseResult", "Scorer", "Truth", "all_cases", "conform"]
