"""YAML from strangers: data alone, no key twice, no aliases that multiply, no control characters, no longer than recipes are."""

from __future__ import annotations

import re
from typing import Any

import yaml

from leakbench.bounded import CONTROLS

__all__ = ["MOST_BYTES", "parse"]

MOST_BYTES = 500_000
"""Of a file; the longest of the catalog has a tenth."""

MOST_NODES = 100_000
"""Values, keys and lists of a file after all of its aliases were followed: nine lines of nine aliases each are 10^9."""

MERGE = "tag:yaml.org,2002:merge"
"""Of `<<: *other`, the fields of another mapping."""


def parse(text: str) -> Any:
    """Return what a YAML text says; raises YAMLError, TypeError, ValueError or RecursionError for what is none, or too much."""
    # A SafeLoader, which makes nothing but plain data.
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
            said = f"more than {MOST_NODES:,} values, its aliases followed"
            raise yaml.constructor.ConstructorError(None, None, said, mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, since later the fields that `<<` takes from another mapping stand beside those written, which override them.
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


# YAML 1.1 reads 1e9 and 1.0e9 as words, since it wants the sign of an exponent; YAML 1.2, and whoever writes recipes, does not.
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
