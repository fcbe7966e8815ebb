/* The explorer of `tapas serve`. The part of the address after # says what is shown:

       #/               start
       #/user/KEY       a user: history, what came next, the lists of all models
       #/item/KEY       an item: frequency, neighbours, followers, users
       #/try/KEY,KEY    a history to try, the oldest item first
       #/map, #/map/KEY the most frequent items in two dimensions

   Keys and names come from outside. They reach the page as text nodes and attributes only, never
   as HTML, and inside <bdi>, so that their direction ends with them. */

const main = document.getElementById("main");
const search = document.getElementById("search");
const said = document.getElementById("said");

// ---- elements and texts --------------------------------------------------------------------

/** make("p.small", {id: "x"}, "text", [nodes]): a new element with classes, attributes, children.

    Attributes that begin with "on" are listeners. What is null, false or empty is left out. */
function make(kind, ...parts) {
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

function setAttributes(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
}

const button = (text, act, ...more) => make("button", { type: "button", onclick: act }, text, more);
const unseen = (text) => make("span.unseen", text); // for screen readers
const heading = (text, aside) => make("h2", text, aside && [" ", make("span.aside", aside)]);

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
function plain(text, most = MOST) {
  const all = String(text);
  if (all === "") return "(empty)";
  const shown = [...all.slice(0, 2 * most)].slice(0, most).join("");
  const line = shown.replace(UNSAFE, escaped) + (shown.length < all.length ? "…" : "");
  return BLANK_EDGE.test(all) ? `"${line}"` : line;
}

/** As `plain`, as an element whose escapes can be told from the same characters in the text. */
function words(text, most = MOST, kind = "bdi") {
  const all = String(text), line = plain(all, most);
  if (all === "") return make(kind, make("i", line));
  const title = all.length > most ? plain(all, 4000) : line;
  const escapes = new Set(all.match(UNSAFE)?.map(escaped));
  const pieces = escapes.size ? line.split(ESCAPE) : [line];
  return make(kind, { title: title === line ? null : title },
    pieces.map((piece) => (escapes.has(piece) ? make("span.escape", piece) : piece)));
}

const count = (number) => number.toLocaleString("en");
const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0%";
  if (value >= 9.95) return `${value.toFixed(1)}%`;
  return value < 0.001 ? "<0.001%" : `${value.toPrecision(2)}%`;
}

/** Tell a screen reader. */
function say(text) {
  said.textContent = text;
}

// ---- addresses -----------------------------------------------------------------------------

/** `key` percent-encoded, also the quotes and brackets at which programs cut a pasted address. */
function encode(key) {
  const hex = (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`;
  return encodeURIComponent(key.toWellFormed()).replace(/[!'()*]/g, hex);
}

const userAddress = (key) => `#/user/${encode(key)}`;
const itemAddress = (key) => `#/item/${encode(key)}`;
const mapAddress = (key) => `#/map/${encode(key)}`;

/** Keys joined by commas; one more at the end if the last key is empty. */
function tryAddress(keys) {
  return `#/try/${keys.map(encode).join(",")}${keys.at(-1) === "" ? "," : ""}`;
}

/** The view and its keys; the view is null if the address is not one of ours. */
function readAddress(hash) {
  const [, view = null, slash, rest = ""] = /^#\/([^/]*)(\/?)([^]*)$/.exec(hash || "#/") ?? [];
  const pieces = rest === "" ? [] : rest.split(",");
  if (pieces.length > 1 && pieces.at(-1) === "") pieces.pop();
  try {
    if (view === "" && rest === "") return { view, keys: [] };
    if (view === "try") return { view, keys: pieces.map(decodeURIComponent) };
    if (view === "map") return { view, keys: rest ? [decodeURIComponent(rest)] : [] };
    const keyed = (view === "user" || view === "item") && slash;
    return keyed ? { view, keys: [decodeURIComponent(rest)] } : { view: null, keys: [] };
  } catch {
    return { view: null, keys: [] }; // % without two digits
  }
}

// ---- the server ----------------------------------------------------------------------------

/** An answer that is an error; status 0: no answer. */
class Problem extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The server's answer to a GET, or to a POST of `body`. */
async function ask(path, query, signal, body = null) {
  const options = { signal };
  if (body !== null) {
    options.method = "POST";
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let answer, data;
  try {
    answer = await fetch(`explorer/${path}?${new URLSearchParams(query)}`, options);
    data = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(answer ? answer.status : 0, "The answer cannot be read.");
  }
  if (answer.ok) return data;
  throw new Problem(answer.status, data.error ?? `The server answers ${answer.status}.`);
}

/** Wait, unless aborted before. */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("", "AbortError"));
    });
  });
}

/** What went wrong and what can be done about it. */
function problemBox(problem, again) {
  if (!(problem instanceof Problem)) console.error(problem); // an error of this script
  if (problem.status === 0) {
    return make("div.problem", { role: "alert" },
      make("p", make("strong", "The server does not answer. "),
        "It was stopped, or the connection to it is lost. Start it again with the same command; " +
        "this page goes on from here."),
      again && make("p", button("Try again", again)));
  }
  const sentence = problem.message.replace(/^\p{Ll}/u, (letter) => letter.toUpperCase());
  if (problem.status === 401) {
    return make("div.problem", { role: "alert" }, make("p", words(sentence, 500)),
      make("p", "Load the page again: the browser then asks for the token as a password; " +
        "the user name does not matter."),
      make("p", button("Load again", () => location.reload())));
  }
  return make("div.problem", { role: "alert" }, make("p", words(sentence, 500)),
    again && make("p", button("Try again", again)));
}

// ---- combobox ------------------------------------------------------------------------------

let numComboboxes = 0;

/** A text field with a list of suggestions (ARIA practices: editable combobox, list autocomplete).

    `suggest(text, signal)` gives {options: [{value, content}], note}, where `note` is a sentence
    below the options; `choose(value)` is called with the chosen one. Enter without a chosen one
    takes the option that equals the text, or the only one. `paste`, if given, gets lines that are
    pasted. */
