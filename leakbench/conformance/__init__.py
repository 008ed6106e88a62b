"""Known-answer cases for scorers of gradient-leakage attacks: leakbench's own, a peer's, or yours.

A scorer is any callable `score(truth, answer) -> dict`; `contract.py` says what it gets and what it may return. Each
case asks it once, about pictures made here, and holds what comes back against an answer known beforehand: a closed
form, or scikit-image. What a scorer leaves out is `not measured`, never passed. A peer's function is wrapped in a few
lines, here one of two pictures, and held by `leakbench conformance --scorer my_module:score`:

    def score(truth, answer):
        batches = zip(truth["inputs"], answer["inputs"])
        return {"psnr": [[their_psnr(t, a) for t, a in zip(*batch)] for batch in batches]}

Not every fault of an evaluation shows in its scorer. Out of reach here: an attacker who stops by the truth, a truth
that was changed before it got to the scorer, a success that somebody judged by eye.
"""

from leakbench.conformance.contract import MEASURES, Answer, Scorer, Truth
from leakbench.conformance.judge import Result, all_cases, conform

__all__ = ["MEASURES", "Answer", "Result", "Scorer", "Truth", "all_cases", "conform"]
