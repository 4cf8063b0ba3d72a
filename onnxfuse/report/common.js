// What all pages of results share: data, elements, figures, colours, and the box that says what is under the pointer.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"]; // Okabe and Ito
const DARK = ["#0072b2", "#d55e00", "#009e73", "#cc4c02", "#8c2d04"]; // of them, those on which white is read more easily
const HEAT = ["#ffffd4", "#fee391", "#fec44f", "#fe9929", "#ec7014", "#cc4c02", "#8c2d04"]; // ColorBrewer's YlOrBr
const inkOn = (colour) => (DARK.includes(colour) ? "#fff" : "#111");
const short = (kernel) => kernel.replace(/_[0-9a-f]{8}$/, ""); // without the digest of its code

const element = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const figure = (x) => (x === null || x === undefined ? "-" : Number(x.toPrecision(3)).toString());
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const amount = (x, unit) => {
  if (x === null || x === undefined) return "-";
  for (const [prefix, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (x >= size) return `${figure(x / size)} ${prefix}${unit}`;
  return `${figure(x)} ${unit}`;
};

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.append(text);
  return made;
}

function facts(pairs) {
  const list = element("dl");
  for (const [name, value] of pairs) if (value) list.append(element("dt", name), element("dd", value));
  return list;
}

const tip = element("div", undefined, { id: "tip", role: "status" });
document.body.append(tip);

/** Says something beside a place of the window; "" says nothing. */
function say(text, x = 0, y = 0) {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  tip.style.left = `${Math.max(4, Math.min(x + 12, window.innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, window.innerHeight - tip.offsetHeight - 8))}px`;
}

/** Says what a thing is beside the pointer, or beside the thing itself where the keyboard is used. */
function telling(thing, text) {
  const show = (event) => {
    const box = thing.getBoundingClientRect();
    const [x, y] = event.clientX ? [event.clientX, event.clientY] : [box.right, box.bottom];
    say(typeof text === "function" ? text(event) : text, x, y);
  };
  for (const name of ["pointerenter", "pointermove", "focus", "click"]) thing.addEventListener(name, show);
  for (const name of ["pointerleave", "blur"]) thing.addEventListener(name, () => say(""));
}

/** What a cell of figures says as a number, with its prefix; NaN where it says none. */
function numberIn(text) {
  const [, figures, prefix] = /^(-?[\d.]+)\s*([kMG]?)/.exec(text) ?? [];
  return figures === undefined ? NaN : Number(figures) * { "": 1, k: 1e3, M: 1e6, G: 1e9 }[prefix];
}

/** Sorts the rows of a table by a column: figures the largest first, words by the alphabet; again, the other way round. */
function sorted(head, at) {
  const down = head.getAttribute("aria-sort") === "none" ? head.classList.contains("right") : head.getAttribute("aria-sort") === "ascending";
  const rows = [...head.closest("table").rows].slice(1);
  const said = new Map(rows.map((row) => [row, row.cells[at].textContent]));
  const order = head.classList.contains("right")
    ? (a, b) => (numberIn(said.get(a)) || 0) - (numberIn(said.get(b)) || 0)
    : (a, b) => said.get(a).localeCompare(said.get(b));
  rows.sort((a, b) => (down ? order(b, a) : order(a, b)));
  for (const each of head.parentElement.cells) each.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  rows[0]?.parentElement.append(...rows);
}

/** Does something where a thing is clicked, or chosen by Enter. */
function acting(thing, act) {
  thing.addEventListener("click", act);
  thing.addEventListener("keydown", (event) => { if (event.key === "Enter") act(event); });
}

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.rows[0].cells];
  if (heads.length < 3) continue; // facts have no heads
  heads.forEach((head, at) => {
    head.setAttribute("aria-sort", "none");
    head.tabIndex = 0;
    acting(head, () => sorted(head, at));
  });
}
