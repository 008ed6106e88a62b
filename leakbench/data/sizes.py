"""The recorded sizes of a data set, for computations that need no examples."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from leakbench.core.errors import InputError
from leakbench.core.part import Count, part
from leakbench.data.dataset import Dataset

__all__ = ["Sizes"]


@part("sizes")
class Sizes:
    """The sizes of a data set."""

    shape: Annotated[
        tuple[Count, ...],
        Field(
            min_length=1,
            description=(
                "Shape of one input: (channels, height, width) of a picture, (features,) of a record, (length, tokens of the "
                "vocabulary) of a text."
            ),
        ),
    ]
    train: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(min_length=1, description="Number of training examples of each class."),
    ]
    test: Annotated[Count, Field(description="Number of test examples.")]
    victims: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(description="Classes whose training examples may be victims; empty for all classes."),
    ] = ()

    @classmethod
    def of(cls, data: Dataset) -> Sizes:
        """Return the sizes of loaded data."""
        train = data.train_targets.bincount(minlength=data.classes).tolist()
        attacked = sorted(set(data.train_targets[data.victims].tolist()))
        everyone = len(data.victims) == len(data.train_targets)
        return cls(data.layout, tuple(train), len(data.test_targets), () if everyone else tuple(attacked))

    def check(self, data: Dataset) -> None:
        """Raise InputError for data of other sizes."""
        loaded = Sizes.of(data)
        for field in ("shape", "train", "test", "victims"):
            recorded, actual = getattr(self, field), getattr(loaded, field)
            if recorded != actual:
                raise InputError(
                    f"dataset {data.name!r}: sizes: {field}: the recipe has {_text(recorded)}, the data have"
                    f" {_text(actual)}; correct the recipe"
                )

    def without_examples(self, name: str) -> Dataset:
        """Return a data set of these sizes whose inputs have a shape but no values (PyTorch's device `meta`).

        The training labels are sorted, since only their counts are recorded. Reading the value of an input raises an error.
        """
        targets = torch.arange(len(self.train)).repeat_interleave(torch.tensor(self.train))
        victims = torch.isin(targets, torch.tensor(self.victims)) if self.victims else torch.ones_like(targets).bool()
        kinds: dict[int, Literal["image", "text"]] = {3: "image", 2: "text"}
        shape, tokens = (self.shape[:1], self.shape[1]) if len(self.shape) == 2 else (self.shape, 0)
        return Dataset(
            name=name,
            kind=kinds.get(len(self.shape), "tabular"),
            train_inputs=torch.empty(len(targets), *shape, device="meta"),
            train_targets=targets,
            test_inputs=torch.empty(self.test, *shape, device="meta"),
            test_targets=torch.empty(self.test, dtype=torch.int64, device="meta"),
            class_names=tuple(map(str, range(len(self.train)))),
            victims=victims.nonzero()[:, 0],
            content="",
            tokens=tokens,
        )


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
