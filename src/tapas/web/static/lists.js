/* Lists of items, and the lists of several models side by side. */

import { itemLink } from "./items.js";
import { button, count, counted, heading, make, percent, plain, unseen, words } from "./page.js";

export const modelName = (name) => words(name, 60);
export const rank = (number) => make("span.rank", String(number));
const number = (text) => make("span.number", text);

const PARTS = {
  softmax: "the network",
  copy: "items of the history",
  follow: "what followed the latest items in training",
};
export const swatch = (kind) => make(`span.swatch.${kind}`, { "aria-hidden": "true" });
const partKind = (part) => `of-${part in PARTS ? part : "part"}`;

export function legendOfParts(lists) {
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
export function sideBySide(lists, { hits = false, before = new Map(), add = null }) {
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
export function numbered(items, text, add = null) {
  return make("ol.rows", { role: "list" }, items.map((item, i) =>
    make("li", rank(i + 1), itemLink(item), number(text(item)), add && addButton(item, add))));
}

export function frequentItems(title, items, add = null) {
  items.sort((a, b) => b.count - a.count);
  const list = numbered(items, (item) => count(item.count), add);
  list.classList.add("frequent");
  return make("section", heading(title, "events in training"), list);
}

/** A list of rows 0 to `length` - 1, the first `most` of them until a button is pressed. */
export function cutList(length, most, row) {
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
export function redrawn(place, draw) {
  const inside = () => [...place.querySelectorAll("a, button")];
  const at = inside().indexOf(document.activeElement);
  draw();
  if (at >= 0) inside()[Math.min(at, inside().length - 1)]?.focus();
}
