"use strict";
// Draws the report's JSON block. Text goes into the page through textContent only, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const tip = byId("tip");
const colour = (index) => `var(--s${index % 6})`;
// Seats start at the third colour: the first two look like the two signs of an advantage.
const seatColour = (seat) => colour(seat + 2);

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function showTip(x, y, lines) {
  tip.replaceChildren(...lines.map(([swatch, text]) => {
    const line = element("div");
    if (swatch) line.append(element("i"));
    if (swatch) line.firstChild.style.background = swatch;
    line.append(text);
    return line;
  }));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - width - 6))}px`;
  tip.style.top = `${y - height - 12 < 6 ? y + 16 : y - height - 12}px`;
}

const hideTip = () => { tip.hidden = true; };

// ---- curves ---------------------------------------------------------------------------------

function number(chart, value) {
  const share = chart.unit === "%" ? 100 * value : value;
  const small = chart.digits === undefined && share !== 0 && Math.abs(share) < 0.01;
  if (small) return share.toPrecision(3);
  const digits = chart.digits ?? (Math.abs(share) >= 1000 ? 0 : 3);
  return share.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// About `count` round numbers that cover low..high: steps of 1, 2 or 5 times a power of ten.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

function tickText(chart, value) {
  const share = chart.unit === "%" ? 100 * value : value;
  const text = Math.abs(share) >= 10000 ? `${+(share / 1000).toPrecision(4)}k` : `${+share.toPrecision(4)}`;
  return chart.unit === "%" ? `${text} %` : text;
}

function extent(chart) {
  const values = chart.references.map((line) => line.value);
  for (const line of chart.lines) {
    for (const key of [line.key, line.low, line.high]) {
      for (const value of data.values[key] ?? []) if (value !== null) values.push(value);
    }
  }
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low > 0 && low < 0.4 * high) low = 0;
  if (low === high) { low -= Math.abs(low) / 2 || 0.5; high += Math.abs(high) / 2 || 0.5; }
  const room = 0.06 * (high - low);
  return [low === 0 ? 0 : low - room, high + room];
}

function points(key, x, y) {
  const found = [];
  (data.values[key] ?? []).forEach((value, i) => {
    if (value !== null) found.push([x(data.updates[i]), y(value)]);
  });
  return found;
}

const path = (list) => list.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");

function drawLines(chart, root, x, y) {
  chart.lines.forEach((line, index) => {
    const low = points(line.low, x, y);
    const high = points(line.high, x, y);
    if (low.length > 1 && low.length === high.length) {
      root.append(svg("path", { class: "band", fill: colour(index), d: `${path(low.concat(high.reverse()))}Z` }));
    }
    const list = points(line.key, x, y);
    root.append(svg("path", { class: "series", stroke: colour(index), d: path(list) }));
    const [cx, cy] = list[list.length - 1];
    root.append(svg("circle", { cx, cy, r: 3, fill: colour(index) }));
  });
}

function drawFrame(chart, root, box, x, y, low, high) {
  for (const value of ticks(low, high, chart.headline ? 5 : 3)) {
    root.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    root.append(svg("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, tickText(chart, value)));
  }
  const updates = data.updates;
  const count = Math.max(2, Math.round((box.right - box.left) / 110));
  for (const value of ticks(updates[0], Math.max(updates[updates.length - 1], updates[0] + 1), count)) {
    if (!Number.isInteger(value)) continue;
    root.append(svg("text", { x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, value));
  }
  for (const line of chart.references) {
    root.append(svg("line", { class: "reference", x1: box.left, x2: box.right, y1: y(line.value), y2: y(line.value) }));
  }
}

function labelReferences(chart, root, box, y) {
  for (const line of chart.references) {
    const text = `${line.name}  ${+line.value.toPrecision(3)}`;
    root.append(svg("text", { class: "halo", x: box.right, y: y(line.value) - 5, "text-anchor": "end" }, text));
  }
}

// Pointer, touch and arrow keys move a cross over the updates that have a value.
function follow(chart, root, box, x, y) {
  const usable = data.updates.map((_, i) => i)
    .filter((i) => chart.lines.some((line) => (data.values[line.key]?.[i] ?? null) !== null));
  const cross = svg("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const dots = chart.lines.map((_, index) => svg("circle", { r: 4.5, fill: colour(index), visibility: "hidden" }));
  root.append(cross, ...dots);
  let at = usable.length - 1;
  const show = () => {
    const i = usable[at];
    const rows = [[null, `update ${data.updates[i]}`]];
    cross.setAttribute("x1", x(data.updates[i]));
    cross.setAttribute("x2", x(data.updates[i]));
    cross.setAttribute("visibility", "visible");
    chart.lines.forEach((line, index) => {
      const value = data.values[line.key][i];
      dots[index].setAttribute("visibility", value === null ? "hidden" : "visible");
      if (value === null) return;
      dots[index].setAttribute("cx", x(data.updates[i]));
      dots[index].setAttribute("cy", y(value));
      const [low, high] = [line.low, line.high].map((key) => data.values[key]?.[i] ?? null);
      const interval = low === null || high === null ? "" : ` [${number(chart, low)}, ${number(chart, high)}]`;
      const name = chart.lines.length > 1 ? `${line.label}  ` : "";
      rows.push([colour(index), `${name}${number(chart, value)} ${chart.unit}${interval}`]);
    });
    const frame = root.getBoundingClientRect();
    showTip(frame.left + x(data.updates[i]), frame.top + box.top + 40, rows);
  };
  const hide = () => {
    hideTip();
    for (const node of [cross, ...dots]) node.setAttribute("visibility", "hidden");
  };
  root.addEventListener("pointermove", (event) => {
    const here = event.clientX - root.getBoundingClientRect().left;
    const far = (k) => Math.abs(x(data.updates[usable[k]]) - here);
    at = usable.reduce((best, _, k) => (far(k) < far(best) ? k : best), 0);
    show();
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.max(0, Math.min(usable.length - 1, at + step));
    show();
  });
}

function drawChart(holder, chart) {
  const width = holder.clientWidth;
  const height = chart.headline ? Math.max(240, Math.min(340, width * 0.45)) : 160;
  const box = { left: 50, right: width - 12, top: 12, bottom: height - 24 };
  const [low, high] = extent(chart);
  const [first, last] = [data.updates[0], data.updates[data.updates.length - 1]];
  const x = (update) => box.left + ((box.right - box.left) * (update - first)) / Math.max(1, last - first);
  const y = (value) => box.bottom - ((box.bottom - box.top) * (value - low)) / (high - low);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": `${chart.title} over updates` });
  drawFrame(chart, root, box, x, y, low, high);
  drawLines(chart, root, x, y);
  labelReferences(chart, root, box, y);
  follow(chart, root, box, x, y);
  holder.replaceChildren(root);
}

// In the next frame: drawing changes sizes, which an observer must not do while it reports them.
const redraw = new ResizeObserver((entries) => requestAnimationFrame(() => {
  for (const { target } of entries) {
    if (!target.clientWidth || target.drawnWidth === target.clientWidth) continue;
    target.drawnWidth = target.clientWidth;
    drawChart(target, target.chart);
  }
}));

function addChart(parent, chart) {
  const figure = element("div", "chart");
  const heading = element("h3", "", chart.title);
  const remarks = [chart.unit, chart.better === "neither" ? "" : `${chart.better} is better`].filter(Boolean);
  heading.append(element("small", "", remarks.length ? `  ${remarks.join(", ")}` : ""));
  figure.append(heading);
  if (chart.lines.length > 1) {
    const keys = element("div", "keys");
    chart.lines.forEach((line, index) => {
      const key = element("span");
      key.append(element("i"), line.label);
      key.firstChild.style.background = colour(index);
      keys.append(key);
    });
    figure.append(keys);
  }
  const holder = element("div");
  holder.chart = chart;
  figure.append(holder);
  parent.append(figure);
  redraw.observe(holder);
}

function curves() {
  for (const chart of data.charts) addChart(byId(chart.headline ? "headline" : "charts"), chart);
  if (!data.charts.some((chart) => chart.headline)) {
    byId("headline").append(element("p", "note", "No evaluation has been recorded yet."));
  }
  byId("rest").hidden = !data.rest.length;
  byId("rest").addEventListener("toggle", () => {
    for (const key of data.rest) {
      if (data.values[key].every((value) => value === null)) continue;
      const line = { key, label: key, low: `${key}_low`, high: `${key}_high` };
      addChart(byId("rest-charts"), { title: key, unit: "", better: "neither", references: [], lines: [line] });
    }
  }, { once: true });
}

// How far behind the games were that a policy learned from, as bars.
function staleness() {
  byId("staleness").hidden = !data.staleness.length;
  for (const { policy: name, lessons, shares } of data.staleness) {
    const figure = element("div", "chart");
    const heading = element("h3", "", name);
    heading.append(element("small", "", `  ${lessons} lessons`));
    figure.append(heading, ...shares.map((share, behind) => {
      const row = element("div", "action");
      const bar = element("div", "bar");
      const fill = element("div", "fill");
      fill.style.setProperty("--p", share);
      bar.append(fill);
      row.append(element("div", "name", `${behind} behind`), bar, element("div", "numbers", `${(100 * share).toFixed(1)} %`));
      return row;
    }));
    byId("staleness-policies").append(figure);
  }
}

// ---- policy ---------------------------------------------------------------------------------

function actionRow(action) {
  const row = element("div", "action");
  const bar = element("div", "bar");
  const fill = element("div", "fill");
  fill.style.setProperty("--p", action.model);
  bar.append(fill);
  const numbers = element("div", "numbers", action.model.toFixed(2));
  if (action.nash !== null) {
    const mark = element("div", "mark");
    mark.style.setProperty("--p", action.nash);
    bar.append(mark);
    numbers.append(element("span", "", `Nash ${action.nash.toFixed(2)}`));
  }
  const name = element("div", "name", action.name);
  name.title = action.name;
  row.append(name, bar, numbers);
  return row;
}

function stateRow(state) {
  const row = element("div", "state");
  const what = element("div");
  what.append(element("span", "key", state.key));
  const flat = state.text.split(/\s+/).join(" ");
  if (flat.length > 220) {
    const more = element("details", "seen");
    more.append(element("summary", "", flat), state.text);
    what.append(more);
  } else {
    what.append(element("span", "seen", flat));
  }
  const facts = element("div", "facts");
  const fact = (label, share) => {
    const line = element("div", "", `${label} `);
    line.append(element("b", "", `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`));
    facts.append(line);
  };
  if (state.reach !== null) fact("reach", state.reach);
  if (state.gap !== null) fact("off by", state.gap);
  const actions = element("div", "actions");
  actions.append(...state.actions.map(actionRow));
  row.append(what, actions, facts);
  return row;
}

function policy() {
  const last = data.policies[data.policies.length - 1];
  if (!last) return;
  byId("policy").hidden = false;
  const [update, order, find] = ["policy-update", "policy-order", "policy-find"].map(byId);
  const several = data.policies.some((one) => one.game !== last.game);
  data.policies.forEach((one, index) => {
    update.append(new Option(several ? `${one.update}, ${one.game}` : one.update, index));
  });
  update.value = data.policies.length - 1;
  order.value = last.total > 40 ? "reach" : "file";
  const draw = () => {
    const { states, total } = data.policies[update.value];
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const sorted = states
      .filter((state) => words.every((word) => `${state.key} ${state.text}`.toLowerCase().includes(word)))
      .sort((a, b) => (order.value === "file" ? 0 : b[order.value] - a[order.value]));
    const shown = sorted.slice(0, 60);
    byId("policy-states").replaceChildren(...shown.map(stateRow));
    byId("policy-count").textContent = shown.length === total ? `${total} states` : `${shown.length} of ${total} states`;
  };
  for (const control of [update, order, find]) control.addEventListener("input", draw);
  draw();
}
