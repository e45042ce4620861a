"use strict";
// Sorts and filters the tables, and opens the run that a link leads to. The page can be read
// without it.

const natural = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function key(row, column) {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  const value = cell.dataset.sort === undefined ? NaN : Number(cell.dataset.sort);
  return { value, text };
}

// Numbers before words, what is empty last; `way` is 1 upwards and -1 downwards.
function order(a, b, way) {
  const empty = (a.text === "") - (b.text === "");
  if (empty) return empty;
  const words = Number.isNaN(a.value) - Number.isNaN(b.value);
  if (words) return words;
  return way * (Number.isNaN(a.value) ? natural.compare(a.text, b.text) : a.value - b.value);
}

function sort(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const way = heads[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: key(row, column) }));
  rows.sort((a, b) => order(a.key, b.key, way));
  body.append(...rows.map((item) => item.row));
}

function filter(table, words, told) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...table.tBodies[0].rows];
  for (const row of rows) {
    const text = [...row.cells].map((cell) => cell.textContent.trim()).join(" ").toLowerCase();
    row.hidden = !wanted.every((word) => text.includes(word));
  }
  const shown = rows.filter((row) => !row.hidden).length;
  told.textContent = wanted.length ? `${shown} of ${rows.length} rows` : "";
}

function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) {
    if (at instanceof HTMLDetailsElement) at.open = true;
  }
  if (target) target.scrollIntoView();
}

for (const sheet of document.querySelectorAll("[data-sheet]")) {
  const table = sheet.querySelector("table");
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, column));
    head.append(button);
  });
  const bar = sheet.querySelector(".filter");
  if (bar) {
    bar.hidden = false;
    const input = bar.querySelector("input");
    input.addEventListener("input", () => filter(table, input.value, bar.querySelector("output")));
  }
}
// What is wider than the screen is reached by the keyboard too.
function reach() {
  for (const box of document.querySelectorAll(".wide")) {
    const names = { tabindex: "0", role: "group", "aria-label": box.dataset.label };
    const scrolls = box.scrollWidth > box.clientWidth;
    for (const [name, value] of Object.entries(names)) {
      if (scrolls) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }
}

window.addEventListener("resize", reach);
window.addEventListener("hashchange", open);
window.addEventListener("load", reach);
if (location.hash) open();