function combobox({ label, placeholder, suggest, choose, paste }) {
  const id = `combobox-${++numComboboxes}`;
  const list = make("ul", { role: "listbox", id: `${id}-list`, "aria-label": label, hidden: true });
  const note = make("p", { hidden: true });
  const popup = make("div.popup", { hidden: true }, list, note);
  const input = make("input", {
    id, type: "text", role: "combobox", placeholder, autocomplete: "off", autocapitalize: "off",
    spellcheck: "false", "aria-autocomplete": "list", "aria-expanded": "false",
    "aria-controls": list.id,
  });
  let options = [], active = -1, current = new AbortController(), latest = Promise.resolve();

  function close() {
    current.abort();
    options = [];
    activate(-1);
    popup.hidden = list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }

  function activate(index) {
    active = index;
    [...list.children].forEach((one, i) => one.setAttribute("aria-selected", String(i === index)));
    const option = list.children[index];
    if (option) input.setAttribute("aria-activedescendant", option.id);
    else input.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  function take(value) {
    close();
    input.value = "";
    choose(value);
  }

  function open(found) {
    options = found.options;
    list.replaceChildren(...options.map(({ value, content }, i) => make("li", {
      role: "option", id: `${id}-${i}`,
      onpointerdown: (event) => event.preventDefault(), // the field keeps the focus
      onclick: () => take(value),
    }, content)));
    activate(-1);
    note.replaceChildren(...[found.note || ""].flat());
    note.hidden = !found.note;
    list.hidden = !options.length;
    popup.hidden = list.hidden && note.hidden;
    input.setAttribute("aria-expanded", String(!list.hidden));
    say((options.length ? `${counted(options.length, "suggestion")}. ` : "") + note.textContent);
  }

  /** Ask for suggestions; later calls cancel earlier ones. */
  function refresh(wait) {
    current.abort();
    current = new AbortController();
    const { signal } = current;
    latest = (async () => {
      try {
        await pause(wait, signal);
        open(await suggest(input.value, signal));
      } catch (problem) {
        if (problem.name === "AbortError") return;
        const gone = problem.status === 0;
        open({ options: [], note: gone ? "The server does not answer." : problem.message });
      }
    })();
    return latest;
  }

  async function enter() {
    if (active >= 0) return take(options[active].value);
    const text = input.value;
    await (popup.hidden ? refresh(0) : latest);
    if (text !== input.value) return null;
    const same = options.find((one) => one.value === text);
    if (same || options.length === 1) return take((same ?? options[0]).value);
    return options.length ? activate(0) : null;
  }

  async function press(event) {
    const { key } = event;
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    if (key === "ArrowDown" || key === "ArrowUp") {
      event.preventDefault();
      if (event.altKey && key === "ArrowUp") return close();
      if (list.hidden) await refresh(0);
      if (event.altKey || !options.length) return;
      const places = options.length + 1; // the field itself is between the last and the first
      activate(((active + 1 + (key === "ArrowDown" ? 1 : -1) + places) % places) - 1);
    } else if (key === "Enter") {
      event.preventDefault();
      await enter();
    } else if (key === "Escape") {
      if (popup.hidden) input.value = "";
      close();
    }
  }

  input.addEventListener("input", () => refresh(120));
  input.addEventListener("click", () => popup.hidden && refresh(0));
  input.addEventListener("blur", close);
  input.addEventListener("keydown", press);
  input.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text/plain");
    if (!paste || !text.trim().includes("\n")) return;
    event.preventDefault();
    close();
    paste(text);
  });
  const labelled = make("label", { for: id }, label);
  return { input, field: make("div.combo", labelled, make("div.combo", input, popup)) };
}

/** What `find(text)` finds; if nothing, and there are spaces around the text, without these. */
async function withoutSpaces(text, find) {
  const found = await find(text);
  return found.options.length || text.trim() === text ? found : find(text.trim());
}

const MORE = "There are more: type on.";

function suggestUsers(text, signal) {
  return withoutSpaces(text, async (prefix) => {
    const { users, more } = await ask("users", { prefix, limit: 20 }, signal);
    const options = users.map(({ user, events }) => ({
      value: user,
      content: [words(user), make("span.faint.small", counted(events, "event"))],
    }));
    const none = ["No user has a key that begins with ", words(text, 40), "."];
    return { options, note: users.length ? more && MORE : none };
  });
}

function suggestItems(text, signal) {
  return withoutSpaces(text, async (query) => {
    const { items, more } = await ask("items", { query, limit: 20 }, signal);
    items.forEach(remember);
    const options = items.map((item) => ({
      value: item.item,
      content: [make("span", words(item.name ?? item.item), keyAfterName(item)),
        make("span.faint.small", counted(item.count, "event"))],
    }));
    const what = about.named ? "such a key or name: " : "a key that begins with ";
    const none = ["No item has ", what, words(text, 40), "."];
    return { options, note: items.length ? more && MORE : none };
  });
}

// ---- pieces of views -----------------------------------------------------------------------

const names = new Map(); // of items, as far as an answer has told them

function remember({ item, name }) {
  if (name !== null && name !== undefined) names.set(item, name);
}

/** The key of an item, to stand after its name: many items may share one name. */
function keyAfterName({ item, name }) {
  const alone = name === null || name === undefined || name === item;
  return alone ? null : [" ", words(item, 24, "bdi.key")];
}

function itemLink(item) {
  remember(item);
  const link = make("a", { href: itemAddress(item.item) }, words(item.name ?? item.item));
  link.dataset.item = item.item;
  return make("span.name", link, keyAfterName(item));
}

const modelName = (name) => words(name, 60);
const rank = (number) => make("span.rank", String(number));
const number = (text) => make("span.number", text);

const PARTS = {
  softmax: "the network",
  copy: "items of the history",
  follow: "what followed the latest items in training",
};
const swatch = (kind) => make(`span.swatch.${kind}`, { "aria-hidden": "true" });
const partKind = (part) => `of-${part in PARTS ? part : "part"}`;

function legendOfParts(lists) {
  const items = lists.flatMap((list) => list.items).filter((item) => item.part);
  const parts = [...new Set(items.flatMap((item) => Object.keys(item.parts)))];
  return parts.length > 0 && make("ul.legend-of-parts", { "aria-label": "Parts of the model" },
    parts.map((part) => make("li", swatch(partKind(part)), words(part, 20),
      part in PARTS && `: ${PARTS[part]}`)));
}

