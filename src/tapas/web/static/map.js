/* The map: the most frequent items in two dimensions, coloured by what is known of them. */

import { itemAddress } from "./addresses.js";
import { itemLink, names, remember } from "./items.js";
import { swatch } from "./lists.js";
import { mapDrawing, mapPlaces, moveByHand } from "./map_canvas.js";
import { bestColumn, classesOf } from "./map_classes.js";
import { begin, button, count, counted, heading, make, plain, say, show, words } from "./page.js";
import { about, ask, problemBox } from "./server.js";

const FREQUENCY = "\0frequency"; // no column has this name
const MOST_FOUND = 60; // items that are listed
const maps = new Map(); // answers by model: they are large, and do not change
const view = { model: null, colour: null, query: "", centre: null, zoom: 1 }; // kept for next time

/** Have maps asked for again: models were replaced. */
export function forgetMaps() {
  maps.clear();
}

/** Show the view; `again` is called when another model was chosen. */
export async function mapView(key, signal, again) {
  const h1 = begin("Map of items", "Map of items");
  view.model ??= about.models[0].name;
  if (key !== undefined) view.query = "";
  const choice = about.models.length > 1 && make("label", "Model", modelSelect(again));
  try {
    const { model } = view;
    if (!maps.has(model)) maps.set(model, await ask("map", { model }, signal));
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    return show(h1, choice && make("div.tools", choice), problemBox(problem));
  }
  const data = maps.get(view.model);
  if (!data.items.length) return show(h1, make("p.faint", "There are no items to show."));
  return showMap(h1, choice, data, key, signal);
}

function modelSelect(again) {
  const option = ({ name }) =>
    make("option", { value: name, selected: name === view.model }, plain(name, 60));
  const models = make("select", about.models.map(option));
  models.addEventListener("change", () => {
    view.model = models.value;
    view.colour = view.centre = null;
    again();
  });
  return models;
}

/** An item of the map's answer, and what it is called. */
const itemOf = (data, i) => ({ item: data.items[i], name: data.names?.[i] ?? null });
const nameOf = (data, i) => data.names?.[i] ?? data.items[i];

function showMap(h1, modelChoice, data, key, signal) {
  const columns = data.columns ?? {}, length = data.items.length;
  for (let i = 0; i < length; i++) remember(itemOf(data, i));
  if (view.colour !== FREQUENCY && !(view.colour in columns)) {
    view.colour = bestColumn(columns) ?? FREQUENCY;
  }
  const state = { classes: null, only: null, matches: null, hovered: -1 };
  const canvas = make("canvas", {
    tabindex: "0", role: "application", "aria-label": `Map of ${counted(length, "item")}`,
    "aria-describedby": "map-help",
  });
  const places = mapPlaces(data, canvas, view), tip = mapTip(data, places);
  const { draw, nearest, byCount } = mapDrawing(data, places, canvas, state);
  const redraw = oncePerFrame(() => {
    if (!canvas.isConnected) return;
    draw();
    canvas.classList.toggle("over", state.hovered >= 0);
    tip.draw(state.hovered);
  });

  function hover(i, spoken = false) {
    if (i === state.hovered) return;
    state.hovered = i;
    if (spoken && i >= 0) say(plain(nameOf(data, i), 60));
    redraw();
  }

  function open(i = state.hovered) {
    if (i >= 0) location.hash = itemAddress(data.items[i]);
  }

  const legend = mapLegend(data, state, redraw);
  const search = mapSearch(data, byCount, hover, (matches) => {
    state.matches = matches;
    redraw();
  });
  moveByHand(canvas, places, { redraw, hover, open, nearest });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
  const watcher = new ResizeObserver(redraw);
  watcher.observe(canvas);
  signal.addEventListener("abort", () => watcher.disconnect());

  const centred = key === undefined ? -1 : data.items.indexOf(key);
  if (centred >= 0) {
    view.centre = [data.x[centred], data.y[centred]];
    view.zoom = Math.max(view.zoom, 4);
    state.hovered = centred;
  }
  show(h1,
    key !== undefined && centred < 0 && make("p.problem", words(names.get(key) ?? key),
      ` is not among the ${counted(length, "most frequent item")}, which this map shows.`),
    make("div.map",
      make("div.tools", make("label", "Highlight", search.query),
        make("label", "Colour", legend.choice), modelChoice),
      make("div", make("div.frame", canvas, zoomButtons(places, redraw), tip.tip), help()),
      make("div.panel", search.status, search.found, legend.legend)));
  legend.draw();
  search.find();
}

/** A function that calls `draw` before the next frame, however often it is called itself. */
function oncePerFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

