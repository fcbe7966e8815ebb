/* What is suggested while a user or an item is searched. */

import { keyAfterName, remember } from "./items.js";
import { counted, make, words } from "./page.js";
import { about, ask } from "./server.js";

/** What `find(text)` finds; if nothing, and there are spaces around the text, without these. */
async function withoutSpaces(text, find) {
  const found = await find(text);
  return found.options.length || text.trim() === text ? found : find(text.trim());
}

const MORE = "There are more: type on.";

export function suggestUsers(text, signal) {
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

export function suggestItems(text, signal) {
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