/** How much of an item's probability each part adds; parts that add nothing are left out. */
function sharesOf({ score, parts }) {
  const positive = Object.entries(parts ?? {}).filter(([, share]) => share > 0);
  const total = positive.reduce((sum, [, share]) => sum + share, 0);
  return positive.map(([part, share]) => [part, (score * share) / total]);
}

/** The line below an item: how large its probability is, and which parts it comes from. */
function bar(item, most) {
  const made = make("span.bar", { "aria-hidden": "true" });
  made.style.width = `${(100 * item.score) / most}%`;
  for (const [part, share] of sharesOf(item)) {
    const piece = make(`span.${partKind(part)}`);
    piece.style.flexGrow = share / item.score;
    made.append(piece);
  }
  return made;
}

/** The change of an item's place since `before`, the places by key in an earlier list. */
function change(before, key, place) {
  const was = before.get(key);
  if (was === undefined) return make("span.change.fresh", "new");
  if (was === place) return make("span.change");
  const [sign, word] = was > place ? ["▲", "up"] : ["▼", "down"];
  return make("span.change", make("span", { "aria-hidden": "true" }, sign), unseen(`${word} `),
    String(Math.abs(was - place)));
}

function addButton({ item, name }, add) {
  const label = `Add ${plain(name ?? item, 60)} to the history`;
  const made = button("+", () => add(item), { "aria-label": label, title: "Add to the history" });
  made.classList.add("add");
  return made;
}

/** The lists of all models side by side.

    hits: whether to mark what the user took next. before: the places of items in the lists that
    these replace, by model. add: called with the key of an item by a button after it. */
function sideBySide(lists, { hits = false, before = new Map(), add = null }) {
  const probable = lists.filter((list) => list.score === "probability");
  const most = Math.max(0, ...probable.flatMap(({ items }) => items.map(({ score }) => score)));

  function row(list, item, i) {
    const places = before.get(list.model), probability = list.score === "probability";
    const title = sharesOf(item).map(([part, share]) => `${part} ${percent(share)}`).join(", ");
    return make(item.hit ? "li.hit" : "li", rank(i + 1),
      hits && make("span.mark", item.hit && ["✓", unseen(" hit: ")]),
      itemLink(item),
      places && change(places, item.item, i + 1),
      item.part && make("span.part", { title }, swatch(partKind(item.part)), words(item.part, 20)),
      number(probability ? percent(item.score) : item.score.toFixed(3)),
      add && addButton(item, add),
      probability && most > 0 && bar(item, most));
  }

  return make("div.side", lists.map((list) => make("section", make("h3", modelName(list.model)),
    hits && make("p.small.faint", `${counted(list.hits, "hit")} in ${count(list.items.length)}`),
    list.note && make("p.small.faint", words(list.note, 500)),
    list.items.length > 0 && make("ol.rows", { role: "list" },
      list.items.map((item, i) => row(list, item, i))),
    !list.items.length && !list.note && make("p.faint", "No item is left to recommend."))));
}

/** Items with a number after each. */
function numbered(items, text, add = null) {
  return make("ol.rows", { role: "list" }, items.map((item, i) =>
    make("li", rank(i + 1), itemLink(item), number(text(item)), add && addButton(item, add))));
}

function frequentItems(title, items, add = null) {
  items.sort((a, b) => b.count - a.count);
  const list = numbered(items, (item) => count(item.count), add);
  list.classList.add("frequent");
  return make("section", heading(title, "events in training"), list);
}

/** A list of rows 0 to `length` - 1, the first `most` of them until a button is pressed. */
function cutList(length, most, row) {
  const shown = length <= most + 3 ? length : most;
  const rows = (start, stop) => Array.from({ length: stop - start }, (_, i) => row(start + i));
  const list = make("ol.rows", { role: "list" }, rows(0, shown));
  if (shown === length) return [list];
  const more = button(`Show all ${count(length)}`, () => {
    list.append(...rows(shown, length));
    list.children[shown].querySelector("a")?.focus();
    more.remove();
  });
  more.classList.add("more");
  return [list, more];
}

/** Draw what is in `place` anew; if the focus is inside, it goes to the element in its place. */
function redrawn(place, draw) {
  const inside = () => [...place.querySelectorAll("a, button")];
  const at = inside().indexOf(document.activeElement);
  draw();
  if (at >= 0) inside()[Math.min(at, inside().length - 1)]?.focus();
}

// the same item elsewhere on the page is marked while the pointer or the focus is on it
for (const kind of ["pointerover", "focusin"]) {
  main.addEventListener(kind, (event) => {
    const key = event.target.closest("li")?.querySelector("a[data-item]")?.dataset.item;
    for (const link of main.querySelectorAll("a[data-item]")) {
      link.closest("li")?.classList.toggle("same", link.dataset.item === key);
    }
  });
}

/** Begin a view: the title of the page and its heading, which gets the focus. */
function begin(title, ...content) {
  document.title = `${title} · tapas`;
  const h1 = make("h1", { tabindex: "-1" }, content);
  show(h1, make("p.loading", "Loading…"));
  main.setAttribute("aria-busy", "true");
  return h1;
}

function show(...content) {
  main.replaceChildren(...content.filter(Boolean));
}

/** The page of a key that the server does not have. */
function showUnknown(h1, kind, key, problem) {
  h1.replaceChildren(`Unknown ${kind} `, words(key, 200));
  document.title = `Unknown ${kind} ${plain(key, 40)} · tapas`;
  show(h1, problemBox(problem), make("p", "Search above, where suggestions appear as you type",
    kind === "user" && hasUsers() && [", or take ", button("one at random", randomUser)], "."));
}

// ---- start ---------------------------------------------------------------------------------

