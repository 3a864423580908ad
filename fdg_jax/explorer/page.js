/* Draws the schedules from fdg_jax/explorer/tables.py, with the times from simulate.js. The order of operations and the
   versions of weights come from Python. Names become text nodes, never HTML. */

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const ROW = 62, OP = 26, STRIP = 13, HEAD = 30, FOOT = 24; // pixels of a row of the timeline

/* ---------- small helpers ---------- */

/** Makes an element. Children are elements or texts. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const shown = (number, digits = 2) => String(Number(number.toFixed(digits)));
const percent = (share) => `${Math.round(100 * share)}%`;
const plural = (n, word) => `${shown(n)} ${word}${n === 1 ? "" : "s"}`;
const call = (name) => name.toUpperCase().replaceAll("_", " ");
const kind = (op) => ("FB".includes(op.kind) ? op.kind : "S");

/* ---------- reading the tables ---------- */

const state = { K: 3, backward: 1, link: 0, slow: 0, factor: 1, now: null, panels: [], chosen: null };
const methodOf = (panel) => data.methods.find((method) => method.name === panel.method);

/** "F1.1:0 F2.1:0|B1.1:0!" -> the operations of each tick. B1.9:8! is stage 1's backward pass of batch 9, after 8 updates of
    the stage; ! means that it ends with an update. */
function read(text) {
  return text.split("|").map((tick) => tick.split(" ").map((word) => {
    const [, kind, k, batch, version, updates] = /^([A-Za-z]+)(\d+)\.(\d+):(\d+)(!?)$/.exec(word);
    return { kind, k: Number(k), batch: Number(batch), version: Number(version), updates: Boolean(updates) };
  }));
}

/** The schedule of a panel's method with the current choices. Times are in forward passes. */
function picture(panel) {
  const { K, backward, link, slow, factor } = state;
  const schedule = data.schedules[`${[panel.method, ...methodOf(panel).options.map((o) => panel.options[o.name])].join(",")} ${K}`];
  if (typeof schedule.ticks === "number") schedule.ticks = read(data.ticks[schedule.ticks]);
  const made = timed(schedule, schedule.lengths[backward], data.link[link], slow, data.factor[factor]);
  const rows = Array.from({ length: K }, () => []), forward = new Map();
  for (const op of made.ops) {
    rows[op.k - 1].push(op);
    if (op.kind === "F") forward.set(`${op.k}.${op.batch}`, op);
    if (op.kind === "B") op.forward = forward.get(`${op.k}.${op.batch}`);
  }
  const steady = made.ops.find((op) => op.t === schedule.full).begin;
  return { ...schedule, ...made, ops: rows, steady, method: methodOf(panel) };
}

/* ---------- the timeline ---------- */

let pictures = [], views = [], horizon = 1, scale = 24;

/** Redraws everything after a choice. */
function redraw() {
  pictures = state.panels.filter((panel) => panel.method).map(picture);
  const atEnd = state.now === null || state.now >= horizon;
  const ends = pictures.map((p) => Math.min(...p.ops.map((row) => row.at(-1).end)));
  const slowest = state.slow ? data.factor[state.factor] : 1;
  horizon = Math.min(...ends, (4 * state.K + 6) * (1 + data.backward[state.backward]) * slowest);
  const room = $("panels").clientWidth - 28 - (innerWidth <= 480 ? 58 : 87);
  scale = Math.min(40, Math.max(24, room / horizon));
  if (atEnd || state.now > horizon) state.now = horizon;
  $("now").max = horizon;
  const left = views[0]?.scroll.scrollLeft ?? 0;
  views = pictures.map((p, i) => new View(p, i));
  state.panels.forEach((_, i) => {
    $(`panel-${i}`).lastElementChild.replaceChildren(...(views[i] ? [views[i].scroll, views[i].tableAround()] : []));
    $(`choice-${i}`).querySelector("p")?.replaceChildren(...(views[i] ? views[i].verdict() : []));
  });
  const [other] = pictures.flatMap((p) => Object.entries(p.method.words)), item = $("legend").children[2];
  const every = pictures.every((p) => p.accumulate === 1);
  $("legend").children[1].lastChild.data = every ? " its backward pass, and an update" : " its backward pass";
  item.hidden = !other;
  if (other) item.replaceChildren(make("span", { class: "key S" }, `${other[0]}3`), other[1]);
  for (const view of views) view.scroll.scrollLeft = left;
  $("scrolls").hidden = !views.some((view) => view.scroll.scrollWidth > view.scroll.clientWidth);
  chooseDefault();
  showTime();
  showCards();
  playground();
}

