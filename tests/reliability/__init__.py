"""How much of what leakbench promises of its reliability was tried, and how often it failed: twelve points, a module each.

python -m tests.reliability crashes fetching      tries these points, at full length, and records what came of them
python -m tests.reliability                       tries all of them (hours)
python -m tests.reliability --short               tries a short version, as the ordinary suite does; nothing is recorded
python -m tests.reliability --report              prints the table of docs/reliability.md from what is recorded
"""
