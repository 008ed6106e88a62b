/* Tables of the site: a click on a heading sorts, long cells wrap, the column of names stays in view.
   Without scripts the tables are complete and in their written order. */
(function () {
  "use strict";

  const LONG = 42, SHORT = 26, FILTERED = 15;

  /** Return a number of a cell such as "0.62 [0.54, 0.70]", ".83", "at least 0.03" or "1,000"; NaN where it has none. */
  function number(text) {
    const match = text.replace(/(\d),(?=\d{3})/g, "$1").match(/^(?:at (?:least|most) |[<>≤≥~] ?)?([-+−]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)/i);
    return match ? Number(match[1].replace("−", "-")) : NaN;
  }

  function texts(table, column) {
    return Array.from(table.tBodies[0].rows, (row) => (row.cells[column] ? row.cells[column].textContent.trim() : ""));
  }

  function sort(table, column, button) {
    const head = button.closest("th");
    const descending = head.getAttribute("aria-sort") === "ascending";
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const keys = new Map(texts(table, column).map((text, at) => [rows[at], text]));
    const numeric = [...keys.values()].filter((text) => !Number.isNaN(number(text))).length * 2 > keys.size;
    const compared = (a, b) => {
      const one = keys.get(a), other = keys.get(b);
      if (!numeric) return (descending ? -1 : 1) * one.localeCompare(other);
      const x = number(one), y = number(other);
      // Cells without a number come last in both orders.
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return descending ? y - x : x - y;
    };
    rows.sort(compared).forEach((row) => body.appendChild(row));
    table.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  function prepare(table) {
    const body = table.tBodies[0];
    if (!body || !table.tHead || body.rows.length < 2) return;
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "lb-sort";
      button.title = "Sort by this column";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, column, button));
    });
    for (const row of body.rows) {
      if (row.textContent.includes("learned nothing")) row.dataset.muted = "";
      for (const cell of row.cells) {
        const length = cell.textContent.trim().length;
        if (length > LONG) cell.dataset.long = "";
        else if (length <= SHORT) cell.dataset.short = "";
      }
    }
    const columns = table.tHead.rows[0].cells.length;
    const names = [...Array(columns).keys()].find((column) => texts(table, column).some((text) => /[a-z]/i.test(text)));
    if (columns > 4 && names !== undefined && names < 2) {
      for (const row of table.rows) if (row.cells[names]) row.cells[names].dataset.name = "";
    }
    if (body.rows.length >= FILTERED) filter(table);
  }

  function filter(table) {
    const box = document.createElement("input");
    box.type = "search";
    box.className = "lb-filter";
    box.placeholder = "Filter " + table.tBodies[0].rows.length + " rows";
    box.setAttribute("aria-label", "Filter the rows of the table below");
    box.addEventListener("input", () => {
      const wanted = box.value.toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    (table.closest(".md-typeset__scrollwrap") || table).before(box);
  }

  const start = () => document.querySelectorAll(".md-content table:not([class])").forEach(prepare);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
