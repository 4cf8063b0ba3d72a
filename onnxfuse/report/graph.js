// A graph in a box: layers that repeat as one, places of nodes, pan, zoom, search.
"use strict";

const MOST_LAID_OUT = 250; // nodes that dagre places within a second; more are placed by rank alone

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

/** By number of each node, the box that stands for it: its own, or, unless it is opened, that of all layers like the first. */
function boxes(picture, wordOf, collapse, opened) {
  const own = picture.nodes.map((node, at) => ({ id: `n${at}`, nodes: [at] }));
  if (!collapse || picture.nodes.length < 12) return own;
  const words = picture.nodes.map(wordOf);
  const stretches = [[0, words.length]];
  while (stretches.length) {
    const [from, to] = stretches.pop();
    const found = to - from >= 8 ? repetition(words, from, to) : null;
    if (found === null || found.times < 2 || found.period * (found.times - 1) < 4) continue;
    const rest = { id: `r${found.begin}`, nodes: [], times: found.times - 1, period: found.period };
    const end = found.begin + found.period * found.times;
    stretches.push([from, found.begin], [end, to]);
    if (opened.has(rest.id)) continue;
    for (let at = found.begin + found.period; at < end; at += 1) {
      rest.nodes.push(at);
      own[at] = rest;
    }
  }
  return own;
}

