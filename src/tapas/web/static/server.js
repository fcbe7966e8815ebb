/* The server: questions to it, what it has, and what is shown when it does not answer. */

import { button, make, words } from "./page.js";

export let about = null; // the models, as far as all views need to know them

/** An answer that is an error; status 0: no answer. */
class Problem extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The server's answer to a GET, or to a POST of `body`. */
export async function ask(path, query, signal, body = null) {
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

/** Ask what the server has; whether that is not what it had before. */
export async function askAbout(signal) {
  const now = await ask("about", {}, signal);
  if (JSON.stringify(now) === JSON.stringify(about)) return false;
  about = now;
  return true;
}

/** Have the next view ask again. */
export function forgetAbout() {
  about = null;
}

export const hasUsers = () => about.models.some((model) => model.users > 0);

/** Wait, unless aborted before. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("", "AbortError"));
    });
  });
}

/** What went wrong and what can be done about it. */
export function problemBox(problem, again) {
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