async function startView(signal) {
  const { models } = about;
  const what = models.length > 1 ? `${models.length} trained models` : "a trained model";
  const h1 = begin("Explorer", `Look into ${what}`);
  const intro = hasUsers()
    ? "Search a user above, or take one at random, to see the history, what was really taken " +
      "next and what each model recommends. Or follow an item to its neighbours, type a history " +
      "and watch the lists change, or look at all items on a map."
    : "Search an item above to see how frequent it is, its neighbours and what follows it. " +
      "Or type a history and watch the lists change, or look at all items on a map.";
  const column = (text) => make("th", { scope: "col" }, text);
  const numbers = (text) => make("th.number", { scope: "col" }, text);
  const partsOf = (model) => (model.parts ?? []).map((part) => plain(part, 20)).join(", ");
  const row = (model) => make("tr",
    make("th", { scope: "row" }, modelName(model.name)),
    make("td.number", model.step === null ? "–" : count(model.step)),
    make("td.number", count(model.items)),
    make("td.number", model.users ? count(model.users) : "none"),
    make("td", model.exclude_seen ? "without items of the history" : "all items"),
    make("td", partsOf(model) || "–"));
  const table = make("table",
    make("thead", make("tr", column("Model"), numbers("Step"), numbers("Items"), numbers("Users"),
      column("Recommends"), column("Parts"))),
    make("tbody", models.map(row)));
  show(h1, make("p", intro),
    make("div.scroll", { role: "region", tabindex: "0", "aria-label": "Models" }, table));
  const { items } = await ask("items", { query: "", limit: 12 }, signal);
  if (items.length) main.append(frequentItems("Frequent items", items));
}

// ---- a user --------------------------------------------------------------------------------

const HELD_OUT = {
  test: "What came next is held out for the test: no model has learned from it.",
  validation: "What came next is held out for validation: it decided when training stopped.",
};
const NOT_HELD_OUT = "Nothing of this user is held out, so the lists cannot be judged: they " +
  "continue the whole history.";

async function userView(key, signal) {
  const h1 = begin(`User ${plain(key, 40)}`, "User ", words(key, 200));
  let data;
  try {
    data = await ask("user", { key }, signal);
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    return showUnknown(h1, "user", key, problem);
  }
  const { held_out: heldOut, history, lists } = data;
  const events = `${counted(data.events, "event")}${heldOut ? " before the cut" : ""}. `;
  const newest = history.toReversed();
  const row = (i) => make("li", itemLink(newest[i]),
    newest[i].time !== newest[i - 1]?.time && make("span.day", newest[i].time));
  const keys = history.map((event) => event.item);
  const judged = data.next.length > 0;
  const actions = make("div.actions",
    keys.length > 0 && make("a", { href: tryAddress(keys) }, "Change this history"),
    button("Another user", randomUser));
  return show(
    make("div.head", h1, actions),
    make("p.about.faint", events, heldOut ? HELD_OUT[heldOut] : NOT_HELD_OUT),
    make("div.columns",
      make("section.first", heading("Taken next"), nextList(data)),
      make("section.wide", heading("Recommended"), legendOfParts(lists),
        judged && make("p.small.faint", "✓ what the user really took next"),
        sideBySide(lists, { hits: judged })),
      make("section.last", heading("History", "newest first"),
        keys.length < data.events && make("p.small.faint",
          `The latest ${count(keys.length)} of ${counted(data.events, "event")}.`),
        keys.length ? cutList(keys.length, 24, row)
          : make("p.faint", "This user has no events before the cut."))));
}

/** What the user took next, and where in the lists it stands. */
function nextList({ held_out: heldOut, next, lists }) {
  if (!next.length) {
    const none = "This user has no events after the cut.";
    return make("p.faint", heldOut ? none : "Not known: nothing is held out.");
  }
  const several = lists.length > 1;
  return cutList(next.length, 30, (i) => {
    const place = (list) => list.items.findIndex(({ item }) => item === next[i].item) + 1;
    const found = lists.filter((list) => place(list) > 0);
    const where = found.map((list, n) =>
      [n > 0 && " · ", several && [modelName(list.model), " "], `rank ${place(list)}`]);
    const none = several ? "in no list" : "not in the list";
    const link = itemLink(next[i]);
    link.append(make("span.where", found.length ? where : none));
    return make(found.length ? "li.hit" : "li",
      make("span.mark", found.length > 0 && ["✓", unseen(" hit: ")]), link);
  });
}

async function randomUser() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  try {
    const { user } = await ask("random-user", {}, signal);
    if (location.hash === userAddress(user)) await route();
    else location.hash = userAddress(user);
  } catch (problem) {
    if (problem.name === "AbortError") return;
    show(make("h1", { tabindex: "-1" }, "A user at random"), problemBox(problem, randomUser));
  }
}

// ---- an item -------------------------------------------------------------------------------

async function itemView(key, signal) {
  const known = names.get(key) ?? key;
  const h1 = begin(plain(known, 40), words(known, 200));
  let data;
  try {
    data = await ask("item", { key }, signal);
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    return showUnknown(h1, "item", key, problem);
  }
  remember(data);
  const name = data.name ?? key;
  h1.replaceChildren(words(name, 200));
  document.title = `${plain(name, 40)} · tapas`;
  const facts = [
    ["Key", words(data.item, 1000)],
    ["Frequency", `${counted(data.count, "event")} in training`],
    ["Rank", `${count(data.rank)} of ${count(data.of)} by frequency`],
    ...Object.entries(data.columns ?? {}).map(([column, value]) =>
      [words(column), value === null ? "none" : words(value, 200)]),
  ];
  const similar = data.similar.map(({ model, items }) => make("section",
    make("h3", modelName(model)), numbered(items, (item) => item.score.toFixed(3))));
  const followers = numbered(data.followers, (item) => percent(item.share));
  const appended = `Append to the history of ${counted(lastHistory.length, "item")}`;
  return show(
    make("div.head", h1, make("div.actions",
      make("a", { href: tryAddress([key]) }, "Begin a history with it"),
      lastHistory.length > 0 && make("a", { href: tryAddress([...lastHistory, key]) }, appended),
      make("a", { href: mapAddress(key) }, "Show on the map"))),
    make("dl.facts", facts.map(([term, value]) => [make("dt", term), make("dd", value)])),
    make("section", heading("Similar items"),
      similar.length > 0 ? [make("p.small.faint", "By the cosine of their vectors."),
        make("div.side", similar)] : make("p.faint", "No model has vectors of items.")),
    make("div.side.apart",
      make("section", heading("What follows it"),
        make("p.small.faint", data.followers.length
          ? "Share of the events that came next in training."
          : "Not counted by this model, or nothing followed it in training."),
        data.followers.length > 0 && followers),
      (hasUsers() || data.users.length > 0) && usersOfItem(data)));
}

