"""A corpus of malformed inputs, a kind a file; `corpus.KINDS` has them all, `tried.tried` tries one.

Each is refused: exit code 2, one line on stderr that names file or option, field, what was got and what is accepted; nothing on
stdout; nothing written.
"""
