"""Write the data set `reviews` of leakbench: 2,000 sentences of movie reviews, and the vocabulary of their tokens.

The source is `movieReviewSnippets_GroundTruth.txt` of VADER (C. J. Hutto and E. Gilbert, ICWSM 2014; MIT licence), in
the folder `reviews` of a data folder. The sentences are chosen from every second line, and the vocabulary is learned
from the other lines, so that it contains nothing of a victim. The trainer of the vocabulary breaks ties differently in
each run; a vocabulary that is there is therefore kept.

    python studies/reviews.py DATA
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from tokenizers import BertWordPieceTokenizer

SOURCE = "reviews/movieReviewSnippets_GroundTruth.txt"
SHA256 = "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350"
EACH = 1000
TOKENS = 4096
LENGTHS = range(8, 31)
"""Numbers of tokens of a chosen sentence, without the two that mark its ends."""

TARGET = Path(__file__).resolve().parent.parent / "leakbench" / "data" / "reviews"


def main(folder: Path) -> None:
    """Write sentences.tsv and vocabulary.txt."""
    content = (folder / SOURCE).read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise SystemExit(f"{folder / SOURCE}: another file than the one of sha256 {SHA256}")
    lines = [_decoded(line).split("\t") for line in content.splitlines()]
    rows = [(float(score), " ".join(text.split())) for _, score, text in lines]
    vocabulary = TARGET / "vocabulary.txt"
    if not vocabulary.exists():
        learned = BertWordPieceTokenizer(lowercase=True)
        learned.train_from_iterator(
            [text for _, text in rows[1::2]], vocab_size=TOKENS, min_frequency=2, show_progress=False
        )
        tokens = sorted(learned.get_vocab().items(), key=lambda item: item[1])
        vocabulary.write_text("".join(f"{token}\n" for token, _ in tokens), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    chosen: dict[str, int] = {}
    left = {0: EACH, 1: EACH}
    for score, text in rows[::2]:
        label = int(score > 0)
        fits = len(tokenizer.encode(text, add_special_tokens=False).ids) in LENGTHS
        if score and fits and left[label] and text not in chosen:
            chosen[text] = label
            left[label] -= 1
    if any(left.values()):
        raise SystemExit(f"too few sentences: {left} are missing")
    (TARGET / "sentences.tsv").write_text(
        "".join(f"{text}\t{label}\n" for text, label in chosen.items()), encoding="utf-8"
    )


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
