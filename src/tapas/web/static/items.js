/* Items, as links with their names. */

import { itemAddress } from "./addresses.js";
import { make, words } from "./page.js";

export const names = new Map(); // of items, as far as an answer has told them

export function remember({ item, name }) {
  if (name !== null && name !== undefined) names.set(item, name);
}

/** The key of an item, to stand after its name: many items may share one name. */
export function keyAfterName({ item, name }) {
  const alone = name === null || name === undefined || name === item;
  return alone ? null : [" ", words(item, 24, "bdi.key")];
}

export function itemLink(item) {
  if (item.rare) return make("span.name", words(item.item)); // many items, none to open
  remember(item);
  const link = make("a", { href: itemAddress(item.item) }, words(item.name ?? item.item));
  link.dataset.item = item.item;
  return make("span.name", link, keyAfterName(item));
}
