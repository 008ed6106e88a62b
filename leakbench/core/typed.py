"""Strict checks of a file's fields against the types of a plain dataclass, and of the arguments of public functions."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakbench.core.errors import InputError, nearest

__all__ = ["STRICT", "check_fields", "got", "typed_arguments", "typed_fields", "types_of"]

F = TypeVar("F", bound=Callable[..., Any])

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def check_fields(cls: Any, fields: Mapping[str, Any], called: str, whole: bool = False) -> None:
    """Raise InputError for an unknown field, or a value of another type, infinite or NaN.

    Args:
        cls: The dataclass.
        fields: {field: value}, as in `typed_fields`.
        called: Name of the object in messages.
        whole: Whether all fields without a default are required.
    """
    typed_fields(types_of(cls), fields, f" of {called}")
    for each in dataclasses.fields(cls) if whole else ():
        if each.name not in fields and each.default is dataclasses.MISSING:
            raise InputError(f"field {each.name!r} of {called} is missing")


def typed_fields(types: Mapping[str, TypeAdapter[Any]], fields: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """Return fields as their types have them: a whole number of a field of real numbers becomes a float.

    Args:
        types: {field: what checks its type}, as `types_of` returns them.
        fields: {field: value}. Lists are accepted for tuples and texts for paths, as in YAML.
        of: The object in messages, as in ` of a federation`.

    Raises:
        InputError: A field is unknown, or its value has another type, is infinite or NaN.
    """
    found = {}
    for name, value in fields.items():
        if name not in types:
            raise InputError(f"unknown field {name!r}{of}{nearest(str(name), list(types))}")
        try:
            found[name] = types[name].validate_python(tuple(value) if isinstance(value, list) else value)
        except ValidationError as error:
            message, got = error.errors()[0]["msg"], list(value) if isinstance(value, tuple) else value
            raise InputError(f"{name}: {message[0].lower()}{message[1:]}, got {got!r}") from None
    return found


@lru_cache
def types_of(cls: Any) -> Mapping[str, TypeAdapter[Any]]:
    """Return {field: what checks its type} of a dataclass."""
    hints = get_type_hints(cls)
    kinds = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    return {
        name: TypeAdapter(str | Path | None if kind == (Path | None) else kind, config=STRICT)
        for name, kind in kinds.items()
    }


NUMBERS = {int: Integral, float: Real}
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "True or False",
    NoneType: "None",
    Path: "a path",
}
SEVERAL = {int: "whole numbers", float: "numbers", str: "strings"}
"""{type: its name in messages}, of one value and of several."""

CLASSES = {
    "Module": "a torch.nn.Module",
    "Tensor": "a tensor",
    "ndarray": "an array",
    "Result": "a result of leakbench.run",
    "GradientCanaries": "canaries of leakbench.canaries.gradients",
    "Canaries": "canaries of leakbench.canaries",
}
"""{class outside this module: its name in messages}; other classes are named with their modules."""


def typed_arguments(function: F) -> F:
    """Return a public function, method or class that checks the types of its arguments against its annotations.

    Values are passed on unchanged. NumPy's numbers are numbers, and lists are accepted for tuples. The elements of mappings and
    arrays are left to the function.

    Args:
        function: The function, or a class, whose `__init__` checks. Keyword arguments behind `**` are not checked.

    Returns:
        The function, which raises InputError for an unknown keyword argument, and for an argument of another type.
    """
    if isinstance(function, type):
        function.__init__ = typed_arguments(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)
    checked = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    # Names behind `**` are the function's own to check.
    open_ended = len(checked) < len(signature.parameters)
    known = [each.name for each in checked if each.name != "self"]

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        for name in () if open_ended else kwargs:
            if name not in known:
                raise InputError(f"unknown field {name!r}{nearest(name, known)}")
        given, kinds = signature.bind(*args, **kwargs).arguments, _hints_of(function)
        for each in checked:
            if each.name not in given or each.name not in kinds:
                continue
            kind, value = kinds[each.name], given[each.name]
            for one in value if each.kind is each.VAR_POSITIONAL else (value,):
                if not _fits(one, kind):
                    raise InputError(f"{each.name}: {got(one)}, expected {_words_of(kind)}")
        return function(*args, **kwargs)

    return cast(F, called)


def got(value: object) -> str:
    """Return the part of a message about a value of a wrong type."""
    text = repr(value)
    return f"got {text if len(text) <= 40 else 'a value'} of type {type(value).__name__}"


_hints_of = lru_cache(get_type_hints)


def _fits(value: Any, kind: Any, inner: bool = False) -> bool:
    """Return whether a value has a type; with `inner`, only numbers, strings and sequences of them are judged."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, each, inner) for each in args)
    if origin in (tuple, list, Sequence):
        listed = isinstance(value, list | tuple) and all(_fits(each, args[0], True) for each in value)
        # A sequence of numbers may be an array.
        return listed or (args[0] in NUMBERS and hasattr(value, "__array__"))
    if kind in WORDS:
        return isinstance(value, NUMBERS.get(kind, kind)) and (kind is bool or not isinstance(value, bool))
    if origin is Literal:
        return value in args
    wanted = origin or kind
    return inner or wanted is Any or not isinstance(wanted, type) or isinstance(value, wanted)


def _words_of(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType, Literal):
        each = map(repr, args) if origin is Literal else map(_words_of, sorted(args, key=lambda one: one is NoneType))
        several = [*dict.fromkeys(each)]
        return " or ".join(filter(None, [", ".join(several[:-1]), several[-1]]))
    if origin in (tuple, list, Sequence):
        return f"a list of {SEVERAL.get(args[0], 'these')}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping of names{' to tensors' if getattr(args[1], '__name__', '') == 'Tensor' else ''}"
    if origin is Callable:
        return "a function"
    return WORDS.get(kind) or CLASSES.get(kind.__name__) or f"an object of {kind.__module__}.{kind.__qualname__}"
