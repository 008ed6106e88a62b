"""Tries leakbench's twelve reliability promises, and counts trials and failures; each promise has one module.

python -m tests.reliability crashes fetching      tries these promises at full length and records the results
python -m tests.reliability                       tries all of them (hours)
python -m tests.reliability --short               tries a short version, as the ordinary test suite does; records nothing
python -m tests.reliability --report              prints the table of docs/reliability.md from the records
"""