/** A method's timeline with the table below it. */
class View {
  constructor(p, index) {
    Object.assign(this, { p, index });
    const K = p.ops.length, width = horizon * scale, height = HEAD + K * ROW + FOOT - 10;
    this.svg = draw("svg", { class: "timeline", width, height, tabindex: 0, role: "application" });
    this.svg.setAttribute("aria-label", `Timeline of ${p.method.name}. Arrow keys choose a backward pass.`);
    this.svg.append(this.pattern(), this.axis(height));
    this.marks = p.ops.flatMap((row) => this.row(row, width));
    this.over = draw("g");
    this.line = draw("line", { class: "nowline", y1: 0, y2: height - FOOT });
    this.svg.append(this.over, this.line);
    const labels = make("div", { class: "labels" }, ...p.ops.map((_, i) => this.label(i)));
    labels.append(make("div", { style: `top:${height - 19}px` }, make("span", {}, "time")));
    this.scroll = make("div", { class: "scroll" }, labels, this.svg);
    this.table = make("tbody");
    this.ends = p.ops.map((row) => new Map(row.map((op) => [op.batch, op.kind === "F" ? Infinity : op.end])));
    this.listen();
  }

  /** The text about the method above its picture. */
  verdict() {
    const { busy, seconds, mean, method } = this.p, late = Math.max(...mean);
    const share = busy.reduce((a, b) => a + b, 0) / busy.length;
    const said = `Devices work ${percent(share)} of the time, a batch every ${shown(seconds)}, gradients `;
    const together = this.p.spread ? " Here a row is a stage, not a device: all devices work on the same stage, each on its share of the batch. " +
      "In a dashed gap, the devices work on another stage." : ` ${waitWords(this.p)}`;
    const beside = method.auxiliary ? ` Times include ${shown(data.auxiliary)} forward passes for the auxiliary network of a stage; ` +
      "tables of ideal speed-ups do not." : "";
    return [make("b", {}, said + (late ? `up to ${plural(late, "update")} late. ` : "never late. ")), `${method.summary}.${together}${beside}`];
  }

  /** The hatching of time in which a device waits. Each picture has its own pattern, because ids are unique in a page. */
  pattern() {
    const id = this.index ? "hatch-2" : "hatch";
    const stripes = draw("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      draw("rect", { class: "hatch-a", width: 6, height: 6 }), draw("line", { class: "hatch-b", x1: 0, x2: 0, y1: 0, y2: 6 }));
    return draw("defs", {}, stripes);
  }

  axis(height) {
    const step = [1, 2, 5, 10, 20].find((n) => n * scale >= 70) ?? 20, group = draw("g", { class: "axis" });
    for (let t = 0; t < horizon; t += step) {
      const text = draw("text", { x: Math.max(t * scale, 6), y: height - 6 }, shown(t));
      group.append(draw("line", { x1: t * scale, x2: t * scale, y1: height - FOOT, y2: height - 18 }), text);
    }
    return group;
  }

  label(i) {
    const words = make("div", { style: `top:${HEAD + i * ROW - 2}px` }, `Stage ${i + 1}`);
    words.append(make("span", {}, this.p.spread ? "all devices" : `${percent(this.p.busy[i])} busy`));
    return words;
  }

  /** Draws the operations of a stage and the versions of its weights. Returns [element, begin, end, operation]. */
  row(ops, width) {
    const k = ops[0].k, y = HEAD + (k - 1) * ROW, made = [];
    const hatched = this.p.spread ? "elsewhere" : "wait"; // if all devices share every stage, none of them waits
    this.svg.append(draw("rect", { class: hatched, x: 0, y, width, height: OP, style: this.index && !this.p.spread ? "fill:url(#hatch-2)" : "" }));
    let begin = 0, version = 0;
    for (const op of [...ops.filter((each) => each.updates), { end: horizon, last: true }]) {
      const end = Math.min(op.end, horizon);
      if (end > begin + 1e-9) {
        const group = draw("g", { class: `ver ${version % 2 ? "odd" : ""}`, "data-k": k, "data-version": version });
        group.append(draw("rect", { x: begin * scale, y: y + OP + 3, width: (end - begin) * scale, height: STRIP }));
        if ((end - begin) * scale > 20) group.append(draw("text", { x: (begin + end) / 2 * scale, y: y + OP + 13 }, `v${version}`));
        this.svg.append(group);
        made.push([group, begin, end, null]);
      }
      begin = end;
      version += 1;
    }
    for (const op of ops.filter((each) => each.begin < horizon - 1e-9)) {
      const wide = (Math.min(op.end, horizon) - op.begin) * scale;
      const group = draw("g", { class: `op ${kind(op)}`, "data-k": k, "data-kind": op.kind, "data-batch": op.batch });
      group.append(draw("rect", { x: op.begin * scale, y, width: Math.max(wide, 0.5), height: OP, rx: Math.min(4, wide / 4) }));
      if (wide > 5 + 6 * `${op.kind}${op.batch}`.length) {
        group.append(draw("text", { x: op.begin * scale + wide / 2, y: y + 17 }, `${op.kind}${op.batch}`));
      }
      op.element = group;
      this.svg.append(group);
      made.push([group, op.begin, op.end, op]);
    }
    return made;
  }

  tableAround() {
    const heads = ["Stage", "Gradients late by", "Version of its weights", "Batches that it keeps"].map((name) => make("th", { scope: "col" }, name));
    return make("div", { class: "wide" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), this.table));
  }