function usersOfItem({ users, num_users: numUsers }) {
  const cut = users.length < numUsers ? `${count(users.length)} of ` : "";
  return make("section", heading("Users who took it"),
    make("p.small.faint", `${cut}${counted(numUsers, "user")}, and how many events each has.`),
    make("ul.flow", users.map(({ user, events }) =>
      make("li", make("a", { href: userAddress(user) }, words(user, 40)), " ",
        make("span.faint.small", count(events))))));
}

// ---- a history to try ----------------------------------------------------------------------

let lastHistory = []; // of this view, to append items to

/** Keys from a text: a JSON list, one key per line, or one line with commas or tabs between. */
function readKeys(text) {
  if (text.trim().startsWith("[")) {
    const keys = JSON.parse(text);
    const valid = keys.every((key) => typeof key === "string" || typeof key === "number");
    if (!valid) throw new SyntaxError("expected strings and numbers only");
    return keys.map(String);
  }
  const trimmed = (pieces) => pieces.map((piece) => piece.trim()).filter(Boolean);
  const lines = trimmed(text.split(/\r?\n/));
  return lines.length === 1 ? trimmed(lines[0].split(/[,\t]/)) : lines;
}

/** A text from which `readKeys` reads these keys. */
function keysAsText(keys) {
  const odd = keys.some((key) => key.trim() !== key || key === "" || /[\n\r]/.test(key));
  const ambiguous = keys[0]?.startsWith("[") || (keys.length === 1 && /[,\t]/.test(keys[0]));
  return odd || ambiguous ? JSON.stringify(keys) : keys.join("\n");
}

/** Show the view. It stays while the history changes, so that the focus stays in its field:
    returned is a function to call with the changed keys. */
function tryView(keys, viewSignal) {
  const h1 = begin("Try a history", "Try a history");
  const go = (changed) => (location.hash = tryAddress(changed));
  const add = (value) => go(history.concat(value));
  let history = keys, end = keys.length; // the lists are those after the first `end` items
  let before = new Map(), current = new AbortController();

  const { field, input } = combobox({
    label: "Add an item",
    placeholder: about.named ? "key or name" : "start of the key",
    async suggest(text, signal) {
      const found = await suggestItems(text, signal);
      const several = text.includes(",") ? readKeys(text) : [];
      if (several.length < 2) return found;
      const all = { value: several, content: make("span", `Add ${count(several.length)} keys`) };
      return { options: [...found.options, all], note: found.options.length ? found.note : null };
    },
    choose: add,
    paste: (text) => use(text, history),
  });
  const list = make("div"), results = make("section.wide");
  const range = make("input", { type: "range", id: "range", min: "1" });
  const output = make("output", { for: "range" });
  const slider = make("div.slider", make("label", { for: range.id }, "Use the first"), range,
    output);
  const text = make("textarea", { id: "keys", spellcheck: "false", autocapitalize: "off" });
  const wrong = make("p.small", { role: "alert" });
  const clear = button("Clear", () => {
    go([]);
    input.focus();
  });

  /** Take the keys in a text as the history, after those in `first`. */
  function use(pasted, first) {
    wrong.textContent = "";
    try {
      go(first.concat(readKeys(pasted)));
    } catch (error) {
      wrong.textContent = `This is no JSON list of keys: ${error.message}.`;
    }
  }

  function remove(index) {
    const row = history.length - 1 - index;
    go(history.toSpliced(index, 1));
    update(readAddress(location.hash).keys);
    (list.querySelectorAll("li button")[Math.min(row, history.length - 1)] ?? input).focus();
  }

  function drawHistory(unknown) {
    const row = (fromEnd) => {
      const i = history.length - 1 - fromEnd, key = history[i], name = names.get(key) ?? null;
      const link = itemLink({ item: key, name });
      const left = make("span.where", "not an item of the models: left out");
      if (unknown.includes(key)) link.append(left);
      return make(i < end ? "li" : "li.later", rank(i + 1), link,
        button("×", () => remove(i), { "aria-label": `Remove ${plain(name ?? key, 60)}` }));
    };
    const most = matchMedia("(max-width: 56rem)").matches ? 10 : 40;
    const empty = make("p.faint", "No items yet.");
    list.replaceChildren(...(history.length ? cutList(history.length, most, row) : [empty]));
    clear.hidden = !history.length;
    slider.hidden = history.length < 2;
    range.max = String(history.length);
    range.value = String(end);
    output.textContent = `${count(end)} of ${count(history.length)}`;
    range.setAttribute("aria-valuetext", `${output.textContent} items`);
  }

  async function refresh(wait) {
    current.abort();
    current = new AbortController();
    const { signal } = current;
    try {
      if (!history.length) return await showEmpty(signal);
      results.setAttribute("aria-busy", "true");
      await pause(wait, signal);
      const answer = await ask("lists", {}, signal, { history: history.slice(0, end) });
      drawLists(answer);
      await findNames(signal, answer);
    } catch (problem) {
      if (problem.name === "AbortError") return null;
      results.replaceChildren(heading("Recommended"), problemBox(problem, () => refresh(0)));
    }
    return results.removeAttribute("aria-busy");
  }

  async function showEmpty(signal) {
    before = new Map();
    results.replaceChildren(heading("Recommended"), make("p",
      "Add an item, or paste keys: the lists appear here and change with every item.",
      hasUsers() && " Every user’s page has a link that brings the history here."));
    results.removeAttribute("aria-busy");
    const { items } = await ask("items", { query: "", limit: 12 }, signal);
    if (items.length) results.append(frequentItems("Frequent items to begin with", items, add));
  }

  function drawLists({ lists, unknown }) {
    const items = counted(end, "item");
    const content = [heading(`Recommended after ${items}`), legendOfParts(lists) || "",
      sideBySide(lists, { before, add })];
    redrawn(results, () => results.replaceChildren(...content));
    redrawn(list, () => drawHistory(unknown));
    const fresh = results.querySelectorAll(".fresh").length;
    say(`Lists after ${items}${before.size ? `: ${counted(fresh, "item")} new in them` : ""}.`);
    const places = ({ items: listed }) => new Map(listed.map(({ item }, i) => [item, i + 1]));
    before = new Map(lists.map((one) => [one.model, places(one)]));
  }

  /** Names of items that came with the address, from the server. */
  async function findNames(signal, { unknown, history: named = [] }) {
    if (!about.named) return;
    named.forEach(remember);
    const nameless = (key) => !names.has(key) && !unknown.includes(key);
    const missing = [...new Set(history)].filter(nameless);
    for (const key of missing.slice(-30)) {
      const { items } = await ask("items", { query: key, limit: 5 }, signal);
      items.forEach(remember);
    }
    if (missing.length || named.length) redrawn(list, () => drawHistory(unknown));
  }

  function update(changed) {
    if (tryAddress(changed) === tryAddress(history) && results.firstChild) return;
    history = lastHistory = changed;
    end = changed.length;
    text.value = keysAsText(changed);
    const length = counted(changed.length, "item");
    document.title = `${changed.length ? `History of ${length}` : "Try a history"} · tapas`;
    drawHistory([]);
    refresh(0);
  }

  range.addEventListener("input", () => {
    end = Number(range.value);
    drawHistory([]);
    refresh(80);
  });
  viewSignal.addEventListener("abort", () => current.abort());
  const editor = make("details", make("summary", "Edit or paste as text"),
    make("label.small", { for: "keys" },
      "One key per line, the oldest first; or with commas on one line; or a JSON list."),
    text, wrong, make("div.actions", button("Use these", () => use(text.value, []))));
  show(make("div.head", h1), make("div.columns",
    make("section.first", field, slider,
      make("div.head", heading("History", "newest first"), clear), list, editor),
    results));
  update(keys);
  return update;
}

