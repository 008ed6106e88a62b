"""CSV files: records of people, and rows of measured tables."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable
from pathlib import Path

from leakbench.data.tables import COLUMNS
from tests.bad.case import Case, written
from tests.bad.picture_files import RUN, recipe
from tests.published_files import without, written_by_hand

ROWS = "leakage_batches"

RECORD = "{age}, Private, 77516, Bachelors, 13, Never-married, Sales, {kin}, White, Male, 0, 0, 40, Cuba, {income}\n"
RECORDS = "".join(
    RECORD.format(age=20 + i, kin=("Wife", "Husband")[i % 2], income=("<=50K", ">50K")[i % 2]) for i in range(12)
)


def _adult(data: str | bytes, *says: str) -> Case:
    def write(folder: Path) -> None:
        (folder / "data" / "mine").mkdir(parents=True)
        named = {}
        for role, name, text in (("data", "adult.data", data), ("test", "adult.test", RECORDS)):
            content = text if isinstance(text, bytes) else text.encode()
            (folder / "data" / "mine" / name).write_bytes(content)
            named[role] = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
        recipe(folder, {"adult_csv": named}, "adult.*")

    return Case(RUN.replace("--victims 2", "--victims 2 --candidates 3"), ("adult.data", *says), write)


def _rows(change: Callable[[list[list[str]]], str], *says: str) -> Case:
    def write(folder: Path) -> None:
        written(f"{ROWS}.csv", change(written_by_hand(f"{ROWS}.csv")))(folder)

    return Case(f"reproduce {ROWS} --page --out .", (f"{ROWS}.csv", *says), write)


def _text(lines: list[list[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def _cell(column: str, value: str) -> Case:
    def change(lines: list[list[str]]) -> str:
        lines[1][lines[0].index(column)] = value
        return _text(lines)

    return _rows(change, column)


def _without(column: str) -> Case:
    return _rows(lambda lines: _text(without(lines, column)), column)


CASES = (
    _adult("", "adult.data"),
    _adult("\n\n\n"),
    _adult("one, two\n"),
    _adult(RECORDS + "1, 2, 3\n"),
    _adult(RECORDS.replace("20, Private", "old, Private", 1), "age"),
    _adult(RECORDS.replace("20, Private", ", Private", 1), "age"),
    _adult(RECORDS.replace("20, Private", "20.5, Private", 1), "age"),
    _adult(RECORDS.replace("20, Private", "99999999999999999999, Private", 1)),
    _adult(RECORDS.replace("20, Private", "nan, Private", 1), "age"),
    _adult(RECORDS.replace("<=50K", "some", 1), "income"),
    _adult(RECORDS.replace("<=50K", "", 1), "income"),
    _adult(RECORDS.replace("\n", ", more\n")),
    _adult(RECORDS.replace("20, Private", '"20, Private', 1)),
    _adult(b"\xff\xfe" + RECORDS.encode()),
    _adult(RECORDS.encode() + b"\x00\x00\x00"),
    _adult(",".join(COLUMNS) + "\n" + RECORDS, "age"),
    _rows(lambda lines: ""),
    _rows(lambda lines: "\n\n"),
    _rows(lambda lines: _text(lines)[:-9]),
    _rows(lambda lines: _text([*lines, lines[-1]])),
    _rows(lambda lines: _text([[*line, line[0]] for line in lines])),
    _rows(lambda lines: _text([*lines[:-1], lines[-1][:-1]])),
    _rows(lambda lines: _text(lines) + '"open\n'),
    _rows(lambda lines: _text(lines[1:])),
    _without("row"),
    _without("victims"),
    _without("asr"),
    _cell("asr", "x"),
    _cell("asr", "2"),
    _cell("asr", "nan"),
    _cell("victims", "many"),
    _cell("cell", ""),
)