  listen() {
    this.svg.addEventListener("pointerover", (event) => {
      const group = event.target.closest?.(".op");
      if (group) choose(this.index, Number(group.dataset.k), Number(group.dataset.batch));
    });
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.scroll.addEventListener("scroll", () => {
      if (!views.includes(this)) return; // a picture that has just been replaced
      for (const other of views) if (other.scroll.scrollLeft !== this.scroll.scrollLeft) other.scroll.scrollLeft = this.scroll.scrollLeft;
    });
  }

  backwards(k) {
    return this.p.ops[k - 1].filter((op) => op.kind === "B" && op.end <= horizon + 1e-9);
  }

  key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e6], End: [0, 1e6] }[event.key];
    if (!move) return;
    event.preventDefault();
    const now = state.chosen?.panel === this.index ? state.chosen : { k: 1, batch: 1 };
    const k = Math.min(state.K, Math.max(1, now.k + move[0])), list = this.backwards(k);
    const at = list.findIndex((op) => op.batch >= now.batch);
    const i = Math.min(list.length - 1, Math.max(0, (at < 0 ? list.length - 1 : at) + move[1]));
    if (list.length) choose(this.index, k, list[i].batch, true);
  }

  /** Marks what is past, present and future at a time. */
  at(now) {
    for (const mark of this.marks) {
      const future = mark[1] >= now - 1e-9;
      if (mark.future !== future) mark[0].classList.toggle("future", (mark.future = future));
    }
    this.line.setAttribute("x1", now * scale);
    this.line.setAttribute("x2", now * scale);
    this.line.style.display = now < horizon ? "" : "none";
    const most = Math.max(...this.p.staleness);
    this.table.replaceChildren(...this.p.ops.map((ops, i) => {
      const done = ops.filter((op) => op.end <= now + 1e-9);
      const kept = keptAt(ops, this.ends[i], now), late = this.p.mean[i];
      const cells = [plural(late, "update"), `v${done.filter((op) => op.updates).length}`, kept.join(" ") || "none"];
      return make("tr", { class: most && this.p.staleness[i] === most ? "most" : "" },
        make("th", { scope: "row" }, String(i + 1)), ...cells.map((cell) => make("td", {}, cell)));
    }));
  }

  /** Draws the arc from a backward pass to its forward pass, and counts the updates in between. */
  arc(op) {
    for (const each of this.svg.querySelectorAll(".chosen, .used")) each.classList.remove("chosen", "used");
    this.over.replaceChildren();
    if (!op) return;
    const y = HEAD + (op.k - 1) * ROW, middle = (each) => (each.begin + each.end) / 2 * scale;
    const a = middle(op.forward), b = middle(op), path = `M${b} ${y - 1} C${b} ${y - 27} ${a} ${y - 27} ${a} ${y - 6}`;
    this.over.append(draw("path", { class: "halo", d: path }), draw("path", { class: "arc", d: path }),
      draw("path", { class: "head", d: `M${a - 5} ${y - 9} h10 l-5 9 z` }));
    op.element?.classList.add("chosen");
    op.forward.element?.classList.add("chosen");
    this.svg.querySelector(`.ver[data-k="${op.k}"][data-version="${op.forward.version}"]`)?.classList.add("used");
    between(this.p, op).forEach((update, i) => {
      const x = update.end * scale;
      this.over.append(draw("circle", { class: "count", cx: x, cy: y + OP + 9, r: 8 }), draw("text", { x, y: y + OP + 12.5 }, String(i + 1)));
    });
  }
}

