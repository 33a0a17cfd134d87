// The public HTTP interface of the daemon, and nothing else: docs/history.md and /api/openapi.json.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { heard } from "./text";

export type Type = "added" | "updated" | "deleted" | "sync" | "gap";

export interface Resource { group: string; version: string; resource: string; kind: string }

export interface Gap { watch: string; resource: Resource; namespace?: string; name?: string; cause: string; from: string; to: string }

/** What no watch reads at the moment, and since when. */
export interface Unread { resource: string; namespace?: string; since: string; cause: string }

export interface Change {
  sequence: number; time: string; type: Type; resource: Resource; namespace?: string; name?: string;
  manager?: string; summary?: string; gap?: Gap;
}

interface Answer { from: string; to: string; complete: boolean; gaps: Gap[]; unread?: Unread[]; since?: string; scanned: number }
export interface Page extends Answer { items: Change[]; continue?: string; reached?: string; failed?: number; firstError?: string; absent?: number }
export interface Histogram extends Answer { noise: number; buckets: { from: string; counts: Partial<Record<Type, number>> }[] }
export interface NetChange {
  resource: Resource; namespace?: string; name: string; change: string; recreated?: boolean; count: number; time: string;
  managers?: string[]; summary?: string; before: string; after: string;
}
export interface Ref { apiVersion: string; kind: string; namespace?: string; name: string }
export interface Group { owner?: Ref; change?: NetChange; counts: Record<string, Record<string, number>>; items: NetChange[] }
export interface Changes extends Answer { items: NetChange[]; churned: number; truncated?: boolean; groups?: Group[] }

export interface Version { sequence: number; time: string; type: Type; manager?: string; summary?: string }
export interface Versions { items: Version[]; before: string; gaps: Gap[]; unread?: Unread[]; continue?: string }
export interface State { as: string; exists: boolean; name: string; sequence?: number; time?: string; type?: Type; manager?: string; object?: Json }
export interface Blame {
  deleted?: boolean; gaps: Gap[]; truncated?: boolean; unread?: Unread[]; unmanaged?: string;
  fields: { head?: string; text: string; as: string; manager?: string; operation?: string; subresource?: string; time?: string; before?: string; sequence?: number }[];
}
export interface Owned { as: string; truncated?: boolean; unread?: Unread[]; items: { resource: Resource; namespace?: string; name: string; controller?: boolean; as: string; since?: string }[] }
export interface Difference { from: State; to: State; diff: string; rekeyed?: boolean }

export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

export interface Sink {
  name: string; kind?: string; configured: boolean; state: string; reason?: string; pausedOnRequest?: boolean; since?: string;
  attempts?: number; nextAttempt?: string; lastError?: string; lastErrorTime?: string; lastSuccess?: string;
  queued: number; queuedBytes: number; oldest?: string; inFlight: number; blocked: number; stalled: boolean;
  delivered: number; deadLetters: number; heldBytes: number; failingObjects: number;
  failing?: { subject?: string; sequence: number; since: string; attempts: number; lastError?: string; next?: string; behind: number }[];
}
export interface Source {
  resource: string; namespace?: string; synced: boolean; objects: number; bytes: number; state: string; reason?: string;
  message?: string; since?: string; lastContact?: string; pausedSince?: string; events: number; relists: number; expired: number;
  restarts: number; decodeErrors: number; skipped: number; edits?: { key: string; path: string; hits: number }[];
}
export interface Watch { name: string; sources: Source[] | null; missing?: { resource: string; reason: string }[]; warnings?: string[] }
export interface Route {
  name: string; watches?: string[]; sinks: string[]; matched: number; filtered: number; unchanged: number; unsampled: number;
  missing: number; errors: number; firstError?: string;
}
export interface Status {
  version: string; cluster: string; feed?: string; apiServer: string; started: string; stopping?: boolean; undiscovered?: boolean; discoveryError?: string;
  config: { file: string; hash: string; lastSuccess?: string; lastAttempt?: string; lastError?: string; needsRestart?: string[]; warnings?: string[] };
  store: {
    path: string; paused?: boolean; opening?: boolean; failed?: string; reason?: string; bytes: number; maxBytes?: number; diskFree: number;
    firstEvent: number; lastEvent: number; loggedEvents: number; loggedBytes: number;
    journal?: { stream: string; replica: string; role: "leader" | "follower"; leader: string; term: number; last: number; lag: number };
  };
  applied: boolean; caches: { resource: string; objects: number; bytes: number }[] | null; watches: Watch[] | null; routes: Route[] | null; sinks: Sink[] | null;
}
export interface Letter {
  position: number; sequence: number; reason: string; attempts: number; first?: string; last?: string; type?: Type; subject?: string;
  time?: string; resource?: Resource; namespace?: string; name?: string; event?: Json;
}
export interface Letters { items: Letter[]; continue?: number }
/** An event that a route holds for a sink or, without one, the match of its object with a route that has a `for`. */
export interface Hold { route: string; sink?: string; since: string; due?: string }
export interface Explanation {
  sequence: number; id: string; type: Type; subject: string; time: string; note?: string;
  recorded: { sink: string; routes: string[]; throttle?: string }[]; holds: Hold[]; watches: { watch: string; verdict: string; selection?: string }[];
  routes: { route: string; verdict: string; error?: string; sinks: string[] }[];
}
export interface Frame { total: number; noise: number; counts: Partial<Record<Type, number>>; unreadable?: number; rows: Change[] }

