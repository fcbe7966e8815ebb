/* The canvas of the map: where items are on it, how they are drawn, and how it is moved. */

import { plain } from "./page.js";

const MOST_NAMES = 28; // that are written next to their points
const isNumber = (value) => typeof value === "number";

/** Where things are: the map is `scale()` pixels per unit, and `view.centre` its middle.

    `view` has `centre`, null for that of all items, and `zoom`; they change when the map moves. */
export function mapPlaces({ x: xs, y: ys }, canvas, view) {
  const known = [...xs.keys()].filter((i) => isNumber(xs[i]) && isNumber(ys[i]));
  const [left, right] = ends(xs), [bottom, top] = ends(ys);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  view.centre ??= [(left + right) / 2, (bottom + top) / 2];

  /** The range of almost all values: a few far ones would make the map of the others small. */
  function ends(values) {
    const sorted = known.map((i) => values[i]).sort((a, b) => a - b);
    const at = (share) => sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
    const edge = 0.12 * (at(0.995) - at(0.005) || 1);
    return [at(0.005) - edge, at(0.995) + edge];
  }

  const size = () => [canvas.clientWidth, canvas.clientHeight];
  function scale() {
    const [w, h] = size();
    return view.zoom * Math.min(w / (right - left), h / (top - bottom));
  }

  return {
    known, size,
    /** A function that gives the place of an item on the canvas as it is now. */
    projection() {
      const [w, h] = size(), [x, y] = view.centre, pixels = scale();
      return (i) => [w / 2 + (xs[i] - x) * pixels, h / 2 - (ys[i] - y) * pixels];
    },
    pan(dx, dy) {
      const pixels = scale(), [x, y] = view.centre;
      view.centre = [clamp(x - dx / pixels, left, right), clamp(y + dy / pixels, bottom, top)];
    },
    /** The place (px, py) of the canvas stays where it is, by default its middle. */
    zoom(factor, px = size()[0] / 2, py = size()[1] / 2) {
      const [w, h] = size(), [x, y] = view.centre, old = scale();
      view.zoom = clamp(view.zoom * factor, 0.6, 60);
      const shift = 1 / old - 1 / scale();
      view.centre = [x + (px - w / 2) * shift, y - (py - h / 2) * shift];
    },
    reset() {
      view.centre = [(left + right) / 2, (bottom + top) / 2];
      view.zoom = 1;
    },
    /** Points grow with the zoom, and are smaller on a small canvas. */
    growth() {
      return clamp(view.zoom ** 0.35, 1, 2.2) * clamp(size()[0] / 900, 0.65, 1);
    },
  };
}

/** Of `names`, each `[text, x, y]`, those that cover neither the buttons nor one before. */
function uncovered(names, [w, h], width) {
  const taken = [[w - 50, 0, w, 130]]; // the buttons
  return names.filter(([text, x, y]) => {
    if (taken.length > MOST_NAMES) return false;
    const box = [x - 4, y - 10, x + width(text) + 6, y + 10];
    const [left, top, right, bottom] = box;
    const inside = left > 0 && right < w && top > 0 && bottom < h;
    const free = ([a, b, c, d]) => left > c || right < a || top > d || bottom < b;
    if (!inside || !taken.every(free)) return false;
    return taken.push(box);
  });
}

/** The drawing of the map: points, rings around those found, names, and the item pointed at.

    `state` has `classes`, and items as indices: `matches` (a set, or null) and `hovered` (or -1);
    `only` is the one class that is not faded, or null. */