/** Says whether stages wait for one another within a tick, and what a barrier between ticks would cost. */
function waitWords(p) {
  if (p.ops.length === 1 || p.waits === undefined) return "";
  if (!p.waits) return "No stage waits for another within a tick.";
  const slower = p.barrier?.[state.backward], even = !state.slow && !state.link;
  const cost = even && slower > p.seconds + 1e-6 ? `. With a barrier after each tick, as in the paper's Table 2, ` +
    `a batch would take ${shown(slower)} instead of ${shown(p.seconds)}.` : ".";
  return `Within a tick stages wait for one another${cost}`;
}

/** The batches that a stage keeps at a time, between the end of their forward pass and the end of their last operation. */
function keptAt(ops, ends, now) {
  return ops.filter((op) => op.kind === "F" && op.end <= now + 1e-9 && ends.get(op.batch) > now + 1e-9).map((op) => op.batch);
}

/** The updates of a stage between a batch's forward pass and its backward pass. */
function between(p, op) {
  const row = p.ops[op.k - 1];
  return row.slice(row.indexOf(op.forward), row.indexOf(op)).filter((each) => each.updates);
}

/* ---------- the chosen batch in the timeline ---------- */

/** Chooses a batch at a stage. follow: whether the picture scrolls to it. */
function choose(panel, k, batch, follow = false) {
  const op = views[panel]?.backwards(k).find((each) => each.batch === batch);
  if (!op) return;
  state.chosen = { panel, k, batch };
  views.forEach((view, i) => view.arc(i === panel ? op : null));
  const { scroll } = views[panel], x = op.end * scale, from = op.forward.begin * scale - 8;
  const room = scroll.clientWidth - (scroll.scrollWidth - horizon * scale) - 16; // beside the labels
  // The end of the backward pass must be visible; its forward pass too, if there is room.
  if (follow) scroll.scrollLeft = Math.max(0, x - room, Math.min(scroll.scrollLeft, from));
  const used = op.forward.version, now = op.version, crossed = between(views[panel].p, op);
  const word = crossed.length > 1 ? "were the updates by batches" : "was the update by batch";
  const meanwhile = crossed.length
    ? ` In between ${word} ${crossed.map((each) => each.batch).join(", ")}: the gradient is `
    : " No update came in between: the gradient is ";
  $("readout").replaceChildren(
    make("b", {}, `${call(views[panel].p.method.name)}, stage ${k}, backward pass of batch ${batch}: forward pass with weights of version ${used}, update of version ${now}.`),
    meanwhile, make("b", {}, crossed.length ? `${plural(now - used, "update")} late` : "not late"), ".");
}

/** Keeps the chosen batch if it still exists; else chooses the first backward pass with full staleness in the steady state. */
function chooseDefault() {
  const old = state.chosen;
  if (old && views[old.panel]?.backwards(Math.min(old.k, state.K)).some((op) => op.batch === old.batch)) {
    choose(old.panel, Math.min(old.k, state.K), old.batch);
    return;
  }
  const p = pictures[0], most = Math.max(...p.staleness), k = p.staleness.indexOf(most) + 1;
  const list = views[0].backwards(k), full = list.filter((each) => each.version - each.forward.version === most);
  const op = full.find((each) => each.forward.begin >= p.steady) ?? full[0] ?? list[0];
  if (op) choose(0, k, op.batch, true);
  else $("readout").replaceChildren("No backward pass ends in this picture.");
}

