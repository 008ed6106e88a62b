"use strict";
// Tables with data-sortable get a button in each heading; without a script they stand in the order of the run.
(() => {
  const value = (row, place) => row.cells[place].textContent.trim();
  const compare = (one, other) => {
    const a = parseFloat(one), b = parseFloat(other);
    const numbers = !Number.isNaN(a) && !Number.isNaN(b);
    return numbers && a !== b ? a - b : one.localeCompare(other, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const said = document.createElement("p");
    said.className = "said";
    said.setAttribute("role", "status");
    table.parentElement.after(said);
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent.trim();
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const absent = (row) => ["n/a", ""].includes(value(row, place));
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => absent(a) - absent(b) || (down ? -1 : 1) * compare(value(a, place), value(b, place)));
        table.tBodies[0].append(...rows);  // What has no value comes last either way.
        said.textContent = `Sorted by ${button.textContent}, ${down ? "descending" : "ascending"}.`;
      });
    });
  }
  // The slider shows one level of everything that stands under data-level, and says which one.
  const slider = document.querySelector("input[data-levels]");
  if (slider) {
    const names = JSON.parse(slider.dataset.levels);
    const show = () => {
      const level = slider.value;
      for (const part of document.querySelectorAll("[data-level]")) {
        const now = part.dataset.level === level;
        part.classList.toggle("now", now);
        if (part.closest(".stack")) part.setAttribute("aria-hidden", String(!now));
        else part.hidden = !now;
      }
      slider.setAttribute("aria-valuetext", names[level]);
      for (const output of document.querySelectorAll("output[for=level]")) output.textContent = names[level];
    };
    slider.addEventListener("input", show);
    show();
  }
})();
