"""Small data sets in the form of CIFAR-100, TinyImageNet, FEMNIST, CelebA and Omniglot, and the recipes of their catalog."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from PIL import Image

from leakbench.core.recipe import catalog_folder

ATTRIBUTES = ("Bald", "Male", "Smiling")


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def picture(path: Path, seed: int, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path, "JPEG", quality=95)


def python_2(value: dict[str, Any]) -> bytes:
    """Return a pickle that an unpickler reads like one of Python 2 and NumPy 1: texts are bytes, arrays are in `numpy.core`."""
    as_bytes = {key.encode(): each for key, each in value.items()}
    return pickle.dumps(as_bytes, protocol=3).replace(b"numpy._core.", b"numpy.core.")


def cifar100(
    folder: Path, train: int = 60, test: int = 20, changed: Mapping[str, bytes] = MappingProxyType({})
) -> dict[str, Any]:
    """Write a CIFAR-100 of four fine and two coarse classes; return the fields of its format."""
    rng = np.random.default_rng(0)
    files = {"meta": {"fine_label_names": [b"a", b"b", b"c", b"d"], "coarse_label_names": [b"x", b"y"]}}
    for name, count in (("train", train), ("test", test)):
        fine = rng.integers(0, 4, count).tolist()
        batch = {"filenames": [b"f.png"] * count, "batch_label": b"only", "fine_labels": fine}
        files[name] = {
            **batch,
            "coarse_labels": [f // 2 for f in fine],
            "data": rng.integers(0, 256, (count, 3072), np.uint8),
        }
    folder.mkdir(parents=True)
    fields = {}
    for role, name in (("train", "train"), ("test", "test"), ("names", "meta")):
        content = changed.get(name, python_2(files[name]))
        (folder / name).write_bytes(content)
        fields[role] = {"file": name, "md5": md5(content)}
    return {"cifar100_python": fields}


def tiny_imagenet(folder: Path, classes: int = 3, each: int = 20, test: int = 9) -> dict[str, Any]:
    """Write a TinyImageNet; return the fields of its format."""
    numbers = [f"n{i:08}" for i in range(classes)]
    for label, name in enumerate(numbers):
        for i in range(each):
            picture(folder / "train" / name / "images" / f"{name}_{i}.JPEG", 1000 * label + i, (64, 64))
        (folder / "train" / name / f"{name}_boxes.txt").write_text("")
    rows = []
    for i in range(test):
        picture(folder / "val" / "images" / f"val_{i}.JPEG", 10**6 + i, (64, 64))
        rows.append(f"val_{i}.JPEG\t{numbers[(i + 1) % classes]}\t0\t0\t1\t1\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "wnids.txt").write_text("\n".join(reversed(numbers)))
    (folder / "words.txt").write_text("".join(f"{n}\tword {i}, other\n" for i, n in enumerate(numbers[:-1])))
    return {"tiny_imagenet": {"train": classes * each, "test": test}}


def images_of(writer: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(writer)
    return {"x": (rng.integers(0, 256, (count, 784)) / 255).tolist(), "y": rng.integers(0, 62, count).tolist()}


def femnist(folder: Path, counts: tuple[int, ...] = (26, 25, 30, 22, 20, 9), place: str = "all_data") -> dict[str, Any]:
    """Write a FEMNIST of writers with these numbers of images, two writers a file; return the fields of its format."""
    (folder / place).mkdir(parents=True)
    writers = [(f"f{i:04}_{i:02}", images_of(i, count)) for i, count in enumerate(counts)]
    for start in range(0, len(writers), 2):
        data = dict(writers[start : start + 2])
        body = {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}
        (folder / place / f"all_data_{start // 2}.json").write_text(json.dumps(body))
    return {"femnist": {}}


def omniglot(folder: Path, characters: tuple[int, ...] = (3, 2), each: int = 20) -> dict[str, Any]:
    """Write an Omniglot of alphabets `B`, `A`, ... with these numbers of characters; return the fields of its format."""
    rng = np.random.default_rng(0)
    names = [f"{'BACD'[i]}/character{1 + j:02}" for i, count in enumerate(characters) for j in range(count)]
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for person in range(each):
            ink = Image.fromarray(rng.integers(0, 2, (105, 105)) > 0)  # One bit a pixel, as published.
            ink.save(folder / name / f"{number:04}_{1 + person:02}.png")
    return {"omniglot": {}}


def celeba(folder: Path, people: int = 9, each: int = 21, **changed: str) -> dict[str, Any]:
    """Write a CelebA, two thirds of whose people are in the training split; return the fields of its format."""
    count = people * each
    names = [f"{i + 1:06}.jpg" for i in range(count)]
    for i, name in enumerate(names):
        picture(folder / "img_align_celeba" / name, i, (218, 178))
    rng = np.random.default_rng(0)
    values = rng.choice([-1, 1], (count, len(ATTRIBUTES)))
    rows = "".join(f"{n} {'  '.join(map(str, v))}\n" for n, v in zip(names, values, strict=True))
    splits = [(0, 0, 2)[i % people % 3] for i in range(count)]
    tables = {
        "list_attr_celeba.txt": f"{count}\n{' '.join(ATTRIBUTES)} \n{rows}",
        "identity_CelebA.txt": "".join(f"{n} {100 + i % people}\n" for i, n in enumerate(names)),
        "list_eval_partition.txt": "".join(f"{n} {s}\n" for n, s in zip(names, splits, strict=True)),
    } | changed
    fields = {}
    for role, (name, text) in zip(("attributes", "people", "splits"), tables.items(), strict=True):
        (folder / name).write_text(text)
        fields[role] = {"file": name, "md5": md5(text.encode())}
    return {"celeba": fields}


MADE = {
    "cifar100": (cifar100, "cifar100/cifar-100-python"),
    "tiny_imagenet": (tiny_imagenet, "tiny-imagenet/tiny-imagenet-200"),
    "femnist": (femnist, "femnist/data"),
    "celeba": (celeba, "celeba"),
    "omniglot": (omniglot, "omniglot/images_background_small1"),
}
"""{data set: (writes a small one, its folder below a data folder)}."""


def small_recipe(name: str, folder: Path) -> str:
    """Write a small set below `folder`, and the catalog's recipe with its checksums and small clients; return the path."""
    make, place = MADE[name]
    fields = yaml.safe_load((catalog_folder("datasets") / f"{name}.yaml").read_text())
    fields["format"] = make(folder / place)
    fields["federation"]["examples_per_client"] = 20
    fields.pop("sizes", None)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(fields))
    return str(path)