export interface Problems { line?: number; column?: number; key?: string; message: string }
export interface Configuration { path: string; running?: Json; file?: Json; equal: boolean; problems: Problems[] }

export type Query = Record<string, string | number | undefined>;

/** What `watcherd record` put into its page: the answers that the page asks for, by path and query. */
export interface Recording { cluster: string; command: string[]; exitCode: number; leftOut: number; kinds: Record<string, string>; answers: Record<string, unknown> }
const data = document.getElementById("recording")?.textContent;
export const recording = data ? parsed(data) as Recording : undefined;

/** A refusal of the daemon, or none of its answers: then the status is 0. */
export class Problem extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}

/** Whether the same request may be answered a moment later. */
export const passing = (error: unknown) => error instanceof Problem && [0, 502, 503, 504].includes(error.status);

/** What a browser may refuse: its storage, of a reader who blocks it and in a sandbox. */
export function allowed<T>(f: () => T): T | undefined {
  try { return f(); } catch { return undefined; }
}

// The token of this tab. It comes in the fragment of `watcherd ui`, or from the form.
const kept = "watcherd.token";
let token = allowed(() => sessionStorage.getItem(kept)) ?? "";
export const locked = signal("");

export function unlock(given: string) {
  token = given;
  allowed(() => sessionStorage.setItem(kept, given));
  locked.value = "";
}

function headers(more: Record<string, string>): Record<string, string> {
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

const url = (path: string, query: Query = {}) => {
  const list = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined && value !== "") list.append(key, String(value));
  const text = list.toString();
  return `../api/v1/${path}${text && "?"}${text}`;
};

async function ask(path: string, query: Query, init: RequestInit): Promise<Response> {
  let answer: Response;
  const sent = token;
  if (/[^\x20-\x7e]/.test(sent)) { // no request can have it, and without one no answer asks for another
    locked.value = "The token has characters that no token has, as typographic quotes.";
    throw new Problem(401, locked.value);
  }
  try {
    answer = await fetch(url(path, query), { cache: "no-store", ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, "the daemon does not answer");
  }
  heard(answer.headers.get("Date"));
  if (answer.ok) {
    if (sent === token) locked.value = ""; // the daemon may have read its token file too early
    return answer;
  }
  const text = await answer.text();
  let detail = text;
  try { detail = (JSON.parse(text) as { detail?: string }).detail ?? text; } catch { /* a proxy's own words */ }
  if (answer.status === 401 && sent === token) locked.value = detail || "The daemon is read with a token."; // else another came meanwhile
  throw new Problem(answer.status, detail || answer.statusText);
}

/** An answer, with whole numbers that a number of JavaScript cannot have. */
function parsed(text: string): unknown {
  const exact = (_: string, v: unknown, from?: { source?: string }) => typeof v === "number" && !Number.isSafeInteger(v) && /^-?\d+$/.test(from?.source ?? "") ? BigInt(from!.source!) : v;
  return /9\d{15}|\d{17}/.test(text) ? JSON.parse(text, exact as (key: string, v: unknown) => unknown) : JSON.parse(text);
}

export async function get<T>(path: string, query: Query = {}, stop?: AbortSignal, most = patience): Promise<T> {
  if (recording) {
    const asked = Object.entries(query).filter(([, v]) => v !== undefined && v !== "").map(([k, v]) => `${k}=${v}`).sort();
    const answer = recording.answers[[decodeURIComponent(path), ...asked].join("&")];
    if (answer === undefined) throw new Problem(404, "This page does not have it: watcherd history and diff read it from the folder of the recording, with --store.");
    return answer as T;
  }
  const late = AbortSignal.timeout(most);
  try {
    const answer = await ask(path, query, { headers: headers({}), signal: stop ? AbortSignal.any([stop, late]) : late });
    return parsed(await answer.text()) as T;
  } catch (error) {
    if (error instanceof Problem || stop?.aborted) throw error;
    if (error instanceof RangeError) throw new Problem(413, "the answer nests too deep to be shown"); // for the browser's stack
    throw new Problem(0, late.aborted ? "the daemon does not answer" : "the daemon's answer broke off");
  }
}

export const getStatus = (path: string, query: Query, stop: AbortSignal) => get<Status>(path, query, stop, prompt);

export async function post<T>(path: string, body: object = {}): Promise<T> {
  try {
    const answer = await ask(path, {}, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal: AbortSignal.timeout(patience) });
    return await answer.json() as T;
  } catch (error) {
    if (error instanceof Problem && error.status) throw error;
    throw new Problem(0, "the daemon does not answer" + ("dryRun" in body ? "" : ": whether it has done that is not known"));
  }
}