// ---- map -----------------------------------------------------------------------------------

const FREQUENCY = "\0frequency"; // no column has this name
const maps = new Map(); // answers by model: they are large, and do not change
const mapState = { model: null, colour: null, query: "", centre: null, zoom: 1 };

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** The class of each item by the values of a column, and what the classes are called.

    `of` has the number of each item's class, -1 for others; `legend` the classes in order. */
function classesOf(values) {
  const present = values.filter((value) => value !== null && value !== undefined);
  const sizes = new Map();
  for (const value of present) sizes.set(value, (sizes.get(value) ?? 0) + 1);
  if (sizes.size > 10 && isQuantity(present)) return rangesOf(values);
  const frequent = [...sizes].sort((a, b) => b[1] - a[1]).slice(0, 10);
  const indices = new Map(frequent.map(([value], index) => [value, index]));
  const of = values.map((value) => indices.get(value) ?? -1);
  return withOthers(of, frequent.map(([value, size], index) =>
    ({ index, kind: `m${index}`, label: words(value, 60), size })));
}

/** Whether values are numbers to be ordered; whole numbers in texts may be keys of something. */
function isQuantity(values) {
  if (values.every(isNumber)) return true;
  const decimal = /^\s*[-+]?\d*\.?\d+(e[-+]?\d+)?\s*$/i;
  const texts = values.map(String);
  return texts.every((text) => decimal.test(text)) && texts.some((text) => text.includes("."));
}

/** Classes that are five ranges of numbers with about equally many items, the highest first. */
function rangesOf(texts) {
  const values = texts.map((text) => (text === null || text === undefined ? null : Number(text)));
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  const edges = [...new Set([1, 2, 3, 4].map((n) => sorted[Math.floor((n * sorted.length) / 5)]))];
  const range = (value) => edges.filter((edge) => value >= edge).length;
  const legend = [];
  for (let index = edges.length; index >= 0; index--) {
    const inside = sorted.filter((value) => range(value) === index);
    if (!inside.length) continue;
    const low = count(inside[0]), high = count(inside.at(-1));
    const label = low === high ? low : `${low} – ${high}`;
    const kind = `q${Math.round((4 * index) / Math.max(1, edges.length))}`;
    legend.push({ index, kind, label, size: inside.length });
  }
  return withOthers(values.map((value) => (isNumber(value) ? range(value) : -1)), legend);
}

function withOthers(of, legend) {
  const size = of.filter((index) => index === -1).length;
  if (size) legend.push({ index: -1, kind: "other", label: "other or none", size });
  return { of, legend };
}

/** The first column that puts most items into at least two classes. */
function bestColumn(columns) {
  const good = Object.entries(columns).find(([, values]) => {
    const { of, legend } = classesOf(values);
    return legend.length > 1 && of.filter((index) => index === -1).length < of.length / 2;
  });
  return good ? good[0] : FREQUENCY;
}

async function mapView(key, signal) {
  const h1 = begin("Map of items", "Map of items");
  const option = ({ name }) =>
    make("option", { value: name, selected: name === mapState.model }, plain(name, 60));
  mapState.model ??= about.models[0].name;
  if (key !== undefined) mapState.query = "";
  const models = make("select", about.models.map(option));
  models.addEventListener("change", () => {
    mapState.model = models.value;
    mapState.colour = mapState.centre = null;
    route();
  });
  const choice = about.models.length > 1 && make("label", "Model", models);
  try {
    const { model } = mapState;
    if (!maps.has(model)) maps.set(model, await ask("map", { model }, signal));
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    return show(h1, choice && make("div.tools", choice), problemBox(problem));
  }
  const data = maps.get(mapState.model);
  if (!data.items.length) return show(h1, make("p.faint", "There are no items to show."));
  return showMap(h1, choice, data, key, signal);
}

/** Where things are: the map is `scale()` pixels per unit, and `mapState.centre` its middle. */
function mapPlaces({ x: xs, y: ys }, canvas) {
  const known = [...xs.keys()].filter((i) => isNumber(xs[i]) && isNumber(ys[i]));
  const [left, right] = ends(xs), [bottom, top] = ends(ys);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  mapState.centre ??= [(left + right) / 2, (bottom + top) / 2];

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
    return mapState.zoom * Math.min(w / (right - left), h / (top - bottom));
  }

  return {
    known, size,
    /** A function that gives the place of an item on the canvas as it is now. */
    projection() {
      const [w, h] = size(), [x, y] = mapState.centre, pixels = scale();
      return (i) => [w / 2 + (xs[i] - x) * pixels, h / 2 - (ys[i] - y) * pixels];
    },
    pan(dx, dy) {
      const pixels = scale(), [x, y] = mapState.centre;
      mapState.centre = [clamp(x - dx / pixels, left, right), clamp(y + dy / pixels, bottom, top)];
    },
    /** The place (px, py) of the canvas stays where it is, by default its middle. */
    zoom(factor, px = size()[0] / 2, py = size()[1] / 2) {
      const [w, h] = size(), [x, y] = mapState.centre, old = scale();
      mapState.zoom = clamp(mapState.zoom * factor, 0.6, 60);
      const shift = 1 / old - 1 / scale();
      mapState.centre = [x + (px - w / 2) * shift, y - (py - h / 2) * shift];
    },
    reset() {
      mapState.centre = [(left + right) / 2, (bottom + top) / 2];
      mapState.zoom = 1;
    },
    /** Points grow with the zoom, and are smaller on a small canvas. */
    growth() {
      return clamp(mapState.zoom ** 0.35, 1, 2.2) * clamp(size()[0] / 900, 0.65, 1);
    },
  };
}

