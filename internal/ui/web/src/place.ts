// Where the reader is: the fragment of the URL holds all state, #/view/path?query.
import { signal } from "@preact/signals";
import { unlock } from "./api";

/** Takes the token of `watcherd ui`, which leaves the address at once: also that of a tab that is open. */
function take() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (!given) return;
  history.replaceState(null, "", location.pathname);
  unlock(decoded(given[1]!));
}
take();

export interface Place { view: string; path: string[]; query: URLSearchParams }

/** A part of an address, which may be anything. */
function decoded(text: string): string {
  try { return decodeURIComponent(text); } catch { return text; }
}

function parse(hash: string): Place {
  const [, path = "", query = ""] = /^#?\/?([^?]*)\??(.*)/.exec(hash)!;
  const [view = "", ...rest] = path.split("/").map(decoded);
  return { view: view || "feed", path: rest, query: new URLSearchParams(query) };
}

const pace = 400; // milliseconds between two changes of the address in place: of more than a hundred in half a minute, browsers refuse some or ignore them
let at = location.hash, timer = 0, wrote = -Infinity; // at: what the address has in a moment

export const place = signal(parse(at));
addEventListener("hashchange", () => {
  take();
  clearTimeout(timer);
  timer = 0;
  place.value = parse(at = location.hash);
});

/** Has the address name the place. */
function write() {
  clearTimeout(timer);
  timer = 0;
  wrote = performance.now();
  if (at !== location.hash) history.replaceState(null, "", at);
}

/** The link to a place. Empty values are left out. */
export function link(view: string, path: string[] = [], query: Record<string, string | number | undefined> = {}): string {
  const list = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined && value !== "") list.set(key, String(value));
  const text = list.toString();
  return "#/" + [view, ...path].map((part) => encodeURIComponent(part.replace(/\p{Cs}/gu, "\ufffd"))).join("/") + (text && "?" + text);
}

/** Changes parts of the query: by a step of the browser's history, or in place. */
export function change(query: Record<string, string | number | undefined>, step = true) {
  const { view, path, query: old } = parse(at); // which is ahead of the place until the browser reports it
  const next = link(view, path, { ...Object.fromEntries(old), ...query });
  if (next === at) return;
  if (step) {
    write();
    wrote = -Infinity; // a change in place that waited would be lost when the browser reports the step
    location.hash = at = next;
    return;
  }
  place.value = parse(at = next);
  if (performance.now() - wrote > pace) write();
  else timer ||= setTimeout(write, pace);
}
