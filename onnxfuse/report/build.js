// The page of a build: the graph before and after, what became of a node, predicted times, the roofline.
"use strict";

const groups = new Map(data.groups.map((g) => [g.name, g]));
const refusals = new Map(data.refusals.flatMap((r) => r.nodes.map((n) => [n, r])));
const kinds = [...new Set(data.groups.map((g) => g.kernel))];
const colourOf = (kernel) => COLOURS[kinds.indexOf(kernel) % COLOURS.length];
const state = { side: "after", collapse: true, heat: false };
const opened = { before: new Set(), after: new Set() };
const timeOf = (group) => (state.side === "after" ? group.predicted_ms : group.runtime_ms);
const longest = () => Math.max(0, ...data.groups.map((g) => timeOf(g) ?? 0));
const heatOf = (group) => HEAT[Math.min(HEAT.length - 1, Math.floor(HEAT.length * Math.sqrt((timeOf(group) ?? 0) / (longest() || 1))))];
let view = null;

function lookOf(node) {
  const group = node.kernel ? groups.get(node.kernel) : undefined;
  const kind = ["input", "output"].includes(node.op) ? "border" : group ? "fused" : "left";
  return { kind, label: short(node.op), colour: !group ? css("--card") : state.heat ? heatOf(group) : colourOf(group.kernel) };
}

const closed = () => state.collapse && !opened[state.side].size;

function draw() {
  const picture = data.drawing[state.side];
  if (view) view.destroy();
  view = drawn(document.getElementById("graph"), picture, {
    look: lookOf, collapse: state.collapse, opened: opened[state.side], told: (at) => tell(picture.nodes[at]), hint,
    open: (box) => { opened[state.side].add(box); draw(); },
    wordOf: (node) => `${node.op} ${node.kernel === null ? "left" : "fused"}`,
  });
  document.getElementById("count").textContent = `${view.nodes().length} of ${picture.nodes.length} nodes shown`;
  for (const side of ["before", "after"]) document.getElementById(side).setAttribute("aria-pressed", String(side === state.side));
  find({ stay: true });
  document.getElementById("collapse").setAttribute("aria-pressed", String(closed()));
  const scale = document.getElementById("scale");
  scale.hidden = !state.heat || !longest();
  const colours = HEAT.map((colour) => element("i", undefined, { style: `background:${colour}` }));
  scale.replaceChildren("0", ...colours, `${figure(longest())} ms predicted, ${state.side === "after" ? "a kernel" : "the nodes of a kernel, by ONNX Runtime"}`);
}

/** Marks what is looked for, if anything is. */
function find(how) {
  const text = document.getElementById("search").value;
  const found = searched(view, data.drawing[state.side], text, how);
  if (text.trim()) document.getElementById("count").textContent = outcome(text, found, how.again);
}

/** What the pointer says of a node. */
function hint(node) {
  const group = node.kernel ? groups.get(node.kernel) : undefined;
  const where = group ? `${figure(timeOf(group))} ms predicted${state.side === "after" ? "" : ` for ${counted(group.nodes.length, "node")}`}` : "";
  const work = node.flops === null || node.flops === undefined ? "" : `${amount(node.flops, "FLOP")}, ${amount(node.bytes, "B")}`;
  return [node.name || node.op, group ? where : "stays with ONNX Runtime", work].filter((line) => line && !line.startsWith("- ")).join("\n");
}

/** Shows nodes on a side: marks them, goes to the first and tells of it. */
function show(side, names) {
  state.side = side;
  draw();
  const picture = data.drawing[side];
  const wanted = new Set(names);
  const found = marked(view, (at) => wanted.has(picture.nodes[at].name));
  document.getElementById("count").textContent = outcome("these", found);
  const first = picture.nodes.find((node) => wanted.has(node.name));
  if (first) tell(first);
  document.getElementById("graph").scrollIntoView({ block: "center" });
}

function folded(title, text) {
  const made = element("details");
  made.append(element("summary", title), element("pre", text));
  return made;
}

const SHOWN = 6; // groups that strategies proposed

/** Groups that strategies proposed with nodes of this one, what they should take, and why they are none. */
function proposed(group) {
  const mine = new Set(group.nodes);
  const found = data.candidates.filter((c) => c.code && c.nodes.some((n) => mine.has(n)));
  const said = found.slice(0, SHOWN).map((c) => {
    const time = c.predicted_ms === null ? "" : `, ${figure(c.predicted_ms)} ms`;
    return `${c.by.join(" ")}: ${counted(c.nodes.length, "node")}${time}: ${c.code} ${c.reason}`;
  });
  return said.join("; ") + (found.length > SHOWN ? `; and ${found.length - SHOWN} more` : "");
}