/** The drawing of the map: points, rings around those found, names, and the item pointed at.

    `state` has `classes`, and items as indices: `matches` (a set, or null) and `hovered` (or -1);
    `only` is the one class that is not faded, or null. */
function mapDrawing(data, places, canvas, state) {
  const byCount = [...data.items.keys()].sort((a, b) => data.counts[b] - data.counts[a]);
  const most = Math.max(1, data.counts[byCount[0]]);
  const radius = data.counts.map((one) => 1.8 + 4.2 * Math.sqrt(one / most));
  const ink = canvas.getContext("2d");
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
    drawNames(shown, sizeOf, w, h);
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

  /** The names of frequent items, as long as they do not cover each other. */
  function drawNames(shown, sizeOf, w, h) {
    const taken = [[w - 50, 0, w, 130]]; // the buttons
    Object.assign(ink, {
      font: "12px system-ui, sans-serif", textBaseline: "middle", textAlign: "left",
      direction: "ltr", lineWidth: 4, lineJoin: "round", strokeStyle: colour("veil"),
      fillStyle: colour("text"),
    });
    for (const [i, x, y] of shown.slice(0, 150)) {
      const text = plain(data.names?.[i] ?? data.items[i], 26), start = x + sizeOf(i) + 5;
      const [left, right] = [start - 4, start + ink.measureText(text).width + 6];
      const [top, bottom] = [y - 10, y + 10];
      const inside = left > 0 && right < w && top > 0 && bottom < h;
      const free = ([a, b, c, d]) => left > c || right < a || top > d || bottom < b;
      if (!inside || !taken.every(free)) continue;
      taken.push([left, top, right, bottom]);
      ink.strokeText(text, start, y);
      ink.fillText(text, start, y);
      if (taken.length > 28) break;
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
function moveByHand(canvas, places, { redraw, hover, open, nearest }) {
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

function showMap(h1, modelChoice, data, key, signal) {
  const columns = data.columns ?? {}, length = data.items.length;
  const item = (i) => ({ item: data.items[i], name: data.names?.[i] ?? null });
  const shownName = (i) => data.names?.[i] ?? data.items[i];
  for (let i = 0; i < length; i++) remember(item(i));
  if (mapState.colour !== FREQUENCY && !(mapState.colour in columns)) {
    mapState.colour = bestColumn(columns);
  }
  const state = { classes: null, only: null, matches: null, hovered: -1 };
  const canvas = make("canvas", {
    tabindex: "0", role: "application", "aria-label": `Map of ${counted(length, "item")}`,
    "aria-describedby": "map-help",
  });
  const tip = make("div.tip", { hidden: true, "aria-hidden": "true" });
  const status = make("p.small.faint", { role: "status" });
  const found = make("div"), legend = make("div");
  const places = mapPlaces(data, canvas);
  const { draw, nearest, byCount } = mapDrawing(data, places, canvas, state);
  let waiting = false;

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (!canvas.isConnected) return;
      draw();
      drawTip();
    });
  }

  function hover(i, spoken = false) {
    if (i === state.hovered) return;
    state.hovered = i;
    if (spoken && i >= 0) say(plain(shownName(i), 60));
    redraw();
  }

  function open(i = state.hovered) {
    if (i >= 0) location.hash = itemAddress(data.items[i]);
  }

  function drawTip() {
    const i = state.hovered;
    canvas.classList.toggle("over", i >= 0);
    tip.hidden = i < 0;
    if (i < 0) return;
    const value = mapState.colour === FREQUENCY ? null : columns[mapState.colour][i];
    tip.replaceChildren(make("b", words(shownName(i), 60)),
      make("div.faint", item(i).name !== null && words(data.items[i], 40)),
      make("div.faint", counted(data.counts[i], "event"), value && [" · ", words(value, 40)]));
    const [w, h] = places.size(), [x, y] = places.projection()(i);
    const { offsetWidth, offsetHeight } = tip;
    const above = y + 14 + offsetHeight > h;
    const inside = (at, most) => `${Math.max(4, Math.min(at, most - 4))}px`;
    tip.style.left = inside(x + 14, w - offsetWidth);
    tip.style.top = inside(above ? y - 14 - offsetHeight : y + 14, h - offsetHeight);
  }

  function recolour() {
    const byFrequency = mapState.colour === FREQUENCY;
    state.only = null;
    state.classes = classesOf(byFrequency ? data.counts : columns[mapState.colour]);
    const entry = (one) => make("li", button(swatch(`map-${one.kind}`), (event) => {
      state.only = state.only === one.index ? null : one.index;
      for (const other of legend.querySelectorAll("button")) {
        const pressed = other === event.currentTarget && state.only !== null;
        other.setAttribute("aria-pressed", String(pressed));
      }
      redraw();
    }, { "aria-pressed": "false" }, make("span", one.label),
    make("span.faint.small", count(one.size))));
    legend.replaceChildren(heading(byFrequency ? "Events in training" : words(mapState.colour, 60)),
      make("ul.legend", state.classes.legend.map(entry)));
    redraw();
  }

  const lower = data.items.map((_, i) => (data.names?.[i] ?? "").toLowerCase());
  function find() {
    const text = query.value.trim(), asked = text.toLowerCase().split(/\s+/);
    const named = (i) => asked.every((word) => lower[i].includes(word));
    const fits = (i) => data.items[i].startsWith(text) || named(i);
    mapState.query = query.value;
    state.matches = text ? new Set(byCount.filter(fits)) : null;
    const rows = [...(state.matches ?? [])].slice(0, 60).map((i) => make("li", {
      onpointerenter: () => hover(i), onfocusin: () => hover(i), onpointerleave: () => hover(-1),
    }, itemLink(item(i)), make("span.number.faint", count(data.counts[i]))));
    const matching = make("ul.rows", { "aria-label": "Items found" }, rows);
    found.replaceChildren(rows.length ? matching : "");
    status.textContent = foundText(state.matches?.size);
    redraw();
  }

  function foundText(size) {
    const all = `The ${counted(length, "most frequent item")}; larger dots are more frequent.`;
    if (size === undefined) return all;
    if (size === 0) return "No item on the map has such a key or name.";
    return `${counted(size, "item")} found${size > 60 ? ", the first 60 listed" : ""}.`;
  }

  const query = make("input", {
    type: "search", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    placeholder: data.names ? "key or name" : "key", oninput: find,
  });
  query.value = mapState.query;
  const option = (name) => make("option", { value: name, selected: name === mapState.colour },
    name === FREQUENCY ? "frequency" : plain(name, 40));
  const colour = make("select", [...Object.keys(columns), FREQUENCY].map(option));
  colour.addEventListener("change", () => {
    mapState.colour = colour.value;
    recolour();
  });
  const tool = (label, sign, act) => button(sign, () => {
    act();
    redraw();
  }, { "aria-label": label, title: label });

  moveByHand(canvas, places, { redraw, hover, open, nearest });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
  const watcher = new ResizeObserver(redraw);
  watcher.observe(canvas);
  signal.addEventListener("abort", () => watcher.disconnect());

  const centred = key === undefined ? -1 : data.items.indexOf(key);
  if (centred >= 0) {
    mapState.centre = [data.x[centred], data.y[centred]];
    mapState.zoom = Math.max(mapState.zoom, 4);
    state.hovered = centred;
  }
  show(h1,
    key !== undefined && centred < 0 && make("p.problem", words(names.get(key) ?? key),
      ` is not among the ${counted(length, "most frequent item")}, which this map shows.`),
    make("div.map",
      make("div.tools", make("label", "Highlight", query), make("label", "Colour", colour),
        modelChoice),
      make("div",
        make("div.frame", canvas, make("div.zoom", tool("Zoom in", "+", () => places.zoom(1.5)),
          tool("Zoom out", "−", () => places.zoom(1 / 1.5)),
          tool("Show all", "⤢", () => places.reset())), tip),
        make("p.small.faint", { id: "map-help" },
          "The two principal components of the vectors of the items. Zoom with the wheel, two " +
          "fingers, or + and −; move by dragging or with the arrow keys; a click, or Enter, opens " +
          "an item.")),
      make("div.panel", status, found, legend)));
  recolour();
  find();
}

// ---- which view is shown -------------------------------------------------------------------

let about = null; // what the server has
let leave = new AbortController(); // aborted when another view begins
let updateHistory = null; // of the view of a history, while it is shown
let first = true;
const hasUsers = () => about.models.some((model) => model.users > 0);

/** Show what the address says. */
async function route() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  const { view, keys } = readAddress(location.hash);
  for (const link of document.querySelectorAll("nav [data-view]")) {
    setAttributes(link, { "aria-current": link.dataset.view === view && "page" });
    if (link.dataset.view !== view) link.removeAttribute("aria-current");
  }
  if (view === "try" && updateHistory) {
    updateHistory(keys);
    return;
  }
  leave.abort();
  leave = new AbortController();
  updateHistory = null;
  const { signal } = leave;
  const scrolled = history.state?.scrolled; // by the back button only
  const shown = showView(view, keys, signal);
  const moved = !first; // the focus goes to the heading, but not when the page is loaded
  first = false;
  if (moved) main.querySelector("h1")?.focus({ preventScroll: true });
  if (moved && scrolled === undefined) scrollTo(0, 0);
  try {
    await shown;
    if (scrolled !== undefined) scrollTo(0, scrolled);
  } catch (problem) {
    if (problem.name === "AbortError") return;
    show(main.querySelector("h1"), problemBox(problem, start));
  }
  if (signal.aborted) return;
  const lost = document.activeElement === document.body; // the heading is in another place now
  if (moved && lost) main.querySelector("h1")?.focus({ preventScroll: true });
  main.removeAttribute("aria-busy");
}

