"""Reads untrusted YAML: only plain data, no duplicate keys, no multiplying aliases, no control characters, a limited length."""

from __future__ import annotations

import re
from typing import Any

import yaml

from leakbench.bounded import CONTROLS

__all__ = ["MOST_BYTES", "parse"]

MOST_BYTES = 500_000
"""Largest number of bytes of a file; the longest one of the catalog has a tenth of it."""

MOST_NODES = 100_000
"""Largest number of values, keys and lists of a file with expanded aliases: nine lines of nine aliases each are 10^9."""

MERGE = "tag:yaml.org,2002:merge"
"""Tag of `<<: *other`, which inserts the fields of another mapping."""


def parse(text: str) -> Any:
    """Return the data of a YAML text; raises YAMLError, TypeError, ValueError or RecursionError for invalid or too much data."""
    # A SafeLoader, which creates only plain data.
    return yaml.load(text, Loader=_Strict)  # noqa: S506


class _Strict(yaml.SafeLoader):
    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark, alias, before = self.peek_event().start_mark, self.check_event(yaml.AliasEvent), self._nodes  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if alias:
            if id(node) not in self._sizes:
                raise yaml.constructor.ConstructorError(None, None, "an alias inside its own definition", mark)
            self._nodes += self._sizes[id(node)]
        else:
            self._nodes += 1
            self._sizes[id(node)] = self._nodes - before
            if isinstance(node, yaml.ScalarNode) and CONTROLS.search(node.value):
                raise yaml.constructor.ConstructorError(None, None, "a control character in a text", mark)
        if self._nodes > MOST_NODES:
            message = f"more than {MOST_NODES:,} values, its aliases followed"
            raise yaml.constructor.ConstructorError(None, None, message, mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Checked here, since later the mapping also has the fields that `<<` inserts, which the written ones override.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == MERGE:
                continue
            key = self.construct_object(key_node)
            if key in known:
                raise yaml.constructor.ConstructorError(None, None, f"field {key!r} appears twice", key_node.start_mark)
            known.add(key)
        return node


# YAML 1.1 reads 1e9 and 1.0e9 as texts, since it requires the sign of an exponent; YAML 1.2 reads them as numbers.
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
