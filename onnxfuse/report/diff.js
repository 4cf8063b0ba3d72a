// The page of two graphs: A and B side by side; what is in one alone has a sign and a border, kernels have colours.
"use strict";

const SIGNS = { gone: "\u2212 ", new: "+ ", other: "~ ", same: "" };
const sides = ["before", "after"];
const kernels = [...new Set(data.drawing.after.nodes.filter((n) => n.kernel).map((n) => n.op))];
const kindOfKernel = new Map(data.drawing.after.nodes.filter((n) => n.kernel).map((n) => [n.kernel, n.op]));
const views = {};
let collapse = true;
const opened = { before: new Set(), after: new Set() };

function lookOf(side) {
  return (node, at) => {
    if (["input", "output"].includes(node.op)) return { kind: "border", label: `${node.op} ${node.name}`, colour: css("--card") };
    const state = data.drawing.states[side][at];
    const kernel = kindOfKernel.get(node.kernel);
    const colour = kernel ? COLOURS[kernels.indexOf(kernel) % COLOURS.length] : css("--card");
    return { kind: kernel ? "fused" : state, label: (kernel ? "" : SIGNS[state]) + short(node.op), colour };
  };
}

/** Whether a node of one side is what a node of the other became, or came from. */
function belong(a, b) {
  return (a.kernel !== null && a.kernel === b.kernel) || (a.kernel === null && b.kernel === null && a.name === b.name);
}

function draw() {
  for (const side of sides) {
    const picture = data.drawing[side];
    views[side]?.destroy();
    views[side] = drawn(document.getElementById(`graph-${side}`), picture, {
      look: lookOf(side), collapse, opened: opened[side], told: (at) => tell(side, at), hint: (node) => node.name || node.op,
      open: (box) => { opened[side].add(box); draw(); },
      wordOf: (node, at) => `${node.op} ${data.drawing.states[side][at]}`,
    });
  }
  count("");
  document.getElementById("collapse").setAttribute("aria-pressed", String(folded()));
}

const folded = () => collapse && sides.every((side) => !opened[side].size);

function count(text) {
  document.getElementById("count").textContent = text
    || sides.map((side) => `${views[side].nodes().length} of ${data.drawing[side].nodes.length}`).join(" and ") + " nodes shown";
}

const SAID = { gone: "in A alone", new: "in B alone", other: "in both, and not the same", same: "in both, the same" };

function tell(side, at) {
  const node = data.drawing[side].nodes[at];
  const other = side === "before" ? "after" : "before";
  const partners = data.drawing[other].nodes.flatMap((each, n) => (belong(node, each) ? [n] : []));
  views[other].nodes().unselect().filter((n) => n.data("nodes").some((each) => partners.includes(each))).select();
  const chosen = views[other].nodes(":selected");
  if (chosen.length) views[other].animate({ center: { eles: chosen[0] } }, { duration: 150 });
  const names = partners.map((n) => data.drawing[other].nodes[n].name);
  const became = side === "before" ? `became a part of ${node.kernel}` : `stands for ${counted(names.length, "node")}: ${names.join(", ")}`;
  const changes = data.differences.filter((d) => d.what === "node" && d.name.startsWith(`${node.name}: `));
  document.getElementById("about").replaceChildren(element("h3", node.name || node.op), facts([
    ["operator", node.op],
    ["where", node.kernel ? became : SAID[data.drawing.states[side][at]]],
    ...changes.map((d) => [d.name.slice(node.name.length + 2), `${d.before} \u2192 ${d.after}`]),
  ]));
}

document.getElementById("collapse").addEventListener("click", () => {
  collapse = !folded();
  sides.forEach((side) => opened[side].clear());
  draw();
});
document.getElementById("whole").addEventListener("click", () => sides.forEach((side) => views[side].fit(undefined, 20)));
searching(document.getElementById("search"), (text, again) => {
  const found = sides.map((side) => outcome(text, searched(views[side], data.drawing[side], text, { again }), again).replace(" found", ""));
  count(text.trim() ? `${found.join(" and ")} found` : "");
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
