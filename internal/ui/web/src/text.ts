// How values read.
import type { Json, Resource } from "./api";

const two = (n: number) => String(n).padStart(2, "0");
const day = (d: Date) => `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;

/** Now, by the clock of the daemon: that of the browser may be wrong. */
export const now = () => Date.now() + ahead;
let ahead = 0;

const today = () => day(new Date(now()));

/** The day of now and its zone: what shows a time is made again when either is another. */
export const calendar = () => today() + new Date(now()).getTimezoneOffset();

/** Takes the time of an answer, which has no fractions of a second. */
export function heard(date: string | null) {
  const off = Date.parse(date ?? "") + 500 - Date.now();
  if (!Number.isNaN(off)) ahead = Math.abs(off) < 5000 ? 0 : off;
}

/** The offset of a time that the clock shows for the second time, as it was set back. */
function again(d: Date): string {
  const first = new Date(d.getFullYear(), d.getMonth(), d.getDate(), d.getHours(), d.getMinutes(), d.getSeconds(), d.getMilliseconds()), east = -d.getTimezoneOffset();
  return d > first ? `${east < 0 ? "-" : "+"}${two(Math.floor(Math.abs(east) / 60))}:${two(Math.abs(east) % 60)}` : "";
}

/** A time of the clock: with milliseconds, and with its day if that is not today. -5m stays what it is. As in what commands
 *  print, milliseconds are rounded up: the state at the time of a change has the change. */
export function clock(time: string | number, exact = true): string {
  const d = new Date(time);
  if (Number.isNaN(d.getTime())) return String(time);
  if (exact && /\.\d{3}\d*[1-9]/.test(String(time))) d.setTime(d.getTime() + 1);
  const at = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}${exact ? "." + String(d.getMilliseconds()).padStart(3, "0") : ""}${again(d)}`;
  return day(d) === today() ? at : `${day(d)} ${at}`;
}

/** A time of the clock, as it is shown, as the interface takes it. What is none stays what it is. */
export function moment(text: string): string {
  const [, date = today(), at] = /^(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[+-]\d\d:\d\d)?)$/.exec(text) ?? [], d = new Date(`${date}T${at}`);
  return Number.isNaN(d.getTime()) ? text : d.toISOString();
}