/** Nodes and edges as they are drawn; `look` gives the class, the label and the colour of a node. */
function elements(picture, look, wordOf, collapse, opened) {
  const box = boxes(picture, wordOf, collapse, opened);
  const found = new Map();
  box.forEach((each, at) => {
    if (found.has(each.id)) return;
    const more = { kind: "more", label: `${each.times} more ${each.period === 1 ? "of this node" : `of these ${each.period} nodes`}`, colour: css("--card") };
    const { kind, label, colour } = each.times !== undefined ? more : look(picture.nodes[at], at);
    found.set(each.id, { classes: kind, data: { id: each.id, label, nodes: each.nodes, colour, ink: inkOn(colour) } });
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

/** Places by rank, each node below the middle of those that it reads, and beside what stands there already. */
function ranked(nodes, edges, size) {
  const rank = new Map(nodes.map((n) => [n.data.id, 0]));
  const [readers, sources] = [0, 1].map(() => new Map(nodes.map((n) => [n.data.id, []])));
  edges.forEach((e) => { readers.get(e.data.source).push(e.data.target); sources.get(e.data.target).push(e.data.source); });
  nodes.forEach((n) => readers.get(n.data.id).forEach((to) => rank.set(to, Math.max(rank.get(to), rank.get(n.data.id) + 1))));
  edges.forEach((e) => { if (rank.get(e.data.target) - rank.get(e.data.source) > 1) e.classes = "far"; });
  const ends = new Map();
  const places = new Map();
  [...nodes].sort((a, b) => rank.get(a.data.id) - rank.get(b.data.id)).forEach((n) => {
    const [at, width, above] = [rank.get(n.data.id), size(n).width, sources.get(n.data.id)];
    const nearest = Math.max(...above.map((id) => rank.get(id)));
    const close = above.filter((id) => rank.get(id) === nearest).map((id) => places.get(id).x);
    const wanted = close.length ? close.reduce((sum, x) => sum + x, 0) / close.length : 0;
    const x = Math.max(wanted, (ends.get(at) ?? -Infinity) + 16 + width / 2);
    ends.set(at, x + width / 2);
    places.set(n.data.id, { x, y: at * 58 });
  });
  return places;
}

const STYLE = () => [
  { selector: "node", style: { shape: "round-rectangle", label: "data(label)", width: (n) => 14 + 7.2 * n.data("label").length,
    height: 30, "background-color": "data(colour)", color: "data(ink)", "font-size": 12, "text-valign": "center",
    "border-width": 1, "border-color": "#333" } },
  { selector: ".left", style: { "border-style": "dashed", "border-width": 2, color: css("--ink"), "border-color": css("--quiet") } },
  { selector: ".same", style: { color: css("--ink"), "border-color": css("--quiet") } },
  { selector: ".gone", style: { "border-style": "dashed", "border-width": 3, "border-color": css("--no"), color: css("--ink") } },
  { selector: ".new", style: { "border-width": 3, "border-color": css("--yes"), color: css("--ink") } },
  { selector: ".other", style: { "border-style": "dotted", "border-width": 3, "border-color": css("--accent"), color: css("--ink") } },
  { selector: ".border", style: { shape: "ellipse", color: css("--ink"), "border-color": css("--quiet") } },
  { selector: ".more", style: { shape: "cut-rectangle", "border-style": "double", "border-width": 4, color: css("--ink"),
    "border-color": css("--accent") } },
  { selector: ".found", style: { "border-width": 5, "border-color": css("--no"), "border-style": "solid" } },
  { selector: ":selected", style: { "border-width": 5, "border-color": css("--accent"), "border-style": "solid" } },
  { selector: "edge", style: { width: 1.5, "curve-style": "straight", "target-arrow-shape": "triangle", "arrow-scale": 0.8,
    "line-color": css("--quiet"), "target-arrow-color": css("--quiet") } },
  { selector: "edge.far", style: { "curve-style": "unbundled-bezier", "control-point-distances": 60, "control-point-weights": 0.5 } },
];

/**
 * Draws a picture into a box: a tap on a node is `told` its number, one on repeated layers is for `open`, by their box;
 * `hint` is what the pointer says of a node.
 */
function drawn(container, picture, { look, wordOf, collapse, opened, told, open, hint }) {
  const made = elements(picture, look, wordOf, collapse, opened);
  const places = placed(made);
  const view = cytoscape({
    container,
    elements: made,
    layout: { name: "preset", positions: (node) => places.get(node.id()) },
    autoungrabify: true,
    textureOnViewport: made.nodes.length > 300,
    style: STYLE(),
  });
  view.on("tap", "node", (event) => (event.target.hasClass("more") ? open(event.target.id()) : told(event.target.data("nodes")[0])));
  view.on("mouseover", "node", ({ target }) => {
    const [box, place] = [container.getBoundingClientRect(), target.renderedPosition()];
    const text = target.hasClass("more") ? "click to unfold these layers" : hint(picture.nodes[target.data("nodes")[0]]);
    say(text, box.left + place.x, box.top + place.y + target.renderedHeight() / 2);
  });
  view.on("mouseout pan zoom", () => say(""));
  container.tabIndex = 0;
  container.onkeydown = (event) => moved(view, event);
  start(view);
  return view;
}

/** Arrow keys pan, + and - zoom. */
function moved(view, event) {
  const by = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
  const scale = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
  if (by) view.panBy({ x: by[0], y: by[1] });
  if (scale) view.zoom({ level: view.zoom() * scale, renderedPosition: { x: view.width() / 2, y: view.height() / 2 } });
  if (by || scale) event.preventDefault();
}

/** The first layers at a readable size: all of a deep network would be a line. */
function start(view) {
  view.fit(undefined, 20);
  if (view.zoom() < 0.6) {
    view.zoom(0.8);
    const top = view.elements().boundingBox().y1;
    const first = view.nodes().filter((n) => n.position("y") < top + view.height() / 0.8).boundingBox();
    view.pan({ x: view.width() / 2 - 0.8 * (first.x1 + first.w / 2), y: 20 - 0.8 * top });
  }
}

/** Marks nodes that fulfil a condition, and goes to one of them unless told to `stay`: the first, or the one after the last. */
function marked(view, wanted, { again = false, stay = false } = {}) {
  view.nodes().removeClass("found");
  const found = view.nodes().filter((n) => n.data("nodes").some(wanted));
  found.addClass("found");
  const at = again && found.length ? ((view.scratch("at") ?? 0) + 1) % found.length : 0;
  view.scratch("at", at);
  if (found.length && !stay) view.animate({ center: { eles: found[at] }, zoom: Math.max(view.zoom(), 0.8) }, { duration: 150 });
  return { count: found.length, at, node: found[at] };
}

/** Marks the nodes in whose texts the wanted one occurs, and goes to the first, or on to the next. */
function searched(view, picture, text, how) {
  const wanted = text.trim().toLowerCase();
  const texts = (node) => [node.name, node.op, node.kernel ?? "", node.layer ?? ""];
  return marked(view, (at) => wanted && texts(picture.nodes[at]).some((t) => t.toLowerCase().includes(wanted)), how);
}

/** What is said of a search. */
function outcome(text, found, again) {
  if (!text.trim()) return "";
  return again && found.count ? `${found.at + 1} of ${found.count} found` : `${found.count} found`;
}

/** A field that searches as one types; Enter goes on to the next, / leads to the field, Escape empties it. */
function searching(field, search) {
  field.addEventListener("input", () => search(field.value, false));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") search(field.value, true);
    if (event.key === "Escape") { field.value = ""; search("", false); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "TEXTAREA"].includes(document.activeElement.tagName)) {
      event.preventDefault();
      field.focus();
    }
  });
}
