"""Finds phrases in help texts and pages that a reader has to read twice."""

import re

__all__ = ["hard_phrases"]

PHRASES = (
    r"\b[Ww]ho(?:ever)? (?:reads?|knows?|saw|sees|is|was|has|had|gets?|does|holds|learns|listens|guesses)\b",
    r"(?:^|[.:;] )Of (?:a|an|the|one|it|several|those|each|all)\b",
    r"\b(?:is|are) (?:no|none)\b(?! longer)",
    r"\b(?:[Ww]hatever|[Ww]herever|[Nn]obody|[Bb]eside|[Aa]new)\b",
    r"\bgo(?:es|ne|ing)? on with\b",
    r"\b(?:lies?|stands?) (?:in|at|with|beside|below|above|there|among|for|behind)\b",
    r"\b[Ww]hat (?:leaked|acts|lies|stands|has)\b",
    r"\bnot told from\b",
    r"\bin (?:the|whose|its) stead\b",
    r"\b(?:of|by) which\b",
    r"\bto the bit\b",
    r"\bof (?:one's|his|hers|theirs) own\b",
)


def hard_phrases(text: str) -> list[str]:
    """Return the hard phrases of a text."""
    return [match.group(0) for phrase in PHRASES for match in re.finditer(phrase, text, re.MULTILINE)]
