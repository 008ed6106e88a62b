"""What a gate says: lines for a terminal, Markdown for a pull request, JUnit XML for a CI's list of tests."""

from __future__ import annotations

from xml.etree import ElementTree

from leakbench.gate.gate import Check
from leakbench.leakage_points import point_name
from leakbench.scripts import in_table, markdown_table

__all__ = ["junit", "lines", "markdown"]


def lines(checks: list[Check]) -> list[str]:
    """Return a line a check, failures with who broke, and the sum."""
    said = [f"{'ok    ' if c.holds else 'FAILED'}  {_name(c)}: {c.said}{_who(c)}" for c in checks]
    failed = sum(not c.holds for c in checks)
    return [*said, f"gate: {'passed' if not failed else f'{failed} of {len(checks)} checks failed'}"]


def markdown(checks: list[Check], name: str) -> str:
    """Return a page for a pull request."""
    failed = sum(not c.holds for c in checks)
    head = f"### leakbench gate: {'passed' if not failed else 'failed'} ({_text(name)})"
    rows = [("passed" if c.holds else "**failed**", _text(_name(c)), _text(c.said + _who(c))) for c in checks]
    return "\n".join([head, "", markdown_table(("", "check", "found"), rows)]) + "\n"


def junit(checks: list[Check], name: str) -> str:
    """Return a JUnit test suite, a case a check."""
    failed = sum(not c.holds for c in checks)
    suite = ElementTree.Element(
        "testsuite", name=f"leakbench gate {name}", tests=str(len(checks)), failures=str(failed)
    )
    for c in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="leakbench.gate", name=c.name)
        if not c.holds:
            ElementTree.SubElement(case, "failure", message=c.said + _who(c))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _name(check: Check) -> str:
    """Return the name of a check for a reader; JUnit keeps the key of the leakage point."""
    point, space, what = check.name.partition(" ")
    return f"{point_name(point)}{space}{what}"


def _who(check: Check) -> str:
    return f"; victims that broke: {', '.join(map(str, check.victims))}" if check.victims else ""


def _text(words: str) -> str:
    """Return words that stay words in a Markdown table."""
    return in_table(words)