/** What was asked for. The value is current if it is the answer to this request, and not to the one before. */
export interface Asked<T> { value?: T; current: boolean; error?: Problem; reload: () => void }

/** Asks again when the request changes, every so many milliseconds while the tab is seen, and after no answer.
 *  The last answer stays until there is another; an empty path asks for nothing. */
export function useAsked<T>(path: string, query: Query = {}, every = 0, read: (path: string, query: Query, stop: AbortSignal) => Promise<T> = get): Asked<T> {
  const [state, set] = useState<{ key: string; value?: T; error?: Problem }>({ key: "" });
  const [turn, again] = useState(0);
  const key = path && url(path, query);
  useEffect(() => {
    if (!path) return;
    let timer = 0, wait = every, stop = new AbortController();
    const once = async () => {
      clearTimeout(timer);
      stop.abort(); // what is asked already, when the tab is seen again
      const { signal } = stop = new AbortController();
      wait = every;
      try {
        const value = await read(path, query, signal);
        if (signal.aborted) return;
        set({ key, value });
      } catch (error) {
        if (signal.aborted) return;
        if (passing(error)) wait ||= retry;
        set((old) => ({ key, value: old.key === key ? old.value : undefined, error: error as Problem }));
      }
      if (wait && !recording && !document.hidden) timer = setTimeout(once, wait);
    };
    const seen = () => { if (wait && !document.hidden) void once(); };
    document.addEventListener("visibilitychange", seen);
    void once();
    return () => { document.removeEventListener("visibilitychange", seen); clearTimeout(timer); stop.abort(); };
  }, [key, every, turn, locked.value]);
  return { value: path ? state.value : undefined, current: state.key === key, error: state.key === key ? state.error : undefined, reload: () => again((n) => n + 1) };
}

const patience = 60_000; // milliseconds for an answer: the longest take 20 s, and may wait for others
const prompt = 10_000; // for the status, which is at hand: what is shown of it is old meanwhile
const retry = 2000;
const silence = 40_000; // of a stream, which has something every 15 s

/** Where the stream of this tab is: "" means that there is none. */
export const connection = signal<"" | "live" | "waiting">("");

export interface Follower {
  began: (first: boolean) => void; // the stream counts: from now on, or again. It is the first of a log
  failed: (problem: Problem) => void; // there is no stream; another attempt follows
  frame: (f: Frame, after: number) => void; // of what came after a sequence
  lost: () => void; // of what was asked for, the log has no longer everything
}

/** Follows the log in frames until the returned function is called. The stream is closed while the
 *  tab is hidden, and when nothing comes, and continues where it ended: nothing is left out of the counts. */
export function follow(query: Query, to: Follower): () => void {
  let last = "", wait = 500, timer = 0, stop = new AbortController(), over = false;
  const run = async () => {
    stop = new AbortController();
    const { signal } = stop, dead = new AbortController();
    let quiet = 0, begun = false, ended = false, problem = new Problem(504, "the stream of changes brings nothing: a proxy may hold it back");
    const listen = () => { clearTimeout(quiet); quiet = setTimeout(() => dead.abort(), silence); };
    listen();
    try {
      const answer = await ask("events", { ...query, view: "feed" }, { signal: AbortSignal.any([signal, dead.signal]), headers: headers(last ? { "Last-Event-ID": last } : {}) });
      const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        listen();
        const parts = (rest + value).split("\n\n");
        rest = parts.pop()!;
        for (const part of parts) {
          const first = last === "", after = Number(last), line = (name: string) => part.split("\n").find((l) => l.startsWith(name + ": "))?.slice(name.length + 2) ?? "";
          last = line("id") || last;
          const another = Number(last) < after; // a log that has not come so far: another one
          if (line("event") === "end") {
            ended = true;
            problem = new Problem(503, (JSON.parse(line("data")) as { reason: string }).reason);
            continue;
          }
          if (begun) wait = 500; // not of one that ends at once
          connection.value = "live";
          if (last && (!begun || another)) { begun = true; to.began(first || another); }
          if (line("event") === "frame") to.frame(JSON.parse(line("data")) as Frame, after);
          else if (line("event") === "truncated") to.lost();
        }
      }
    } catch (error) {
      if (error instanceof Problem) problem = error;
    }
    clearTimeout(quiet);
    dead.abort(); // it may be open still, with what cannot be read
    if (over || signal.aborted) return;
    if (!begun || ended) to.failed(problem);
    connection.value = "waiting";
    timer = setTimeout(run, wait);
    wait = Math.min(wait * 2, 8000);
  };
  const seen = () => {
    clearTimeout(timer);
    stop.abort();
    connection.value &&= "waiting";
    if (!document.hidden) void run();
  };
  document.addEventListener("visibilitychange", seen);
  if (!document.hidden) void run();
  return () => {
    over = true;
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(timer);
    stop.abort();
    connection.value = "";
  };
}
