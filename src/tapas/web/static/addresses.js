/* The part of the address after #, which says what is shown:

       #/               start
       #/user/KEY       a user: history, what came next, the lists of all models
       #/item/KEY       an item: frequency, neighbours, followers, users
       #/try/KEY,KEY    a history to try, the oldest item first
       #/map, #/map/KEY the most frequent items in two dimensions */

/** `key` percent-encoded, also the quotes and brackets at which programs cut a pasted address. */
function encode(key) {
  const hex = (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`;
  return encodeURIComponent(key.toWellFormed()).replace(/[!'()*]/g, hex);
}

export const userAddress = (key) => `#/user/${encode(key)}`;
export const itemAddress = (key) => `#/item/${encode(key)}`;
export const mapAddress = (key) => `#/map/${encode(key)}`;

/** Keys joined by commas; one more at the end if the last key is empty. */
export function tryAddress(keys) {
  return `#/try/${keys.map(encode).join(",")}${keys.at(-1) === "" ? "," : ""}`;
}

/** The view and its keys; the view is null if the address is not one of ours. */
export function readAddress(hash) {
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
