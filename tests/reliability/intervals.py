"""Intervals have their stated coverage, and audits and gates their stated error rates: exactly, or by simulation."""

from __future__ import annotations

from pathlib import Path

from tests.reliability import intervals_audits, intervals_gate, intervals_paired, intervals_shares
from tests.reliability.intervals_cells import check_cells
from tests.reliability.tally import Tally

__all__ = ["check"]


def check(full: bool, scratch: Path) -> Tally:
    """Try intervals of shares, paired intervals, the gate and the audit; all draws use fixed seeds."""
    tally = Tally()
    intervals_shares.check_shares(tally, 4000 if full else 200)
    intervals_shares.check_batches(tally, 1000 if full else 40)
    intervals_shares.check_networks(tally, 4000 if full else 200)
    intervals_paired.check_shares(tally, (10, 20, 50, 100) if full else (10,))
    intervals_paired.check_batches(tally, 400 if full else 20, 2000 if full else 500)
    intervals_paired.check_means(tally, (10, 20, 50) if full else (10,), 2000 if full else 100, 2000 if full else 500)
    intervals_gate.check_decisions(tally, (10, 20, 50, 100) if full else (10,))
    intervals_gate.check_files(tally, scratch, 100 if full else 10, 40 if full else 2)
    intervals_gate.check_batches(tally, scratch, 400 if full else 2)
    intervals_audits.check_limits(tally, 1000 if full else 100, 20_000 if full else 2000)
    intervals_audits.check_audits(tally, 1000 if full else 1, 50_000 if full else 10_000)
    if full:
        check_cells(tally, scratch, 30)
    return tally
