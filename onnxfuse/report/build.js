// The page of a build: the graph before and after, what became of a node, predicted times, the roofline.
"use strict";

const groups = new Map(data.groups.map((g) => [g.name, g]));
const refusals = new Map(data.refusals.flatMap((r) => r.nodes.map((n) => [n, r])));
const kinds = [...new Set(data.groups.map((g) => g.kernel))];
const colourOf = (kernel) => COLOURS[kinds.indexOf(kernel) % COLOURS.length];
const state = { side: "after", collapse: true };
let view = null;

function lookOf(node) {
  const group = node.kernel ? groups.get(node.kernel) : undefined;
  const kind = ["input", "output"].includes(node.op) ? "border" : group ? "fused" : "left";
  return { kind, label: short(node.op), colour: group ? colourOf(group.kernel) : css("--card") };
}

function draw() {
  const picture = data.drawing[state.side];
  if (view) view.destroy();
  view = drawn(document.getElementById("graph"), picture, {
    look: lookOf, collapse: state.collapse, open, told: (at) => tell(picture.nodes[at]),
    wordOf: (node) => `${node.op} ${node.kernel === null ? "left" : "fused"}`,
  });
  document.getElementById("count").textContent = `${view.nodes().length} of ${picture.nodes.length} nodes shown`;
}

function open() {
  state.collapse = false;
  document.getElementById("collapse").setAttribute("aria-pressed", "false");
  draw();
}

function search(text) {
  const found = searched(view, data.drawing[state.side], text);
  document.getElementById("count").textContent = text.trim() ? `${found} found` : "";
}

function folded(title, text) {
  const made = element("details");
  made.append(element("summary", title), element("pre", text));
  return made;
}

function tell(node) {
  const about = document.getElementById("about");
  const group = node.kernel ? groups.get(node.kernel) : undefined;
  about.replaceChildren(element("h3", node.name || node.op));
  if (!group) {
    const refusal = refusals.get(node.name);
    about.append(facts([
      ["operator", node.op],
      ["runs in", ["input", "output"].includes(node.op) ? "" : state.side === "after" || refusal ? "ONNX Runtime" : "nothing: folded away or rewritten"],
      ["not fused", refusal ? `${refusal.code}: ${refusal.reason}` : ""],
      ["what would unlock it", refusal?.unlock],
    ]));
    return;
  }
  const rules = data.drawing.fired.filter((f) => f.nodes.some((n) => group.nodes.includes(n))).map((f) => f.rule);
  about.append(facts([
    ["kernel", group.kernel],
    ["mapping type", group.mapping_type],
    ["stands for", `${group.nodes.length} nodes: ${group.nodes.join(", ")}`],
    ["operators", group.ops.join(", ")],
    ["rules that fired", [...new Set(rules)].join(", ")],
    ["predicted", group.predicted_ms === null ? "" : `${figure(group.predicted_ms)} ms; ONNX Runtime's own nodes ${figure(group.runtime_ms)} ms`],
    ["bound by", group.bound],
    ["work", `${amount(group.flops, "FLOP")}, ${amount(group.bytes, "B")}, ${group.phases} phases`],
    ["candidates", group.ways.map((ways) => ways.map((w) => `${w.way} ${figure(w.predicted_ms)} ms`).join(" | ")).join("; ")],
  ]));
  const listing = data.drawing.listings[group.kernel];
  if (listing) about.append(folded("scheduled kernel", listing.ir), ...(listing.code ? [folded("generated C++", listing.code)] : []));
}

function press(id, change) {
  document.getElementById(id).addEventListener("click", (event) => {
    change(event.currentTarget);
    draw();
  });
}

for (const side of ["before", "after"]) {
  press(side, () => {
    state.side = side;
    for (const each of ["before", "after"]) document.getElementById(each).setAttribute("aria-pressed", String(each === side));
  });
}
press("collapse", (button) => {
  state.collapse = !state.collapse;
  button.setAttribute("aria-pressed", String(state.collapse));
});
document.getElementById("whole").addEventListener("click", () => view.fit(undefined, 20));
document.getElementById("search").addEventListener("input", (event) => search(event.target.value));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();

const predicted = new Map();
for (const g of data.groups) {
  if (g.predicted_ms === null || g.runtime_ms === null) continue;
  const found = predicted.get(short(g.kernel)) ?? { count: 0, before: 0, after: 0 };
  predicted.set(short(g.kernel), { count: found.count + 1, before: found.before + g.runtime_ms, after: found.after + g.predicted_ms });
}
bars(document.getElementById("times"), [...predicted].sort((a, b) => b[1].before - a[1].before)
  .map(([kernel, t]) => ({ name: t.count > 1 ? `${kernel} (${t.count})` : kernel, times: [t.before, t.after] })),
  "Sizes are symbols: there is nothing to predict.");
roofline(document.getElementById("roofline"), data.drawing.peaks, [{ name: "kernels", dots: data.groups
  .filter((g) => g.predicted_ms && g.flops && g.bytes)
  .map((g) => ({ name: g.name, x: g.flops / g.bytes, y: g.flops / g.predicted_ms / 1e6, ms: g.predicted_ms,
    click: () => tell({ name: g.name, op: g.kernel, kernel: g.name }) })) }]);
