"use strict";
// The page is complete without a script. A script adds sorting, cues where something scrolls, downloads of figures and the slider.
(() => {
  // Tables with data-sortable get a button in each heading.
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
        table.tBodies[0].append(...rows);  // Rows without a value are last in both directions.
        said.textContent = `Sorted by ${button.textContent}, ${down ? "descending" : "ascending"}.`;
      });
    });
  }

  // A shadow at the right or lower edge of a region says that it scrolls further.
  for (const region of document.querySelectorAll(".scroll")) {
    const cue = document.createElement("div");
    cue.className = "cue";
    region.replaceWith(cue);
    cue.append(region);
    const update = () => {
      cue.classList.toggle("more-right", region.scrollLeft + region.clientWidth < region.scrollWidth - 2);
      cue.classList.toggle("more-below", region.scrollTop + region.clientHeight < region.scrollHeight - 2);
    };
    region.addEventListener("scroll", update, { passive: true });
    new ResizeObserver(update).observe(region);
    update();
  }

  // Downloads: the figure as it is on the page, with its colours written into it.
  const save = (name, url) => {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  };
  const DRAWN = ["fill", "stroke", "opacity", "font-size", "font-family", "font-weight", "text-anchor", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap"];
  const standalone = (figure) => {
    const copy = figure.cloneNode(true);
    const originals = figure.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((element, place) => {
      const style = getComputedStyle(originals[place]);
      for (const name of DRAWN) element.style.setProperty(name, style.getPropertyValue(name));
    });
    const [, , width, height] = figure.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    copy.style.background = getComputedStyle(document.body).backgroundColor;
    copy.style.color = getComputedStyle(figure).color;
    return { width: Number(width), height: Number(height), text: new XMLSerializer().serializeToString(copy) };
  };
  const svg = (text) => "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  const png = (drawing, name) => {
    const picture = new Image();
    picture.onload = () => {
      const canvas = document.createElement("canvas"), scale = 3;
      canvas.width = Math.round(drawing.width * scale);
      canvas.height = Math.round(drawing.height * scale);
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.fillStyle = getComputedStyle(document.body).backgroundColor;
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(picture, 0, 0, canvas.width, canvas.height);
      save(name, canvas.toDataURL("image/png"));
    };
    picture.src = svg(drawing.text);
  };
  const downloads = (after, name, drawing) => {
    const line = document.createElement("div");
    line.className = "save";
    for (const kind of ["SVG", "PNG"]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = kind;
      button.setAttribute("aria-label", `Download ${name} as ${kind}`);
      button.addEventListener("click", () => {
        const made = drawing(), file = `leakbench-${name}.${kind.toLowerCase()}`;
        if (kind === "SVG") save(file, svg(made.text));
        else png(made, file);
      });
      line.append(button);
    }
    after.after(line);
  };
  for (const figure of document.querySelectorAll("svg.chart")) downloads(figure, figure.dataset.name, () => standalone(figure));

  // A gallery becomes one figure: a column for each victim's example, a line for each kind of tile.
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
  const drawn = (gallery) => {
    const columns = [...gallery.querySelectorAll(".tiles")].map((tiles) => [...tiles.children]);
    const style = getComputedStyle(document.body), side = 8, caption = 16, heading = 150;
    const shown = (tile) => tile.querySelector(".now") || tile;
    const wide = columns[0][0].offsetWidth, high = columns[0][0].querySelector("img, .missing").offsetHeight;
    const most = Math.min(columns.length, gallery.classList.contains("strip") ? 3 : 8);
    const lines = columns[0].length, bands = Math.ceil(columns.length / most);
    const cell = { width: wide + side, height: high + caption + side };
    const width = heading + most * cell.width, height = bands * (lines * cell.height + 2 * side);
    const parts = [];
    columns.forEach((column, place) => {
      const left = heading + (place % most) * cell.width, band = Math.floor(place / most);
      column.forEach((tile, line) => {
        const top = band * (lines * cell.height + 2 * side) + line * cell.height + side;
        const picture = shown(tile).querySelector("img"), score = shown(tile).querySelector(".score, .missing");
        if (place % most === 0) {
          const words = tile.querySelector(".label").textContent.split(" ");
          const half = words.length > 2 ? Math.ceil(words.length / 2) : words.length;
          [words.slice(0, half), words.slice(half)].forEach((some, row) =>
            parts.push(`<text x="${side}" y="${top + 14 + 15 * row}">${escaped(some.join(" "))}</text>`));
        }
        if (picture) parts.push(`<image x="${left}" y="${top}" width="${wide}" height="${high}" preserveAspectRatio="none" style="image-rendering: pixelated" href="${picture.src}"/>`);
        if (score) parts.push(`<text x="${left}" y="${top + high + 12}" font-size="11">${escaped(score.textContent.trim())}</text>`);
      });
    });
    const holder = document.createElement("div");
    holder.innerHTML = `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="12" fill="${style.color}"><rect width="100%" height="100%" fill="${style.backgroundColor}"/>${parts.join("")}</svg>`;
    return { width, height, text: new XMLSerializer().serializeToString(holder.firstChild) };
  };
  for (const gallery of document.querySelectorAll(".gallery")) {
    const name = gallery.dataset.name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
    downloads(gallery.querySelector("p"), `gallery-${name}`, () => drawn(gallery));
  }

  // The slider shows one level of each element with data-level, and names that level.
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
