// What moves on the page of a build: the graph before and after, what a node is, times and the roofline.
// Everything that is drawn comes from the JSON of the element "data".
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const groups = new Map(data.groups.map((g) => [g.name, g]));
const refusals = new Map(data.refusals.flatMap((r) => r.nodes.map((n) => [n, r])));
const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"]; // Okabe and Ito
const kinds = [...new Set(data.groups.map((g) => g.kernel))];
const colourOf = (kernel) => COLOURS[kinds.indexOf(kernel) % COLOURS.length];
const DARK = ["#0072b2", "#d55e00", "#009e73"]; // of them, those on which white is read more easily
const short = (kernel) => kernel.replace(/_[0-9a-f]{8}$/, ""); // without the digest of its code
const FIRST = 12; // kernel types whose times are shown at once
const MOST_LAID_OUT = 600; // nodes that dagre places within a second; more are placed by rank alone
const state = { side: "after", collapse: true };

const element = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const figure = (x) => (x === null || x === undefined ? "-" : Number(x.toPrecision(3)).toString());
const amount = (x, unit) => {
  if (x === null || x === undefined) return "-";
  for (const [prefix, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (x >= size) return `${figure(x / size)} ${prefix}${unit}`;
  return `${figure(x)} ${unit}`;
};

// Layers that repeat -------------------------------------------------------------------------------------------------

const wordOf = (node) => `${node.op} ${node.kernel === null ? "left" : "fused"}`;

/** The longest stretch of nodes that is one sequence over and over: where it begins, its length, how often; or null. */
function repetition(words, from, to) {
  let best = null;
  for (let period = 2; period <= (to - from) / 2; period += 1) {
    let run = 0;
    for (let at = from; at + period < to; at += 1) {
      run = words[at] === words[at + period] ? run + 1 : 0;
      const times = Math.floor(run / period) + 1;
      if (times > 1 && (best === null || period * times > best.period * best.times)) {
        best = { begin: at + 1 - (times - 1) * period, period, times };
      }
    }
  }
  return best;
}

/** By number of each node, the box that stands for it: its own, or the one of all layers like the first. */
function boxes(picture) {
  const own = picture.nodes.map((node, at) => ({ id: `n${at}`, nodes: [at] }));
  if (!state.collapse || picture.nodes.length < 12) return own;
  const words = picture.nodes.map(wordOf);
  const stretches = [[0, words.length]];
  while (stretches.length) {
    const [from, to] = stretches.pop();
    const found = to - from >= 8 ? repetition(words, from, to) : null;
    if (found === null || found.times < 2 || found.period * (found.times - 1) < 4) continue;
    const rest = { id: `r${found.begin}`, nodes: [], times: found.times - 1, period: found.period };
    const end = found.begin + found.period * found.times;
    for (let at = found.begin + found.period; at < end; at += 1) {
      rest.nodes.push(at);
      own[at] = rest;
    }
    stretches.push([from, found.begin], [end, to]);
  }
  return own;
}

// The graph ----------------------------------------------------------------------------------------------------------

function elements(picture) {
  const box = boxes(picture);
  const found = new Map();
  box.forEach((each, at) => {
    if (found.has(each.id)) return;
    const node = picture.nodes[at];
    const group = node.kernel ? groups.get(node.kernel) : undefined;
    const repeated = each.times !== undefined;
    const label = repeated ? `${each.times} more of these ${each.period} nodes` : short(node.op);
    const colour = group && !repeated ? colourOf(group.kernel) : css("--card");
    const kind = repeated ? "more" : ["input", "output"].includes(node.op) ? "border" : group ? "fused" : "left";
    found.set(each.id, {
      classes: kind,
      data: { id: each.id, label, nodes: each.nodes, colour, ink: DARK.includes(colour) ? "#fff" : "#111" },
    });
  });
  const edges = new Map();
  for (const [from, to] of picture.edges) {
    const [source, target] = [box[from].id, box[to].id];
    if (source !== target) edges.set(`${source} ${target}`, { data: { id: `${source} ${target}`, source, target } });
  }
  return { nodes: [...found.values()], edges: [...edges.values()] };
}

/** Places of nodes, layer by layer: dagre's, or by the longest way from an input where there are too many for it. */
function placed({ nodes, edges }) {
  const size = (n) => ({ width: 14 + 7.2 * n.data.label.length, height: 30 });
  if (nodes.length > MOST_LAID_OUT) return ranked(nodes, edges, size);
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 28, ranker: nodes.length > 200 ? "longest-path" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  nodes.forEach((n) => graph.setNode(n.data.id, size(n)));
  edges.forEach((e) => graph.setEdge(e.data.source, e.data.target));
  dagre.layout(graph);
  return new Map(nodes.map((n) => [n.data.id, graph.node(n.data.id)]));
}

function ranked(nodes, edges, size) {
  const rank = new Map(nodes.map((n) => [n.data.id, 0]));
  const readers = new Map(nodes.map((n) => [n.data.id, []]));
  edges.forEach((e) => readers.get(e.data.source).push(e.data.target));
  nodes.forEach((n) => readers.get(n.data.id).forEach((to) => rank.set(to, Math.max(rank.get(to), rank.get(n.data.id) + 1))));
  const used = new Map();
  return new Map(nodes.map((n) => {
    const at = rank.get(n.data.id);
    const left = used.get(at) ?? 0;
    used.set(at, left + size(n).width + 16);
    return [n.data.id, { x: left + size(n).width / 2, y: at * 58 }];
  }));
}

let view = null;

function draw() {
  const picture = data.drawing[state.side];
  const drawn = elements(picture);
  const places = placed(drawn);
  if (view) view.destroy();
  view = cytoscape({
    container: document.getElementById("graph"),
    elements: drawn,
    layout: { name: "preset", positions: (node) => places.get(node.id()) },
    autoungrabify: true,
    textureOnViewport: drawn.nodes.length > 300,
    style: [
      { selector: "node", style: { shape: "round-rectangle", label: "data(label)", width: (n) => 14 + 7.2 * n.data("label").length,
        height: 30, "background-color": "data(colour)", color: "data(ink)", "font-size": 12, "text-valign": "center",
        "border-width": 1, "border-color": "#333" } },
      { selector: ".left", style: { "border-style": "dashed", "border-width": 2, color: css("--ink"), "border-color": css("--quiet") } },
      { selector: ".border", style: { shape: "ellipse", color: css("--ink"), "border-color": css("--quiet") } },
      { selector: ".more", style: { shape: "cut-rectangle", "border-style": "double", "border-width": 4, color: css("--ink"),
        "border-color": css("--accent") } },
      { selector: ".found", style: { "border-width": 5, "border-color": css("--no"), "border-style": "solid" } },
      { selector: ":selected", style: { "border-width": 5, "border-color": css("--accent"), "border-style": "solid" } },
      { selector: "edge", style: { width: 1.5, "curve-style": "straight", "target-arrow-shape": "triangle", "arrow-scale": 0.8,
        "line-color": css("--quiet"), "target-arrow-color": css("--quiet") } },
    ],
  });
  view.on("tap", "node", (event) => (event.target.hasClass("more") ? open() : tell(picture.nodes[event.target.data("nodes")[0]])));
  start();
  document.getElementById("count").textContent = `${drawn.nodes.length} of ${picture.nodes.length} nodes shown`;
}

/** The first layers at a readable size: all of a deep network would be a line. */
function start() {
  view.fit(undefined, 20);
  if (view.zoom() < 0.6) {
    view.zoom(0.8);
    const box = view.elements().boundingBox();
    view.pan({ x: view.width() / 2 - 0.8 * (box.x1 + box.w / 2), y: 20 - 0.8 * box.y1 });
  }
}

function open() {
  state.collapse = false;
  document.getElementById("collapse").setAttribute("aria-pressed", "false");
  draw();
}

function search(text) {
  view.nodes().removeClass("found");
  const wanted = text.trim().toLowerCase();
  const picture = data.drawing[state.side];
  const matches = (at) => [picture.nodes[at].name, picture.nodes[at].op, picture.nodes[at].kernel ?? ""].some((t) => t.toLowerCase().includes(wanted));
  const found = wanted ? view.nodes().filter((n) => n.data("nodes").some(matches)) : view.collection();
  found.addClass("found");
  document.getElementById("count").textContent = wanted ? `${found.length} found` : "";
  if (found.length) view.animate({ center: { eles: found[0] }, zoom: Math.max(view.zoom(), 0.8) }, { duration: 150 });
}

// What a node is -----------------------------------------------------------------------------------------------------

function facts(pairs) {
  const list = element("dl");
  for (const [name, value] of pairs) if (value) list.append(element("dt", name), element("dd", value));
  return list;
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

// Times and the roofline ---------------------------------------------------------------------------------------------

function times() {
  const place = document.getElementById("times");
  const sums = new Map();
  for (const g of data.groups) {
    if (g.predicted_ms === null || g.runtime_ms === null) continue;
    const found = sums.get(short(g.kernel)) ?? { count: 0, before: 0, after: 0 };
    sums.set(short(g.kernel), { count: found.count + 1, before: found.before + g.runtime_ms, after: found.after + g.predicted_ms });
  }
  const rows = [...sums].sort((a, b) => b[1].before - a[1].before);
  const most = Math.max(...rows.map(([, t]) => Math.max(t.before, t.after)), 1e-9);
  const more = element("details", undefined, { class: "times" });
  more.append(element("summary", `${rows.length - FIRST} more`));
  rows.forEach(([kernel, t], at) => {
    const cell = element("div");
    for (const [kind, ms] of [["before", t.before], ["after", t.after]]) {
      const line = element("div");
      line.append(element("span", undefined, { class: `bar ${kind}`, style: `width:${(100 * ms) / most}%` }), element("span", `${figure(ms)} ms`));
      cell.append(line);
    }
    (at < FIRST ? place : more).append(element("div", t.count > 1 ? `${kernel} (${t.count})` : kernel), cell);
  });
  if (rows.length > FIRST) place.after(more);
  if (!rows.length) place.append(element("p", "Sizes are symbols: there is nothing to predict."));
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.append(text);
  return made;
}

/** FLOP/s over FLOP per byte of each kernel, as predicted, under what the machine class reaches. */
function roofline() {
  const { gflops, memory_gbps: gbps } = data.drawing.peaks;
  const dots = data.groups.filter((g) => g.predicted_ms && g.flops && g.bytes)
    .map((g) => ({ g, x: g.flops / g.bytes, y: g.flops / g.predicted_ms / 1e6 }));
  const place = document.getElementById("roofline");
  if (!gflops || !gbps || !dots.length) return place.append(element("p", "Nothing is known of this machine class or of the sizes."));
  const [wide, high, left, low] = [720, 340, 56, 40];
  const xs = [0.7 * Math.min(0.05, ...dots.map((d) => d.x)), 1.4 * Math.max(200, ...dots.map((d) => d.x))];
  const ys = [0.7 * Math.min(0.5, ...dots.map((d) => d.y)), 1.5 * Math.max(gflops, ...dots.map((d) => d.y))];
  const scale = (v, [a, b], length) => (length * Math.log(v / a)) / Math.log(b / a);
  const X = (v) => left + scale(v, xs, wide - left - 10);
  const Y = (v) => high - low - scale(v, ys, high - low - 10);
  const made = svg("svg", { viewBox: `0 0 ${wide} ${high}`, style: "width:100%;max-width:720px", role: "img", "aria-label": "roofline" });
  const ridge = gflops / gbps;
  made.append(svg("path", { d: `M${X(xs[0])} ${Y(Math.max(xs[0] * gbps, ys[0]))} L${X(ridge)} ${Y(gflops)} L${X(xs[1])} ${Y(gflops)}`, "stroke-width": 2 }));
  made.append(svg("line", { x1: left, y1: high - low, x2: wide, y2: high - low }), svg("line", { x1: left, y1: 0, x2: left, y2: high - low }));
  for (let e = Math.ceil(Math.log10(xs[0])); 10 ** e <= xs[1]; e += 1) made.append(svg("text", { x: X(10 ** e), y: high - low + 16, "text-anchor": "middle" }, `${10 ** e}`));
  for (let e = Math.ceil(Math.log10(ys[0])); 10 ** e <= ys[1]; e += 1) made.append(svg("text", { x: left - 6, y: Y(10 ** e) + 4, "text-anchor": "end" }, `${10 ** e}`));
  made.append(svg("text", { x: wide / 2, y: high - 6, "text-anchor": "middle" }, "FLOP per byte of inputs and outputs"));
  made.append(svg("text", { x: left + 6, y: 12 }, `GFLOP/s (class reaches ${figure(gflops)} GFLOP/s, ${figure(gbps)} GB/s)`));
  for (const { g, x, y } of dots) {
    const dot = svg("circle", { cx: X(x), cy: Y(y), r: 5, tabindex: 0 });
    dot.append(svg("title", {}, `${g.name}: ${figure(y)} GFLOP/s at ${figure(x)} FLOP per byte`));
    dot.addEventListener("click", () => tell({ name: g.name, op: g.kernel, kernel: g.name }));
    made.append(dot);
  }
  place.append(made);
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
times();
roofline();