/** How long a duration is, in at most two units. */
export function span(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${s % 60 ? ` ${s % 60}s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${s % 3600 >= 60 ? ` ${Math.floor(s % 3600 / 60)}m` : ""}`;
  return `${Math.floor(s / 86400)}d${s % 86400 >= 3600 ? ` ${Math.floor(s % 86400 / 3600)}h` : ""}`;
}

export const ago = (time?: string) => time ? `${span(now() - Date.parse(time))} ago` : "never";

export const count = (n: number) => n.toLocaleString("en-US");

export const some = (n: number, one: string, more = one + "s") => `${count(n)} ${n === 1 ? one : more}`;

export function bytes(size: number | bigint): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0, n = Number(size); // of 8 EiB, which a file system may have free, it is a bigint
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

/** The free bytes of a disk, nothing if they are not known. */
export const free = (n: number) => n < 0 ? "" : `, ${bytes(n)} free`;

/** As the interface takes it: pods, deployments.apps. */
export const resourceName = (r: Resource) => r.group ? `${r.resource}.${r.group}` : r.resource;

const plain = /^[A-Za-z_/$](?:[\w ./()$@%+=,;<>^~-]|:(?=\S))*$/;
const reserved = /^(y|n|yes|no|on|off|true|false|null|~|\.nan|\.inf|.*[ .])$/i;
const scalar = (v: Json): string => typeof v === "bigint" ? String(v) : typeof v !== "string" ? JSON.stringify(v) : plain.test(v) && !reserved.test(v) ? v
  : visible(JSON.stringify(v));

const hidden = /(?![\n\t ])[\p{Cc}\p{Cf}\p{DI}\p{Z}\u2800\ufffe\uffff]|(?<=\p{M}{4})\p{M}+|^\p{M}+/gu;

/** A text with escapes, as YAML has them, for what no reader sees, or takes for a blank, what changes the order in which others
 *  are shown, and marks that have no letter or are more than a letter has in any language: these cover the lines around. */
export const visible = (text: string) => text.replace(hidden, (found) => [...found].map((c) => {
  const code = c.codePointAt(0)!.toString(16);
  return code.length > 4 ? "\\U" + code.padStart(8, "0") : "\\u" + code.padStart(4, "0");
}).join(""));

// What a block of YAML has as it is: nothing that is not visible, and no line breaks but the usual one.
const printable = /^[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\u{10000}-\u{10ffff}]*$/u;

/** A value as YAML. Strings that could be read as something else are quoted. */
export function yaml(v: Json, indent = ""): string {
  if (Array.isArray(v) && v.length) {
    return v.map((item) => {
      const text = yaml(item, indent + "  ");
      return `${indent}- ${typeof item === "object" && item && text.includes("\n") || text.startsWith(indent + "  ") ? text.trimStart() : text}`;
    }).join("\n");
  }
  if (v && typeof v === "object" && !Array.isArray(v)) {
    const keys = Object.keys(v);
    if (keys.length) {
      return keys.map((key) => {
        const value = v[key]!, name = scalar(key);
        if (typeof value === "string" && value.includes("\n") && /^[^\s]/.test(value) && printable.test(value) && visible(value) === value && !/\n\s*\n$/.test(value)) {
          const end = value.endsWith("\n");
          return `${indent}${name}: |${end ? "" : "-"}\n` + (end ? value.slice(0, -1) : value).split("\n").map((l) => l && `${indent}  ${l}`).join("\n");
        }
        const nested = value && typeof value === "object" && Object.keys(value).length > 0;
        return `${indent}${name}:${nested ? "\n" + yaml(value, Array.isArray(value) ? indent : indent + "  ") : " " + yaml(value)}`;
      }).join("\n");
    }
  }
  return scalar(v);
}

/** A value as YAML, or a note that the browser's stack is too small for it. */
export function nested(v: Json): { text: string; deep?: boolean } {
  try { return { text: yaml(v) }; } catch { return { text: "It nests too deep to be shown.", deep: true }; }
}

/** A text of which only a part is shown if it is long: a line of a megabyte takes seconds to lay out. That is its beginning, or
 *  where it begins to differ from its twin. */
export function brief(text: string, twin = "", most = 4000): string {
  if (text.length <= most) return text;
  let same = 0;
  while (same < twin.length && text[same] === twin[same]) same++;
  const from = same < most - 100 ? 0 : same - 100;
  return `${from ? "…" : ""}${text.slice(from, from + most)}${from + most < text.length ? "…" : ""} (${count(text.length)} characters)`;
}

/** The object as `kubectl apply` takes it: without what the server sets. */
export function appliable(object: Json): Json {
  if (!object || typeof object !== "object" || Array.isArray(object)) return object;
  const { status: _, ...rest } = object, metadata = { ...(rest.metadata as { [key: string]: Json }) };
  for (const key of ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"]) delete metadata[key];
  const { "kubectl.kubernetes.io/last-applied-configuration": made, ...annotations } = { ...(metadata.annotations as { [key: string]: Json }) };
  if (made !== undefined) metadata.annotations = annotations; // kubectl makes it again
  return { ...rest, metadata };
}

const hash = /redacted:hmac-sha256:[0-9a-f]{16}/g;

/** The number of redacted values in a text. */
export const redacted = (text: string) => text.match(hash)?.length ?? 0;

/** A state without the hashes of redacted values: those of two keys cannot be compared. */
export const unhashed = (v: Json): Json => typeof v === "string" ? v.replace(hash, "redacted")
  : Array.isArray(v) ? v.map(unhashed) : v && typeof v === "object" ? Object.fromEntries(Object.entries(v).map(([key, of]) => [key, unhashed(of)])) : v;

export interface Field { path: string; before?: Json; after?: Json }

const skipped = ["metadata.resourceVersion", "metadata.generation", "metadata.managedFields"];

/** What differs between two states, by path. Items of lists are matched by name. */
export function fields(a: Json | undefined, b: Json | undefined, path = "", into: Field[] = []): Field[] {
  if (a === b || skipped.includes(path)) return into;
  const isMap = (v: Json | undefined): v is { [key: string]: Json } => !!v && typeof v === "object" && !Array.isArray(v);
  const dot = (key: string) => /^[\w-]+$/.test(key) ? (path && path + ".") + key : `${path}["${key}"]`;
  const x = a === undefined ? {} : a, y = b === undefined ? {} : b;
  if (isMap(x) && isMap(y) && Object.keys(x).length + Object.keys(y).length) {
    const own = (of: { [key: string]: Json }, key: string) => Object.hasOwn(of, key) ? of[key] : undefined; // not its "constructor"
    for (const key of new Set([...Object.keys(x), ...Object.keys(y)])) fields(own(x, key), own(y, key), dot(key), into);
  } else if (Array.isArray(a) && Array.isArray(b)) {
    const key = ["name", "type", "key", "containerPort", "port", "uid"].find((k) => [a, b].every((l) => l.length && new Set(l.map((v) => isMap(v) ? v[k] : undefined)).size === l.length && l.every((v) => isMap(v) && v[k] !== undefined)));
    if (key) {
      const index = (l: Json[]) => new Map(l.map((v) => [(v as { [k: string]: Json })[key]!, v]));
      const before = index(a), after = index(b);
      for (const name of new Set([...before.keys(), ...after.keys()])) fields(before.get(name), after.get(name), `${path}[${key}=${String(name)}]`, into);
    } else for (let i = 0; i < Math.max(a.length, b.length); i++) fields(a[i], b[i], `${path}[${i}]`, into);
  } else if (a === undefined || b === undefined || yaml(a) !== yaml(b)) into.push({ path, before: a, after: b });
  return into;
}
