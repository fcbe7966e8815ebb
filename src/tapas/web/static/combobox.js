/* A text field with suggestions (ARIA practices: editable combobox, list autocomplete). */

import { counted, make, say } from "./page.js";
import { pause } from "./server.js";

let numComboboxes = 0;

/** The suggestions below `input`: options, of which one may be active, and a sentence.

    `take(value)` is called with the option that is clicked. */
function optionList(id, label, input, take) {
  const list = make("ul", { role: "listbox", id: `${id}-list`, "aria-label": label, hidden: true });
  const note = make("p", { hidden: true });
  const popup = make("div.popup", { hidden: true }, list, note);
  let options = [], active = -1;
  input.setAttribute("aria-controls", list.id);

  function activate(index) {
    active = index;
    [...list.children].forEach((one, i) => one.setAttribute("aria-selected", String(i === index)));
    const option = list.children[index];
    if (option) input.setAttribute("aria-activedescendant", option.id);
    else input.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
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

  function close() {
    options = [];
    activate(-1);
    popup.hidden = list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }

  /** Make the next option active, or with -1 the one before. */
  function step(by) {
    const places = options.length + 1; // the field itself is between the last and the first
    activate(((active + 1 + by + places) % places) - 1);
  }

  return {
    popup, open, close, activate, step,
    get options() { return options; },
    get active() { return options[active]; },
    get hasOptions() { return !list.hidden; },
  };
}

/** The field, below its label.

    `suggest(text, signal)` gives {options: [{value, content}], note}, where `note` is a sentence
    below the options; `choose(value)` is called with the chosen one. Enter without a chosen one
    takes the option that equals the text, or the only one. `paste`, if given, gets lines that are
    pasted. */
export function combobox({ label, placeholder, suggest, choose, paste }) {
  const id = `combobox-${++numComboboxes}`;
  const input = make("input", {
    id, type: "text", role: "combobox", placeholder, autocomplete: "off", autocapitalize: "off",
    spellcheck: "false", "aria-autocomplete": "list", "aria-expanded": "false",
  });
  const list = optionList(id, label, input, take);
  let current = new AbortController(), latest = Promise.resolve();

  function close() {
    current.abort();
    list.close();
  }

  function take(value) {
    close();
    input.value = "";
    choose(value);
  }

  /** Ask for suggestions; later calls cancel earlier ones. */
  function refresh(wait) {
    current.abort();
    current = new AbortController();
    const { signal } = current;
    latest = (async () => {
      try {
        await pause(wait, signal);
        list.open(await suggest(input.value, signal));
      } catch (problem) {
        if (problem.name === "AbortError") return;
        const gone = problem.status === 0;
        list.open({ options: [], note: gone ? "The server does not answer." : problem.message });
      }
    })();
    return latest;
  }

  async function enter() {
    if (list.active) return take(list.active.value);
    const text = input.value;
    await (list.popup.hidden ? refresh(0) : latest);
    if (text !== input.value) return null;
    const { options } = list, same = options.find((one) => one.value === text);
    if (same || options.length === 1) return take((same ?? options[0]).value);
    return options.length ? list.activate(0) : null;
  }

  async function press(event) {
    const { key } = event;
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    if (key === "ArrowDown" || key === "ArrowUp") {
      event.preventDefault();
      if (event.altKey && key === "ArrowUp") return close();
      if (!list.hasOptions) await refresh(0);
      if (!event.altKey && list.hasOptions) list.step(key === "ArrowDown" ? 1 : -1);
    } else if (key === "Enter") {
      event.preventDefault();
      await enter();
    } else if (key === "Escape") {
      if (list.popup.hidden) input.value = "";
      close();
    }
  }

  input.addEventListener("input", () => refresh(120));
  input.addEventListener("click", () => list.popup.hidden && refresh(0));
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
  return { input, field: make("div.combo", labelled, make("div.combo", input, list.popup)) };
}
