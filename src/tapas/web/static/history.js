/* The view in which a history is made, and the lists after it change with every item. */

import { readAddress, tryAddress } from "./addresses.js";
import { combobox } from "./combobox.js";
import { itemLink, names, remember } from "./items.js";
import { cutList, frequentItems, legendOfParts, rank, redrawn, sideBySide } from "./lists.js";
import { begin, button, count, counted, heading, make, plain, say, show } from "./page.js";
import { suggestItems } from "./search.js";
import { about, ask, hasUsers, pause, problemBox } from "./server.js";

export let lastHistory = []; // of this view, to append items to

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

/** What is to be said of more items than the server takes. */
function tooMany(length) {
  const most = about.limits.history;
  return `A history has at most ${count(most)} items, and this one has ${count(length)}: ` +
    `${count(length - most)} too many.`;
}

/** The items of a history, the newest first, and a slider for how many of them are used. */
function historyList({ use, remove, clear }) {
  const list = make("div");
  const range = make("input", { type: "range", id: "range", min: "1" });
  range.addEventListener("input", () => use(Number(range.value)));
  const output = make("output", { for: "range" });
  const slider = make("div.slider", make("label", { for: range.id }, "Use the first"), range,
    output);
  const clearing = button("Clear", clear);

  /** Draw it; the first `end` items are used, those in `unknown` are left out. */
  function draw(history, end, unknown) {
    const row = (fromEnd) => {
      const i = history.length - 1 - fromEnd, key = history[i], name = names.get(key) ?? null;
      const link = itemLink({ item: key, name });
      const left = make("span.where", "not an item of the models: left out");
      if (unknown.has(key)) link.append(left);
      return make(i < end ? "li" : "li.later", rank(i + 1), link,
        button("×", () => remove(i), { "aria-label": `Remove ${plain(name ?? key, 60)}` }));
    };
    const most = matchMedia("(max-width: 56rem)").matches ? 10 : 40;
    const empty = make("p.faint", "No items yet.");
    redrawn(list, () =>
      list.replaceChildren(...(history.length ? cutList(history.length, most, row) : [empty])));
    clearing.hidden = !history.length;
    slider.hidden = history.length < 2;
    range.max = String(history.length);
    range.value = String(end);
    output.textContent = `${count(end)} of ${count(history.length)}`;
    range.setAttribute("aria-valuetext", `${output.textContent} items`);
  }

  const content = [slider, make("div.head", heading("History", "newest first"), clearing), list];
  return { content, draw, buttons: () => list.querySelectorAll("li button") };
}

/** The keys of a history as text, to edit them; `use(keys)` is called with what it was made. */
function keyEditor(use) {
  const text = make("textarea", { id: "keys", spellcheck: "false", autocapitalize: "off" });
  const wrong = make("p.small", { role: "alert" });
  const editor = make("details", make("summary", "Edit or paste as text"),
    make("label.small", { for: "keys" },
      "One key per line, the oldest first; or with commas on one line; or a JSON list."),
    text, wrong, make("div.actions", button("Use these", () => read(text.value))));

  /** Use the keys in a text, after those in `first`; what cannot be used is kept, to mend it. */
  function read(pasted, first = []) {
    try {
      const keys = first.concat(readKeys(pasted));
      wrong.textContent = keys.length > about.limits.history ? tooMany(keys.length) : "";
      if (!wrong.textContent) return use(keys);
    } catch (error) {
      wrong.textContent = `This is no JSON list of keys: ${error.message}.`;
    }
    text.value = pasted;
    editor.open = true;
    return wrong.scrollIntoView({ block: "nearest" });
  }

  function fill(keys) {
    text.value = keysAsText(keys);
    wrong.textContent = "";
  }

  return { editor, read, fill };
}

/** The lists of all models after a history.

    `answered(unknown)` is called when they are there, and when names of items have come; `add(key)`
    by the button after an item. */
