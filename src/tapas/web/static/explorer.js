/* The explorer of `tapas serve`: the views of users and items, and which view is shown. */

import { itemAddress, mapAddress, readAddress, tryAddress, userAddress } from "./addresses.js";
import { combobox } from "./combobox.js";
import { lastHistory, tryView } from "./history.js";
import { itemLink, names, remember } from "./items.js";
import {
  cutList, frequentItems, legendOfParts, modelName, numbered, sideBySide,
} from "./lists.js";
import { forgetMaps, mapView } from "./map.js";
import {
  begin, button, count, counted, heading, main, make, percent, plain, setAttributes, show, unseen,
  words,
} from "./page.js";
import { suggestItems, suggestUsers } from "./search.js";
import { about, ask, askAbout, forgetAbout, hasUsers, problemBox } from "./server.js";

const search = document.getElementById("search");

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

/** The page of a key that the server does not have. */
function showUnknown(h1, kind, key, problem) {
  h1.replaceChildren(`Unknown ${kind} `, words(key, 200));
  document.title = `Unknown ${kind} ${plain(key, 40)} · tapas`;
  show(h1, problemBox(problem), make("p", "Search above, where suggestions appear as you type",
    kind === "user" && hasUsers() && [", or take ", button("one at random", randomUser)], "."));
}

// ---- a user --------------------------------------------------------------------------------

const HELD_OUT = {
  test: ["What came next is held out for the test", "no model has learned from it"],
  validation: ["What came next is held out for validation", "it decided when training stopped"],
};
const NOT_HELD_OUT = "Nothing of this user is held out, so the lists cannot be judged: they " +
  "continue the whole history.";

/** What was held out of training; a note below a list may say more, or otherwise, of its model. */
function aboutHeldOut({ held_out: heldOut, lists }) {
  if (!heldOut) return NOT_HELD_OUT;
  const [what, how] = HELD_OUT[heldOut];
  return lists.some((list) => list.note) ? `${what}.` : `${what}: ${how}.`;
}

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
    make("p.about.faint", events, aboutHeldOut(data)),
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
function nextList({ held_out: heldOut, next, later, lists }) {
  if (!next.length) {
    const none = "This user has no events after the cut.";
    return make("p.faint", heldOut ? none : "Not known: nothing is held out.");
  }
  const several = lists.length > 1;
  const rows = cutList(next.length, 30, (i) => {
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
  return [rows, later > 0 && make("p.small.faint",
    `and ${counted(later, "later event")}, by which lists are not judged`)];
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
        make("p.small.faint", aboutFollowers(data)),
        data.followers?.length > 0 && numbered(data.followers, (item) => percent(item.share))),
      (hasUsers() || data.users.length > 0) && usersOfItem(data)));
}

function aboutFollowers({ followers, weighted }) {
  if (!followers) return "The models do not know: exports have no events.";
  if (!followers.length) return "Nothing followed it in training.";
  return weighted
    ? "Share of what the model has counted near it: later and, less, earlier events of a user."
    : "Share of the events that came next in training.";
}

/** Those who took it most often. */
function usersOfItem({ users, num_users: numUsers }) {
  const cut = users.length < numUsers ? `${count(users.length)} of ` : "";
  return make("section", heading("Users who took it"),
    make("p.small.faint", `${cut}${counted(numUsers, "user")}, and how often each took it.`),
    make("ul.flow", users.map(({ user, times }) =>
      make("li", make("a", { href: userAddress(user) }, words(user, 40)), " ",
        make("span.faint.small", `${count(times)}×`)))));
}

// ---- which view is shown -------------------------------------------------------------------

let leave = new AbortController(); // aborted when another view begins
let updateHistory = null; // of the view of a history, while it is shown
let first = true;

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
    if (await askAbout(signal)) { // or a model was replaced by a newer one
      forgetMaps();
      fillSearch();
    }
  }
  switch (view) {
    case "": return startView(signal);
    case "user": return userView(keys[0], signal);
    case "item": return itemView(keys[0], signal);
    case "map": return mapView(keys[0], signal, route);
    case "try": return void (updateHistory = tryView(keys, signal));
    default: return show(begin("No such page", "No such page"),
      make("p", "This address leads to no user, item, history or map. ",
        make("a", { href: "#/" }, "To the start")));
  }
}

/** Show the view again, with what the server has now. */
function start() {
  forgetAbout();
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

// the same item elsewhere on the page is marked while the pointer or the focus is on it
for (const kind of ["pointerover", "focusin"]) {
  main.addEventListener(kind, (event) => {
    const key = event.target.closest("li")?.querySelector("a[data-item]")?.dataset.item;
    for (const link of main.querySelectorAll("a[data-item]")) {
      link.closest("li")?.classList.toggle("same", link.dataset.item === key);
    }
  });
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.querySelector("h1")?.focus();
});
route();
