"""A corpus of malformed inputs, one kind in each file; `corpus.KINDS` lists all of them, `tried.tried` tries one.

leakbench must refuse each input with exit code 2 and one line on stderr that names the file or option, the field, the given value
and what is accepted. It must print nothing on stdout and write nothing.
"""
