"""Peers' own scoring code, imported from their checkouts, in the form that `leakbench conformance` asks.

Each adapter calls what the peer calls when it reports, and hands over arrays as they are. Where something that it imports
is not installed, a placeholder stands in, named in `PLACEHOLDERS` of `stand_in.py`; none of them computes a score. LPIPS of
peers that would fetch weights runs on a random backbone instead: in which range pictures are fed to it does not depend on
the weights.
"""
