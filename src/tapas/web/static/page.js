/* The page: elements, texts in them, and its heading.

   Keys and names come from outside. They reach the page as text nodes and attributes only, never
   as HTML, and inside <bdi>, so that their direction ends with them. */

export const main = document.getElementById("main");
const said = document.getElementById("said");

/** make("p.small", {id: "x"}, "text", [nodes]): a new element with classes, attributes, children.

    Attributes that begin with "on" are listeners. What is null, false or empty is left out. */
export function make(kind, ...parts) {
  const [tag, ...classes] = kind.split(".");
  const made = document.createElement(tag);
  made.classList.add(...classes);
  for (const part of parts.flat(Infinity)) {
    if (!part) continue;
    if (typeof part === "string" || part instanceof Node) made.append(part);
    else setAttributes(made, part);
  }
  return made;
}

export function setAttributes(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
}

export const button = (text, act, ...more) =>
  make("button", { type: "button", onclick: act }, text, more);
export const unseen = (text) => make("span.unseen", text); // for screen readers
export const heading = (text, aside) => make("h2", text, aside && [" ", make("span.aside", aside)]);

// controls, marks that change the direction of text, invisible characters, lone surrogates
const UNSAFE = new RegExp(
  "[\\0-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060\\u2066-\\u206f" +
    "\\ufeff\\ud800-\\udfff]", "gu");
const ESCAPE = /(\\(?:x[0-9a-f]{2}|u[0-9a-f]{4,5}|[tnr]))/;
const BLANK_EDGE = /^[\s\u115f\u1160\u2800\u3164\uffa0]|[\s\u115f\u1160\u2800\u3164\uffa0]$/u;
const MOST = 80; // characters of a key or name that are shown

function escaped(character) {
  const code = character.codePointAt(0), hex = code.toString(16);
  const short = { 9: "\\t", 10: "\\n", 13: "\\r" }[code];
  return short ?? (code < 256 ? `\\x${hex.padStart(2, "0")}` : `\\u${hex.padStart(4, "0")}`);
}

/** `text` on one line, at most `most` characters of it, with control characters escaped. */
export function plain(text, most = MOST) {
  const all = String(text);
  if (all === "") return "(empty)";
  const shown = [...all.slice(0, 2 * most)].slice(0, most).join("");
  const line = shown.replace(UNSAFE, escaped) + (shown.length < all.length ? "…" : "");
  return BLANK_EDGE.test(all) ? `"${line}"` : line;
}

/** As `plain`, as an element whose escapes can be told from the same characters in the text. */
export function words(text, most = MOST, kind = "bdi") {
  const all = String(text), line = plain(all, most);
  if (all === "") return make(kind, make("i", line));
  const title = all.length > most ? plain(all, 4000) : line;
  const escapes = new Set(all.match(UNSAFE)?.map(escaped));
  const pieces = escapes.size ? line.split(ESCAPE) : [line];
  return make(kind, { title: title === line ? null : title },
    pieces.map((piece) => (escapes.has(piece) ? make("span.escape", piece) : piece)));
}

export const count = (number) => number.toLocaleString("en");
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0%";
  if (value >= 9.95) return `${value.toFixed(1)}%`;
  return value < 0.001 ? "<0.001%" : `${value.toPrecision(2)}%`;
}

/** Tell a screen reader. */
export function say(text) {
  said.textContent = text;
}

/** Begin a view: the title of the page and its heading, which gets the focus. */
export function begin(title, ...content) {
  document.title = `${title} · tapas`;
  const h1 = make("h1", { tabindex: "-1" }, content);
  show(h1, make("p.loading", "Loading…"));
  main.setAttribute("aria-busy", "true");
  return h1;
}

export function show(...content) {
  main.replaceChildren(...content.filter(Boolean));
}