export function mapDrawing(data, places, canvas, state) {
  const byCount = [...data.items.keys()].sort((a, b) => data.counts[b] - data.counts[a]);
  const most = Math.max(1, data.counts[byCount[0]]);
  const radius = data.counts.map((one) => 1.8 + 4.2 * Math.sqrt(one / most));
  const ink = canvas.getContext("2d");
  const nameOf = (i) => plain(data.names?.[i] ?? data.items[i], 26);
  const colour = (name) => getComputedStyle(canvas).getPropertyValue(`--${name}`).trim();
  const faded = (i) => (state.only !== null && state.classes.of[i] !== state.only)
    || (state.matches !== null && !state.matches.has(i));

  function circle(x, y, size) {
    ink.beginPath();
    ink.arc(x, y, size, 0, 7);
  }

  function draw() {
    const place = places.projection(), growth = places.growth();
    const sizeOf = (i) => radius[i] * growth;
    const [w, h] = places.size(), sharp = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(w * sharp), Math.round(h * sharp)];
    const resized = canvas.width !== width || canvas.height !== height;
    if (resized) Object.assign(canvas, { width, height });
    ink.setTransform(sharp, 0, 0, sharp, 0, 0);
    ink.clearRect(0, 0, w, h);
    const shown = drawPoints(place, sizeOf, w, h);
    ink.strokeStyle = colour("text");
    ink.lineWidth = 1.5;
    if (state.matches !== null) {
      for (const [i, x, y] of shown) {
        circle(x, y, sizeOf(i) + 3);
        ink.stroke();
      }
    }
    drawNames(shown.slice(0, 150).map(([i, x, y]) => [nameOf(i), x + sizeOf(i) + 5, y]));
    if (state.hovered < 0) return;
    ink.strokeStyle = colour("text");
    ink.lineWidth = 2;
    circle(...place(state.hovered), sizeOf(state.hovered) + 4);
    ink.stroke();
  }

  /** Returns the points in view that are not faded: item and place, the most frequent first. */
  function drawPoints(place, sizeOf, w, h) {
    const fills = new Map(state.classes.legend.map(({ index, kind }) => [index, colour(kind)]));
    const shown = [];
    for (const i of byCount.toReversed()) { // the most frequent are drawn last
      const [x, y] = place(i);
      if (!(x > -20 && y > -20 && x < w + 20 && y < h + 20)) continue;
      ink.globalAlpha = faded(i) ? 0.13 : 0.85;
      ink.fillStyle = fills.get(state.classes.of[i]);
      circle(x, y, sizeOf(i) + (state.matches?.has(i) ? 1.5 : 0));
      ink.fill();
      if (!faded(i)) shown.push([i, x, y]);
    }
    ink.globalAlpha = 1;
    return shown.reverse();
  }

  /** Names as long as they do not cover each other: `[text, x, y]`. */
  function drawNames(names) {
    Object.assign(ink, {
      font: "12px system-ui, sans-serif", textBaseline: "middle", textAlign: "left",
      direction: "ltr", lineWidth: 4, lineJoin: "round", strokeStyle: colour("veil"),
      fillStyle: colour("text"),
    });
    const width = (text) => ink.measureText(text).width;
    for (const [text, x, y] of uncovered(names, places.size(), width)) {
      ink.strokeText(text, x, y);
      ink.fillText(text, x, y);
    }
  }

  /** The item nearest to a place of the canvas, at most `within` pixels away, or -1. */
  function nearest(x, y, within) {
    const place = places.projection(), growth = places.growth();
    let best = -1, least = within;
    for (const i of places.known) {
      const [px, py] = place(i), away = Math.hypot(px - x, py - y) - radius[i] * growth;
      if (away < least && !faded(i)) [best, least] = [i, away];
    }
    return best;
  }

  return { draw, nearest, byCount };
}

/** Drag, pinch, wheel and keys move the map; a click opens an item, a tap shows it first. */
export function moveByHand(canvas, places, { redraw, hover, open, nearest }) {
  const pointers = new Map(); // places of the fingers, or of the pressed mouse, by id
  let travelled = 0, tapped = -1;
  const place = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);

  function move(event) {
    const now = place(event), was = pointers.get(event.pointerId);
    if (!was) return hover(nearest(...now, 6));
    const [dx, dy] = [now[0] - was[0], now[1] - was[1]];
    travelled += Math.hypot(dx, dy);
    pointers.set(event.pointerId, now);
    if (pointers.size === 2) {
      const other = [...pointers.entries()].find(([id]) => id !== event.pointerId)[1];
      const middle = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
      const factor = distance(now, other) / distance(was, other);
      if (Number.isFinite(factor)) places.zoom(factor, ...middle);
      places.pan(dx / 2, dy / 2);
    } else if (travelled > 5) {
      canvas.classList.add("dragged");
      places.pan(dx, dy);
    }
    return redraw();
  }

  function end(event) {
    const click = event.type === "pointerup" && pointers.size === 1
      && pointers.has(event.pointerId) && travelled <= 5;
    pointers.delete(event.pointerId);
    canvas.classList.remove("dragged");
    if (!click) return;
    const mouse = event.pointerType === "mouse", i = nearest(...place(event), mouse ? 6 : 16);
    if (i >= 0 && (mouse || i === tapped)) open(i);
    tapped = mouse ? -1 : i;
    hover(i);
  }

  const keys = {
    ArrowLeft: () => places.pan(40, 0), ArrowRight: () => places.pan(-40, 0),
    ArrowUp: () => places.pan(0, 40), ArrowDown: () => places.pan(0, -40),
    "+": () => places.zoom(1.3), "=": () => places.zoom(1.3), "-": () => places.zoom(1 / 1.3),
    0: () => places.reset(),
  };
  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") open();
    else if (event.key === "Escape") hover(-1);
    else if (event.key in keys) {
      event.preventDefault();
      keys[event.key]();
      const [w, h] = places.size();
      hover(nearest(w / 2, h / 2, 60), true);
      redraw();
    }
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, place(event));
  });
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => !pointers.size && tapped < 0 && hover(-1));
  canvas.addEventListener("keydown", press);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode === 1 ? 24 : 1);
    places.zoom(Math.exp(-Math.max(-240, Math.min(240, pixels)) / 400), ...place(event));
    redraw();
  }, { passive: false });
}
