"""The notebooks of examples/notebooks: their cells are run in order, and their outputs are what the cells print.

    python docs/hooks/notebooks.py

runs all of them and writes the outputs into the files.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["executed", "notebooks", "texts"]

HOME = Path(__file__).parent.parent.parent / "examples" / "notebooks"


def notebooks() -> list[Path]:
    """Return the notebooks in the order of their names."""
    return sorted(HOME.glob("*.ipynb"))


def executed(path: Path, folder: Path) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, which are run one after another in a folder.

    The value of a cell's last expression is an output too, as in Jupyter. An error of a cell is raised.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for number, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
            cell["execution_count"] = number
            cell["outputs"] = list(_outputs("".join(cell["source"]), names, number))
    finally:
        os.chdir(before)
    return notebook


def texts(notebook: dict[str, Any]) -> list[str]:
    """Return what each code cell prints and shows as plain text."""
    return [
        "".join("".join(output.get("text") or output["data"].get("text/plain", "")) for output in cell["outputs"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def _outputs(source: str, names: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("default")  # A warning is shown, also by tests that make errors of warnings.
        exec(compile(body, "cell", "exec"), names)  # noqa: S102 - a notebook is code to run
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307 - as above
    if printed.getvalue():
        yield {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
    if value is not None:
        yield {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": _shown(value)}


def _shown(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"text/plain": _lines(repr(value))}
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    if html is not None:
        data["text/html"] = _lines(html)
    if hasattr(value, "savefig"):
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=90, metadata={"Software": None})
        data = {"text/plain": ["<Figure>"], "image/png": base64.b64encode(picture.getvalue()).decode("ascii")}
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Run the notebooks and write their outputs into the files."""
    for path in notebooks():
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(HOME.parent.parent)}\n")


if __name__ == "__main__":
    main()