function help() {
  return make("p.small.faint", { id: "map-help" },
    "The two principal components of the vectors of the items. ",
    make("span.with-mouse", "Zoom with the wheel, or + and −; move by dragging or with the arrow " +
      "keys; a click, or Enter, opens an item."),
    make("span.by-touch", "Zoom with two fingers, move with one. The first tap on an item shows " +
      "what it is, the second opens it."));
}

function zoomButtons(places, redraw) {
  const tool = (label, sign, act) => button(sign, () => {
    act();
    redraw();
  }, { "aria-label": label, title: label });
  return make("div.zoom", tool("Zoom in", "+", () => places.zoom(1.5)),
    tool("Zoom out", "−", () => places.zoom(1 / 1.5)), tool("Show all", "⤢", places.reset));
}

/** The box beside an item, which says what it is. */
function mapTip(data, places) {
  const tip = make("div.tip", { hidden: true, "aria-hidden": "true" });

  function draw(i) {
    tip.hidden = i < 0;
    if (i < 0) return;
    const value = view.colour === FREQUENCY ? null : data.columns[view.colour][i];
    const known = value !== null && value !== undefined;
    tip.replaceChildren(make("b", words(nameOf(data, i), 60)),
      make("div.faint", itemOf(data, i).name !== null && words(data.items[i], 40)),
      make("div.faint", counted(data.counts[i], "event"), known && [" · ", words(value, 40)]));
    const [w, h] = places.size(), [x, y] = places.projection()(i);
    const { offsetWidth, offsetHeight } = tip;
    const above = y + 14 + offsetHeight > h;
    const inside = (at, most) => `${Math.max(4, Math.min(at, most - 4))}px`;
    tip.style.left = inside(x + 14, w - offsetWidth);
    tip.style.top = inside(above ? y - 14 - offsetHeight : y + 14, h - offsetHeight);
  }

  return { tip, draw };
}

/** The choice of a column to colour by, and its classes; a class that is pressed fades others. */
function mapLegend(data, state, redraw) {
  const legend = make("div"), columns = data.columns ?? {};
  const option = (name) => make("option", { value: name, selected: name === view.colour },
    name === FREQUENCY ? "frequency" : plain(name, 40));
  const choice = make("select", [...Object.keys(columns), FREQUENCY].map(option));
  choice.addEventListener("change", () => {
    view.colour = choice.value;
    draw();
  });

  function press(index, pressed) {
    state.only = state.only === index ? null : index;
    for (const one of legend.querySelectorAll("button")) {
      one.setAttribute("aria-pressed", String(one === pressed && state.only !== null));
    }
    redraw();
  }

  function draw() {
    const byFrequency = view.colour === FREQUENCY;
    state.only = null;
    state.classes = classesOf(byFrequency ? data.counts : columns[view.colour]);
    const entry = ({ index, kind, label, size }) => make("li", button(swatch(`map-${kind}`),
      (event) => press(index, event.currentTarget), { "aria-pressed": "false" },
      make("span", label), make("span.faint.small", count(size))));
    legend.replaceChildren(heading(byFrequency ? "Events in training" : words(view.colour, 60)),
      make("ul.legend", state.classes.legend.map(entry)));
    redraw();
  }

  return { choice, legend, draw };
}

/** The field for words of items, and the items found; `matched` is called with the set of them,
    or with null if nothing is searched. */
function mapSearch(data, byCount, hover, matched) {
  const status = make("p.small.faint", { role: "status" }), found = make("div");
  const query = make("input", {
    type: "search", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    placeholder: data.names ? "key or name" : "key", oninput: find,
  });
  query.value = view.query;
  const lower = data.items.map((_, i) => (data.names?.[i] ?? "").toLowerCase());

  function find() {
    const text = query.value.trim(), asked = text.toLowerCase().split(/\s+/);
    const named = (i) => asked.every((word) => lower[i].includes(word));
    const fits = (i) => data.items[i].startsWith(text) || named(i);
    const matches = text ? new Set(byCount.filter(fits)) : null;
    view.query = query.value;
    const rows = [...(matches ?? [])].slice(0, MOST_FOUND).map((i) => make("li", {
      onpointerenter: () => hover(i), onfocusin: () => hover(i), onpointerleave: () => hover(-1),
    }, itemLink(itemOf(data, i)), make("span.number.faint", count(data.counts[i]))));
    found.replaceChildren(rows.length ? make("ul.rows", { "aria-label": "Items found" }, rows) : "");
    status.textContent = foundText(matches?.size);
    matched(matches);
  }

  function foundText(size) {
    const all = `The ${counted(data.items.length, "most frequent item")}; larger dots are more ` +
      "frequent.";
    if (size === undefined) return all;
    if (size === 0) return "No item on the map has such a key or name.";
    const cut = size > MOST_FOUND ? `, the first ${MOST_FOUND} listed` : "";
    return `${counted(size, "item")} found${cut}.`;
  }

  return { query, status, found, find };
}