/* ---------- time: step, play ---------- */

function showTime() {
  $("now").value = state.now;
  $("now-value").textContent = shown(state.now);
  $("now").setAttribute("aria-valuetext", `${shown(state.now)} of ${shown(horizon)}`);
  for (const view of views) view.at(state.now);
}

/** Sets the current time, and scrolls to it. */
function setTime(time, follow = true) {
  state.now = Math.min(horizon, Math.max(0, time));
  showTime();
  const scroll = views[0].scroll, x = state.now * scale, room = scroll.clientWidth - 90;
  if (follow && (x > scroll.scrollLeft + room || x < scroll.scrollLeft)) scroll.scrollLeft = Math.max(0, x - room * 0.6);
}

/** The next time at which an operation ends; with direction -1, the previous one. */
function neighbour(direction) {
  const ends = pictures.flatMap((p) => p.ops.flat().map((op) => op.end)).filter((end) => end <= horizon);
  const ahead = ends.filter((end) => (end - state.now) * direction > 1e-6);
  return direction > 0 ? Math.min(horizon, ...ahead) : Math.max(0, ...ahead);
}

let playing = 0;
function stop() {
  cancelAnimationFrame(playing);
  playing = 0;
  $("play").textContent = "Play";
}

function play() {
  if (playing) return stop();
  if (state.now >= horizon) setTime(0);
  $("play").textContent = "Pause";
  let before = performance.now();
  const frame = (time) => {
    setTime(state.now + Math.max(0, time - before) / 350); // a forward pass takes 0.35 seconds
    before = time;
    if (state.now >= horizon) stop();
    else playing = requestAnimationFrame(frame);
  };
  playing = requestAnimationFrame(frame);
}

/* ---------- the cards with a summary ---------- */

function card(title, strong, ...text) {
  return make("div", { class: "card" }, make("h3", {}, title), make("strong", {}, strong), make("p", {}, ...text));
}

function showCards() {
  const [p, other] = pictures, mean = (each) => each.busy.reduce((a, b) => a + b, 0) / each.busy.length;
  const name = call(p.method.name), lines = [`${name} finishes a batch every ${shown(p.seconds)} forward passes of a stage.`];
  let strong = `${name}'s devices work ${percent(mean(p))} of the time`;
  if (other) {
    const faster = other.seconds / p.seconds, second = call(other.method.name);
    lines.push(` ${second} finishes one every ${shown(other.seconds)}; its devices work ${percent(mean(other))} of the time.`);
    if (Math.abs(faster - 1) < 0.005) lines.push(" Both are equally fast.");
    else if (faster > 1) lines.push(` So ${name} trains ${shown(faster)} times as fast.`);
    else lines.push(` So ${second} trains ${shown(1 / faster)} times as fast.`);
  }
  const waits = p.spread ? "" : waitWords(p);
  if (waits) lines.push(` ${name}: ${waits[0].toLowerCase()}${waits.slice(1)}`);
  $("cards").replaceChildren(
    card("Who waits?", strong, ...lines),
    card("Which stage is most stale, and why?", ...staleWords(p)),
    card("What does it cost?", ...costWords(p)));
}

function staleWords(p) {
  const most = Math.max(...p.staleness), k = p.staleness.indexOf(most) + 1, K = p.ops.length;
  if (!most) {
    return ["None: no gradient is late", `With ${call(p.method.name)}, a stage makes no other update between a batch's forward and backward pass.`];
  }
  const last = p.staleness[K - 1] ? "" : ` Stage ${K} computes the loss and goes backward at once, so its gradients are never late.`;
  const M = p.accumulate > 1 ? ` (A stage updates once in ${p.accumulate} backward passes, so a gradient misses fewer updates.)` : "";
  return [`Stage ${k}: ${plural(p.mean[k - 1], "update")} late`,
    `After its forward pass at stage ${k}, a batch goes up through ${plural(K - k, "stage")} and down again. ` +
    `Meanwhile stage ${k} works on other batches and updates its weights.${last}${M}`];
}

