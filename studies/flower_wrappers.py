"""Measure what leaks behind Flower's wrappers of differential privacy, with the epsilon claimed, valid and audited.

    python studies/flower_wrappers.py [--victims 20] [--page]

Needs `pip install 'leakbench[flower]'`. Each of Flower's five wrappers runs one round of its real strategy and mods on
`InProcessGrid`, of 100 clients with one digit each, and is attacked by autoleak, which knows clip and noise; then its release is
audited by calling the same code some thousand times. Writes flower_wrappers.csv and flower_wrappers.md into its own folder; with
`--page` only the page, from the existing rows.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path

from flower_wrappers_page import page
from shared.options import parser
from shared.rows import measured, store_of

from leakbench.core.scripts import one_line
from leakbench.flower import check_flwr
from leakbench.study.rows import Row

RESULTS = Path(__file__).parents[1] / "results" / "papers"


def main() -> None:
    """Measure the wrappers and write the rows and the page."""
    asked = parser(__doc__, "--page")
    asked.add_argument("--victims", type=int, default=20, help="attacked at each point [default: 20]")
    given = asked.parse_args()
    store = store_of(RESULTS / "flower_wrappers.csv", first=("wrapper",))
    if not given.page:
        check_flwr()
        from flower_wrappers_run import accounted, audited, leaked, wrappers  # noqa: PLC0415

        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        kinds = {wrapper.name: wrapper for wrapper in wrappers()}
        store = store_of(store.path, list(kinds), first=("wrapper",))

        def of(name: str) -> list[Row]:
            found = {**leaked(kinds[name], given.victims), **accounted(kinds[name]), **audited(kinds[name])}
            return [{"wrapper": name, "victims": given.victims, **found, "flwr": version("flwr")}]

        measured(store, list(kinds), of, str)
    written = page(store.existing.read())
    (RESULTS / "flower_wrappers.md").write_text(written, encoding="utf-8")
    print(written)


if __name__ == "__main__":
    one_line(main)