async function showView(view, keys, signal) {
  if (!about || view === "") {
    begin("Explorer", "tapas");
    const now = await ask("about", {}, signal);
    if (JSON.stringify(now) !== JSON.stringify(about)) { // or a model was replaced by a newer one
      about = now;
      maps.clear();
      fillSearch();
    }
  }
  switch (view) {
    case "": return startView(signal);
    case "user": return userView(keys[0], signal);
    case "item": return itemView(keys[0], signal);
    case "map": return mapView(keys[0], signal);
    case "try": return void (updateHistory = tryView(keys, signal));
    default: return show(begin("No such page", "No such page"),
      make("p", "This address leads to no user, item, history or map. ",
        make("a", { href: "#/" }, "To the start")));
  }
}

/** Show the view again, with what the server has now. */
function start() {
  about = null;
  updateHistory = null;
  return route();
}

function fillSearch() {
  const users = combobox({
    label: "User", placeholder: "start of the key", suggest: suggestUsers,
    choose: (key) => (location.hash = userAddress(key)),
  });
  const items = combobox({
    label: "Item", placeholder: about.named ? "key or name" : "start of the key",
    suggest: suggestItems, choose: (key) => (location.hash = itemAddress(key)),
  });
  const withUsers = make("div", users.field, button("One at random", randomUser));
  search.replaceChildren(...(hasUsers() ? [withUsers] : []), make("div", items.field));
  search.hidden = false;
}

// the place in the page is kept for the back button; the content is only there after an answer
history.scrollRestoration = "manual";
let scrollTimer = null;
addEventListener("scroll", () => {
  clearTimeout(scrollTimer);
  const address = location.href;
  scrollTimer = setTimeout(() => {
    if (location.href === address) history.replaceState({ scrolled: scrollY }, "");
  }, 150);
}, { passive: true });
addEventListener("hashchange", route);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.querySelector("h1")?.focus();
});
route();