function costWords(p) {
  const most = Math.max(...p.staleness), limit = data.limits[0][most], stashes = Math.max(...p.stashes);
  const keeps = stashes ? `A stage keeps up to ${stashes} batch${stashes > 1 ? "es" : ""} from one tick to the next.` : "";
  if (!most && (p.method.bp === "never" || (p.method.bp !== "always" && p.ops.length > 1))) {
    return ["No lateness, but not BP's gradients", `${call(p.method.name)} computes other gradients than BP. This page does not show what that costs in accuracy. ${keeps}`];
  }
  if (!most) return ["No lateness", `The largest stable learning rate is that of plain gradient descent. ${keeps}`];
  return [`On a quadratic: a learning rate ${shown(2 / limit, 1)} times smaller`,
    `This is for stage ${p.staleness.indexOf(most) + 1}: with gradients ${plural(most, "update")} late, training is stable up to the rate ${shown(limit, 3)}/h; without lateness, up to 2/h. ${keeps} `,
    make("a", { href: "#h-play", style: "color:var(--accent)" }, "Try it below.")];
}

/* ---------- the choices ---------- */

/** A slider with its value in words. */
function slider(id, title, max, value, words, changed, min = 0) {
  const input = make("input", { type: "range", id, min, max, step: 1, value, "aria-label": title });
  const output = make("output", { for: id }), say = () => {
    output.textContent = words(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { changed(Number(input.value)); say(); });
  say();
  return make("label", { class: "field", for: id }, `${title}: `, output, input); // without `for` it would label the output
}

function select(id, title, values, value, changed) {
  const input = make("select", { id }, ...values.map(([key, word]) => make("option", { value: key }, word)));
  input.value = value;
  input.addEventListener("change", () => changed(input.value));
  return make("label", { class: "field", for: id }, title, input);
}

/** The controls of one picture: a method and its options. They stay when the picture is redrawn. */
function panelChoices(index) {
  const panel = state.panels[index];
  const known = data.methods.filter((method) => method.stages.includes(state.K)).map((method) => [method.name, call(method.name)]);
  if (index) known.unshift(["", "nothing"]);
  const fields = [select(`method-${index}`, index ? "Compared with" : "Method", known, panel.method, (name) => {
    state.panels[index] = chosenMethod(name);
    state.chosen = null;
    panelChoices(index);
    $(`method-${index}`).focus();
    redraw();
  })];
  for (const option of panel.method ? methodOf(panel).options : []) {
    const change = (value) => { panel.options[option.name] = value; state.chosen = null; redraw(); };
    const words = option.name.replaceAll("_", "-"), title = words[0].toUpperCase() + words.slice(1), at = option.values.indexOf(panel.options[option.name]);
    fields.push(option.values.every((value) => /^\d+$/.test(value))
      ? slider(`${option.name}-${index}`, title, option.values.length - 1, at, (i) => option.values[i], (i) => change(option.values[i]))
      : select(`${option.name}-${index}`, title, option.values.map((value) => [value, value]), panel.options[option.name], change));
  }
  $(`choice-${index}`).replaceChildren(...fields, make("p"));
}

function chosenMethod(name, asked = {}) {
  const method = data.methods.find((each) => each.name === name);
  const value = (option) => (option.values.includes(String(asked[option.name])) ? String(asked[option.name]) : option.default);
  return { method: name, options: Object.fromEntries((method?.options ?? []).map((option) => [option.name, value(option)])) };
}

function commonChoices() {
  const set = (name) => (value) => { state[name] = value; state.chosen = null; redraw(); };
  const times = (n) => `${shown(n)} × F`;
  const stages = Math.max(...data.methods.flatMap((method) => method.stages));
  const slow = slider("slow", "Slow stage", state.K, state.slow, (k) => (k ? `stage ${k}` : "none"), set("slow"));
  $("common").replaceChildren(
    slider("K", "Stages K", stages, state.K, String, (K) => {
      Object.assign(state, { K, slow: Math.min(state.slow, K), now: null, chosen: null });
      state.panels = state.panels.map((panel, i) =>
        !panel.method || methodOf(panel).stages.includes(K) ? panel : chosenMethod(i ? "" : data.methods.find((m) => m.stages.includes(K)).name));
      panelChoices(0);
      panelChoices(1);
      $("slow").max = K;
      redraw();
    }, 1),
    slider("backward", "Backward pass", data.backward.length - 1, state.backward, (i) => times(data.backward[i]), set("backward")),
    slider("link", "Sending", data.link.length - 1, state.link, (i) => times(data.link[i]), set("link")),
    slow,
    slider("factor", "How slow", data.factor.length - 1, state.factor, (i) => `${shown(data.factor[i])} times`, set("factor")));
}

/* ---------- the playground ---------- */

const game = { stage: 1, rate: 71, momentum: 0, beta: 10 };
const LOWEST = 0.003, HIGHEST = 4; // learning rates, times h
const rateAt = (i) => LOWEST * (HIGHEST / LOWEST) ** (i / 100);
const placeOf = (rate) => 100 * Math.log(Math.min(HIGHEST, Math.max(LOWEST, rate)) / LOWEST) / Math.log(HIGHEST / LOWEST);

/** w, update by update, for a rate times h: the recurrence of fdg_jax/explorer/tables.py. */
function trained(late, rate, momentum, updates) {
  const w = [1];
  for (let t = 0, v = 0; t < updates; t++) {
    v = momentum * v + (w[t - late] ?? 1);
    w.push(w[t] - rate * v);
  }
  return w;
}

function playControls() {
  const change = (name) => (value) => { game[name] = value; playground(); };
  $("play-controls").replaceChildren(
    slider("rate", "Learning rate times h", 100, game.rate, (i) => shown(rateAt(i), 3), change("rate")),
    slider("momentum", "Momentum", data.momenta.length - 1, game.momentum, (i) => shown(data.momenta[i]), change("momentum")),
    slider("beta", "Correction β", 10, game.beta, (i) => shown(i / 10, 1) + (i === 10 ? " (none)" : ""), change("beta"), 1));
}

function playground() {
  const { staleness, method } = pictures[0], K = state.K;
  game.stage = Math.min(game.stage, K);
  const limits = data.limits[game.momentum], momentum = data.momenta[game.momentum];
  const rate = (k) => rateAt(game.rate) * (game.beta / 10) ** (K - k);
  const rows = staleness.map((late, i) => {
    const k = i + 1, limit = limits[late], bad = rate(k) > limit;
    const track = make("span", { class: "track" }, make("i", { style: `width:${placeOf(limit)}%` }),
      make("b", { class: bad ? "bad" : "", style: `left:${placeOf(rate(k))}%` }));
    const row = make("button", { class: "stage", type: "button", "aria-pressed": String(k === game.stage), "data-limit": limit },
      make("span", {}, `Stage ${k}: `, make("span", { class: bad ? "bad-word" : "good-word" }, bad ? "unstable" : "stable")), track);
    row.setAttribute("aria-label", `Stage ${k}, ${plural(late, "update")} late, ${bad ? "unstable" : "stable"}`);
    row.addEventListener("click", () => { game.stage = k; playground(); $("bars").children[k - 1].focus(); });
    return row;
  });
  const focused = [...$("bars").children].indexOf(document.activeElement);
  $("bars").replaceChildren(...rows, make("div", { class: "scale" }, make("span", {}, `${LOWEST}`), make("span", {}, "rate times h"), make("span", {}, `${HIGHEST}`)));
  if (focused >= 0 && focused < K) $("bars").children[focused].focus();
  const late = staleness[game.stage - 1], own = rate(game.stage), limit = limits[late];
  $("play-readout").replaceChildren(make("b", {}, `${call(method.name)}, stage ${game.stage}, gradients ${plural(late, "update")} late: `),
    `stable up to ${shown(limit, 3)}/h with momentum ${shown(momentum)}. The rate here is ${shown(own, 3)}/h` +
    `${game.beta < 10 && game.stage < K ? ` after multiplication by β to the power of ${K - game.stage}` : ""}, so `,
    make("b", { class: own > limit ? "bad-word" : "good-word" }, own > limit ? "training becomes unstable." : "training is stable."));
  curve(trained(late, own, momentum, 120), trained(0, own, momentum, 120), late);
}

/** Draws w over the updates, with late gradients and with gradients that are not late. */
function curve(late, fresh, n) {
  const width = Math.max(240, $("curve").clientWidth), height = 230, top = 2.4, left = 26;
  const x = (t) => left + t * (width - left - 6) / (late.length - 1), y = (w) => height / 2 - Math.max(-9, Math.min(9, w)) / top * (height / 2 - 12);
  const path = (w) => `M${w.map((value, t) => `${x(t).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`;
  const grid = [-2, -1, 0, 1, 2].flatMap((w) => [draw("line", { class: "zero", x1: left, x2: width, y1: y(w), y2: y(w) }),
    draw("text", { x: 12, y: y(w) + 4 }, String(w))]);
  const svg = draw("svg", { class: "clip", width, height, role: "img", "aria-label": "w over 120 updates" }, ...grid,
    draw("path", { class: "fresh", d: path(fresh) }), draw("path", { class: "late", d: path(late) }));
  $("curve").replaceChildren(svg);
  $("curve-caption").replaceChildren("w over 120 updates. ", make("span", { style: "color:var(--B)" }, `Solid: ${plural(n, "update")} late. `),
    make("span", { style: "color:var(--F)" }, "Dashed: not late, same rate."));
}

/* ---------- a measured run ---------- */

function showMeasured() {
  const found = data.measured;
  if (!found) return;
  $("measured").hidden = false;
  const all = [...found.measured, ...found.predicted], end = Math.max(...all.map((event) => event[4]));
  const width = Math.max(600, $("measured").clientWidth - 120), across = (ms) => ms * width / end;
  const svg = draw("svg", { width, height: found.rows * 64 + 24, role: "img", "aria-label": "Measured and derived operations of each stage" });
  const labels = make("div", { class: "labels" });
  for (let k = 1; k <= found.rows; k++) {
    const label = make("div", { style: `top:${(k - 1) * 64}px` }, `Stage ${k}`, make("span", {}, "derived"), make("span", {}, "measured"));
    labels.append(label);
    svg.append(draw("rect", { class: "hatch-a", x: 0, y: (k - 1) * 64 + 12, width, height: 42 }));
  }
  ["predicted", "measured"].forEach((which, lane) => {
    for (const [what, k, batch, begin, stop] of found[which]) {
      const wide = across(stop - begin), y = (k - 1) * 64 + 13 + lane * 21;
      const group = draw("g", { class: `op ${what === "F" || what === "B" ? what : "S"}` },
        draw("rect", { x: across(begin), y, width: Math.max(wide, 0.5), height: 19 }), draw("title", {}, `${what}${batch}, ${shown(stop - begin, 1)} ms`));
      if (wide > 26) group.append(draw("text", { x: across(begin) + wide / 2, y: y + 13 }, `${what}${batch}`));
      svg.append(group);
    }
  });
  for (let i = 0; i <= 6; i++) svg.append(draw("g", { class: "axis" }, draw("text", { x: Math.min(width - 30, Math.max(18, i * width / 6)), y: found.rows * 64 + 14 }, `${shown(end * i / 6, 0)} ms`)));
  $("measured-title").textContent = `${found.title}. Upper half of a row: derived from the schedule and the time of each operation alone. Lower half: measured.`;
  $("measured-panel").replaceChildren(make("div", { class: "panel" }, make("div", { class: "scroll" }, labels, svg)));
}

/* ---------- begin ---------- */

function begin() {
  const asked = data.start, known = data.methods.map((method) => method.name);
  state.K = asked.K ?? 3;
  const first = chosenMethod(known.includes(asked.method) ? asked.method : known.includes("fdg") ? "fdg" : known[0], asked);
  state.panels = [first, chosenMethod(first.method !== "bp" && known.includes("bp") ? "bp" : "")];
  commonChoices();
  panelChoices(0);
  panelChoices(1);
  playControls();
  redraw();
  showMeasured();
  const press = (id, action) => $(id).addEventListener("click", () => { if (id !== "play") stop(); action(); });
  press("start", () => setTime(0));
  press("back", () => setTime(neighbour(-1)));
  press("step", () => setTime(state.now < horizon ? neighbour(1) : 0));
  press("play", play);
  press("steady", () => setTime(Math.max(...pictures.map((p) => p.steady))));
  $("now").addEventListener("input", () => { stop(); setTime(Number($("now").value)); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); showMeasured(); } });
}

begin();
