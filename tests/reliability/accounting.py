"""Epsilon obeys its laws, agrees with other accountants, and is at least what an audit finds."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.accounting_audited import check_audited
from tests.reliability.accounting_laws import check_laws
from tests.reliability.accounting_ledger import check_ledger
from tests.reliability.accounting_others import check_dp_accounting, check_opacus
from tests.reliability.tally import Tally

__all__ = ["check"]


def check(full: bool, scratch: Path) -> Tally:
    """Try the laws on random mechanisms, the ledger on random runs, other accountants on a grid, audits of `*_valid`."""
    tally = Tally()
    check_laws(tally, 300 if full else 1)
    check_ledger(tally, 300 if full else 2)
    check_dp_accounting(tally, 1 if full else 96)
    check_opacus(tally, 1 if full else 96)
    check_audited(tally, 20_000 if full else 200, () if full else ("fed_sdp_valid",))
    return tally
