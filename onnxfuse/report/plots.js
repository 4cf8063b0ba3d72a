// Plots of times, of the roofline, and of memory over time: plain elements and SVG.
"use strict";

const FIRST = 16; // rows of bars that are shown at once
const logged = (v, [a, b], length) => (length * Math.log(v / a)) / Math.log(b / a);

/** For each row bars of its times, the first striped, the others solid, all on one scale. */
function bars(place, rows, otherwise) {
  const most = Math.max(...rows.flatMap((row) => row.times), 1e-9);
  place.replaceChildren();
  place.className = "times";
  const more = element("details", undefined, { class: "times more" });
  more.append(element("summary", `${rows.length - FIRST} more`));
  rows.forEach((row, at) => {
    const cell = element("div");
    row.times.forEach((ms, side) => {
      const line = element("div", undefined, { class: "line" });
      const kind = side === 0 && row.times.length > 1 ? "before" : "after";
      line.append(element("span", undefined, { class: `bar ${kind}`, style: `width:${(100 * ms) / most}%` }), element("span", `${figure(ms)} ms`));
      cell.append(line);
    });
    const [before, after] = row.times;
    const factor = after > 0 && before > 0 ? `${figure(before / after)}x` : "";
    const name = element("div", row.name);
    if (factor) name.append(" ", element("span", factor, { class: before >= after ? "yes" : "no" }));
    (at < FIRST ? place : more).append(name, cell);
  });
  place.parentElement.querySelector("details.more")?.remove();
  if (rows.length > FIRST) place.after(more);
  if (!rows.length) place.append(element("p", otherwise));
}

function frame(label, [wide, high, left, low]) {
  const made = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "plot", role: "img", "aria-label": label });
  made.append(svg("line", { x1: left, y1: high - low, x2: wide, y2: high - low }), svg("line", { x1: left, y1: 0, x2: left, y2: high - low }));
  return made;
}

/** A dot for each thing of each set, over FLOP per byte, under what the machine does at best. */
function roofline(place, peaks, sets) {
  const { gflops, memory_gbps: gbps } = peaks ?? {};
  const dots = sets.flatMap((set) => set.dots);
  if (!gflops || !gbps || !dots.length) return place.append(element("p", "Nothing is known of this machine or of the sizes."));
  const size = [720, 370, 64, 52];
  const [wide, high, left, low] = size;
  const xs = [0.7 * Math.min(0.05, ...dots.map((d) => d.x)), 1.4 * Math.max(200, ...dots.map((d) => d.x))];
  const ys = [0.7 * Math.min(0.5, ...dots.map((d) => d.y)), 1.5 * Math.max(gflops, ...dots.map((d) => d.y))];
  const X = (v) => left + logged(v, xs, wide - left - 10);
  const Y = (v) => high - low - logged(v, ys, high - low - 10);
  const made = frame("roofline", size);
  const ridge = gflops / gbps;
  const from = Math.max(xs[0], ys[0] / gbps);
  made.append(svg("path", { d: `M${X(from)} ${Y(from * gbps)} L${X(ridge)} ${Y(gflops)} L${X(xs[1])} ${Y(gflops)}`, "stroke-width": 2 }));
  made.append(svg("text", { x: wide - 8, y: Y(gflops) - 6, "text-anchor": "end" }, `${figure(gflops)} GFLOP/s`));
  const [a, b] = [X(from), X(ridge)];
  const turn = (Math.atan2(Y(gflops) - Y(from * gbps), b - a) * 180) / Math.PI;
  const middle = [(a + b) / 2, (Y(gflops) + Y(from * gbps)) / 2 - 6];
  made.append(svg("text", { x: middle[0], y: middle[1], "text-anchor": "middle", transform: `rotate(${turn} ${middle[0]} ${middle[1]})` }, `${figure(gbps)} GB/s from memory`));
  for (let e = Math.ceil(Math.log10(xs[0])); 10 ** e <= xs[1]; e += 1) made.append(svg("text", { x: X(10 ** e), y: high - low + 18, "text-anchor": "middle" }, figure(10 ** e)));
  for (let e = Math.ceil(Math.log10(ys[0])); 10 ** e <= ys[1]; e += 1) made.append(svg("text", { x: left - 6, y: Y(10 ** e) + 4, "text-anchor": "end" }, figure(10 ** e)));
  made.append(svg("text", { x: (left + wide) / 2, y: high - 6, "text-anchor": "middle" }, "FLOP per byte read and written"));
  made.append(svg("text", { x: left + 6, y: 18 }, "GFLOP/s"));
  sets.forEach((set, at) => {
    const before = at === 0 && sets.length > 1;
    for (const d of set.dots) {
      const dot = before
        ? svg("rect", { x: X(d.x) - 4, y: Y(d.y) - 4, width: 8, height: 8, class: "dot before", tabindex: 0 })
        : svg("circle", { cx: X(d.x), cy: Y(d.y), r: 5, class: "dot", tabindex: 0 });
      const best = Math.min(gflops, d.x * gbps);
      const share = `${figure((100 * d.y) / best)} % of what memory and arithmetic allow`;
      const text = `${d.name}: ${figure(d.y)} GFLOP/s at ${figure(d.x)} FLOP per byte, ${figure(d.ms)} ms, ${share}`;
      dot.setAttribute("aria-label", text);
      telling(dot, text);
      if (d.click) dot.addEventListener("click", d.click);
      made.append(dot);
    }
  });
  place.append(made);
}

/** Bytes over milliseconds of each run, or over what `axis` says: steps, the first dashed; the pointer says which node it is at. */
function memory(place, runs, axis = "milliseconds of one run") {
  const known = runs.filter((run) => run.steps.length);
  if (!known.length) return place.append(element("p", "Sizes are symbols, or the model is too large for its values to be followed."));
  const size = [720, 280, 92, 52];
  const [wide, high, left, low] = size;
  const end = Math.max(...known.map((run) => run.steps.at(-1)[0])) * 1.04 || 1;
  const most = Math.max(...known.flatMap((run) => run.steps.map((s) => s[1]))) * 1.1 || 1;
  const X = (ms) => left + ((wide - left - 10) * ms) / end;
  const Y = (bytes) => high - low - ((high - low - 10) * bytes) / most;
  const made = frame("memory over time", size);
  runs.forEach((run, at) => {
    if (!run.steps.length) return;
    const path = run.steps.map(([ms, bytes], i) => `${i ? `H${X(ms)} V` : `M${X(ms)} `}${Y(bytes)}`).join(" ");
    const before = at === 0 && runs.length > 1;
    made.append(svg("path", { d: `${path} H${X(run.steps.at(-1)[0])}`, class: before ? "run before" : "run" }));
  });
  for (const share of [0.25, 0.5, 0.75, 1]) {
    made.append(svg("text", { x: left - 6, y: Y((share * most) / 1.1) + 4, "text-anchor": "end" }, amount((share * most) / 1.1, "B")));
    made.append(svg("text", { x: X((share * end) / 1.04), y: high - low + 18, "text-anchor": "middle" }, figure((share * end) / 1.04)));
  }
  made.append(svg("text", { x: (left + wide) / 2, y: high - 6, "text-anchor": "middle" }, axis));
  place.append(made);
  telling(made, (event) => {
    const box = made.getBoundingClientRect();
    const ms = (((event.clientX - box.left) / box.width) * wide - left) / (wide - left - 10) * end;
    return runs.map((run) => {
      const at = run.steps.findLast((s) => s[0] <= ms);
      return at ? `${run.name}: ${amount(at[1], "B")} at ${at[2]}` : "";
    }).filter(Boolean).join("\n");
  });
}
