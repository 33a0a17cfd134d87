// Where the reader is: the fragment of the URL holds all state, #/view/path?query.
import { signal } from "@preact/signals";
import { unlock } from "./api";

/** Takes the token of `watcherd ui`, which leaves the address at once: also that of a tab that is open. */
function take() {
  const given = /^#token=([^&]+)$/.exec(location.hash);
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

function parse(): Place {
  const [, path = "", query = ""] = /^#?\/?([^?]*)\??(.*)/.exec(location.hash)!;
  const [view = "", ...rest] = path.split("/").map(decoded);
  return { view: view || "feed", path: rest, query: new URLSearchParams(query) };
}

export const place = signal(parse());
addEventListener("hashchange", () => {
  take();
  place.value = parse();
});

/** The link to a place. Empty values are left out. */
export function link(view: string, path: string[] = [], query: Record<string, string | number | undefined> = {}): string {
  const list = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined && value !== "") list.set(key, String(value));
  const text = list.toString();
  return "#/" + [view, ...path].map((part) => encodeURIComponent(part.replace(/\p{Cs}/gu, "\ufffd"))).join("/") + (text && "?" + text);
}

/** Changes parts of the query: by a step of the browser's history, or in place. */
export function change(query: Record<string, string | number | undefined>, step = true) {
  const { view, path, query: old } = parse(); // which is ahead of the place until the browser reports it
  const next = link(view, path, { ...Object.fromEntries(old), ...query });
  if (next === location.hash) return;
  if (step) location.hash = next;
  else {
    history.replaceState(null, "", next);
    place.value = parse();
  }
}