function listsAfter({ answered, add }) {
  const results = make("section.wide");
  let before = new Map(), current = new AbortController();

  /** Show those after the first `end` items; later calls cancel earlier ones. */
  async function refresh(history, end, wait) {
    current.abort();
    current = new AbortController();
    const { signal } = current;
    try {
      if (!history.length) return await showEmpty(signal);
      results.setAttribute("aria-busy", "true");
      await pause(wait, signal);
      if (end > about.limits.history) showTooMany(end);
      else await showLists(history, end, signal);
    } catch (problem) {
      if (problem.name === "AbortError") return null;
      const again = () => refresh(history, end, 0);
      results.replaceChildren(heading("Recommended"), problemBox(problem, again));
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

  function showTooMany(length) {
    before = new Map();
    results.replaceChildren(heading("Recommended"), make("div.problem", { role: "alert" },
      make("p", tooMany(length)),
      make("p", "Remove items, or choose how many of them are used.")));
  }

  async function showLists(history, end, signal) {
    const answer = await ask("lists", {}, signal, { history: history.slice(0, end) });
    const unknown = new Set(answer.unknown);
    drawLists(answer.lists, counted(end, "item"));
    answered(unknown);
    if (await findNames(history, unknown, answer.history ?? [], signal)) answered(unknown);
  }

  function drawLists(lists, items) {
    const content = [heading(`Recommended after ${items}`), legendOfParts(lists) || "",
      sideBySide(lists, { before, add })];
    redrawn(results, () => results.replaceChildren(...content));
    const fresh = results.querySelectorAll(".fresh").length;
    say(`Lists after ${items}${before.size ? `: ${counted(fresh, "item")} new in them` : ""}.`);
    const places = ({ items: listed }) => new Map(listed.map(({ item }, i) => [item, i + 1]));
    before = new Map(lists.map((one) => [one.model, places(one)]));
  }

  return { results, refresh, stop: () => current.abort() };
}

/** Names of items that came with the address, from the server; whether there may be some. */
async function findNames(history, unknown, named, signal) {
  if (!about.named) return false;
  named.forEach(remember);
  const nameless = (key) => !names.has(key) && !unknown.has(key);
  const missing = [...new Set(history)].filter(nameless);
  for (const key of missing.slice(-30)) {
    const { items } = await ask("items", { query: key, limit: 5 }, signal);
    items.forEach(remember);
  }
  return missing.length > 0 || named.length > 0;
}

/** Show the view. It stays while the history changes, so that the focus stays in its field:
    returned is a function to call with the changed keys. */
export function tryView(keys, viewSignal) {
  const h1 = begin("Try a history", "Try a history");
  let history = keys, end = keys.length; // the lists are those after the first `end` items
  const go = (changed) => (location.hash = tryAddress(changed));
  const add = (value) => go(history.concat(value));
  const editor = keyEditor(go);
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
    paste: (text) => editor.read(text, history),
  });
  const list = historyList({
    use(first) {
      end = first;
      refresh(80);
    },
    remove(index) {
      const row = history.length - 1 - index;
      go(history.toSpliced(index, 1));
      update(readAddress(location.hash).keys);
      (list.buttons()[Math.min(row, history.length - 1)] ?? input).focus();
    },
    clear() {
      go([]);
      input.focus();
    },
  });
  const lists = listsAfter({ add, answered: (unknown) => list.draw(history, end, unknown) });

  function refresh(wait) {
    list.draw(history, end, new Set());
    lists.refresh(history, end, wait);
  }

  function update(changed) {
    if (tryAddress(changed) === tryAddress(history) && lists.results.firstChild) return;
    history = lastHistory = changed;
    end = changed.length;
    editor.fill(changed);
    const length = counted(changed.length, "item");
    document.title = `${changed.length ? `History of ${length}` : "Try a history"} · tapas`;
    refresh(0);
  }

  viewSignal.addEventListener("abort", lists.stop);
  show(make("div.head", h1), make("div.columns",
    make("section.first", field, list.content, editor.editor), lists.results));
  update(keys);
  return update;
}