/** Names as a text, the path that all share once. */
function listed(names) {
  let path = names[0].slice(0, names[0].lastIndexOf("/") + 1);
  while (path && !names.every((name) => name.startsWith(path))) path = path.slice(0, path.lastIndexOf("/", path.length - 2) + 1);
  return `${counted(names.length, "node")}${path ? ` of ${path}` : ""}: ${names.map((name) => name.slice(path.length)).join(", ")}`;
}

function tell(node) {
  const about = document.getElementById("about");
  const group = node.kernel ? groups.get(node.kernel) : undefined;
  about.replaceChildren(element("h3", node.name || node.op));
  if (!group) {
    const refusal = refusals.get(node.name);
    about.append(facts([
      ["operator", node.op],
      ["work", node.flops ? `${amount(node.flops, "FLOP")}, ${amount(node.bytes, "B")}` : ""],
      ["layer", node.layer],
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
    ["stands for", listed(group.nodes)],
    ["operators", group.ops.join(", ")],
    ["rules that fired", [...new Set(rules)].join(", ")],
    ["predicted", group.predicted_ms === null ? "" : `${figure(group.predicted_ms)} ms; ONNX Runtime's own nodes ${figure(group.runtime_ms)} ms`],
    ["bound by", group.bound],
    ["work", `${amount(group.flops, "FLOP")}, ${amount(group.bytes, "B")}, ${counted(group.phases, "phase")}`],
    ["other groups", proposed(group)],
    ["schedules", group.schedules.map((each) => each.map((w) => `${w.schedule} ${figure(w.predicted_ms)} ms`).join(" | ")).join("; ")],
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

for (const side of ["before", "after"]) press(side, () => { state.side = side; });
press("collapse", () => {
  state.collapse = !closed();
  opened[state.side].clear();
});
press("heat", (button) => {
  state.heat = !state.heat;
  button.setAttribute("aria-pressed", String(state.heat));
});
document.getElementById("whole").addEventListener("click", () => view.fit(undefined, 20));
searching(document.getElementById("search"), (text, again) => {
  if (!text.trim()) document.getElementById("count").textContent = "";
  find({ again });
});
for (const row of document.querySelectorAll("tr.finds")) {
  acting(row, () => show(row.dataset.side, JSON.parse(row.dataset.finds)));
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();

const layerOf = new Map(data.drawing.before.nodes.map((n) => [n.name, n.layer]));

/** Rows of predicted times, by what groups share: parts of a kernel's times where it belongs to several. */
function predicted(keysOf) {
  const found = new Map();
  for (const g of data.groups) {
    if (g.predicted_ms === null || g.runtime_ms === null) continue;
    const keys = keysOf(g);
    for (const key of keys) {
      const row = found.get(key) ?? { kernels: new Set(), times: [0, 0] };
      row.kernels.add(g.name);
      row.times = [row.times[0] + g.runtime_ms / keys.length, row.times[1] + g.predicted_ms / keys.length];
      found.set(key, row);
    }
  }
  return [...found].map(([key, row]) => ({ name: row.kernels.size > 1 ? `${key} (${row.kernels.size})` : key, times: row.times }));
}

const BY = {
  kernel: () => predicted((g) => [short(g.kernel)]).sort((a, b) => b.times[0] - a.times[0]),
  layer: () => predicted((g) => g.nodes.map((n) => layerOf.get(n) || "elsewhere")),
};
const timesBy = (by) => {
  bars(document.getElementById("times"), BY[by](), "Sizes are symbols: there is nothing to predict. --dim NAME=N gives them values.");
  for (const button of document.querySelectorAll("#by button")) button.setAttribute("aria-pressed", String(button.dataset.by === by));
};
for (const button of document.querySelectorAll("#by button")) button.addEventListener("click", () => timesBy(button.dataset.by));
document.getElementById("by").hidden = new Set(layerOf.values()).size < 3;
timesBy("kernel");
roofline(document.getElementById("roofline"), data.drawing.peaks, [{ name: "kernels", dots: data.groups
  .filter((g) => g.predicted_ms && g.flops && g.bytes)
  .map((g) => ({ name: g.name, x: g.flops / g.bytes, y: g.flops / g.predicted_ms / 1e6, ms: g.predicted_ms,
    click: () => tell({ name: g.name, op: g.kernel, kernel: g.name }) })) }]);

const runs = ["before", "after"].map((side) => {
  const ran = data.drawing[side].nodes.filter((n) => n.live_bytes !== null && n.live_bytes !== undefined);
  return { name: side, steps: ran.map((n, at) => [(100 * at) / Math.max(1, ran.length - 1), n.live_bytes, n.name || n.op]) };
});
memory(document.getElementById("memory"), runs, "% of the nodes of one run");
