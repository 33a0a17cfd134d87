// Between: what a period changed in the end, and whether the answer is complete.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { type Changes, type Difference, get, type Group, type NetChange, recording, type Status, type Type, useAsked } from "./api";
import { Empty, Failed, Field, ObjectName, Reading, RefName, scope, Summary, Time, unreadText, Verb, Verdict } from "./parts";
import { change, place } from "./place";
import { doubts, Unified, Unsure } from "./object";
import { calendar, clock, count, moment, resourceName, some, visible } from "./text";

const kinds: [string, Type, string][] = [["deleted", "deleted", "Deleted"], ["created", "added", "Created"], ["changed", "updated", "Changed"], ["unknown", "gap", "Unknown at one end"], ["", "sync", "Below other owners"]];
const shown = 200, usual = "-10m"; // a period that names no beginning

const path = (c: NetChange) => `objects/${[resourceName(c.resource), c.namespace || "-", c.name].map(encodeURIComponent).join("/")}`;

const typeOf = (change = "") => kinds.find(([k]) => k === change)?.[1] ?? "sync";

/** The groups of an answer by what happened to their owners. An object of the flat list is a group of its own. */
function sections(c: Changes): [string, Group[]][] {
  const groups = c.groups ?? c.items.map((change): Group => ({ change, counts: {}, items: [] }));
  return kinds.map(([k, , title]): [string, Group[]] => [title, groups.filter((g) => (g.change?.change ?? "") === k)]).filter(([, of]) => of.length);
}

/** The consequences of a group in numbers. */
const consequences = (g: Group) => Object.entries(g.counts).map(([resource, of]) => `${resource}: ${Object.entries(of).map(([k, n]) => `${count(n)} ${k === "churned" ? "ended as before" : k}`).join(", ")}`).join("; ");

export function Between({ status }: { status?: Status }) {
  const q = place.value.query, value = (name: string) => q.get(name) ?? "";
  const from = value("from") || usual, to = value("to");
  const flat = value("group") === "none", filter = { resource: value("resource"), namespace: value("namespace"), name: value("name") };
  const answer = useAsked<Changes>("changes", recording ? {} : { from, to, ...filter, group: flat ? "" : "owner" });
  const c = answer.current ? answer.value : undefined, [busy, work] = useState(false);
  const times: Record<string, (v: string) => string> = { from: (v) => moment(v) || usual, to: moment };
  const field = (label: string, name: string, list?: string[], id?: string) => <Field label={label} id={id} read={times[name]} value={name === "from" ? from : value(name)} list={list} onValue={(v) => change({ [name]: v })} />;
  const items = c?.groups?.flatMap((g) => g.change ? [g.change, ...g.items] : g.items) ?? c?.items ?? [];
  // Not again for each status.
  const lists = useMemo(() => c && sections(c).map(([title, of]) => <section key={title} aria-label={title}><h2>{title} <span class="quiet">{count(of.length)}</span></h2><List of={of} answer={c} /></section>), [c, calendar()]);
  return <div class="page">
    <h1>{recording ? "Recording" : "Between"}</h1>
    {recording ? <p>While <code>{recording.command.join(" ")}</code> ran, which ended with exit code {recording.exitCode}.{recording.leftOut > 0 && <span class="notice gap"> The versions of {some(recording.leftOut, "object")} did not fit in this page.</span>}</p> : <div class="filter" role="search">
      {field("from", "from", ["-10m", "-1h", "-24h"], "filter")}{field("to", "to", ["-5m"])}
      {field("resource", "resource", (status?.caches ?? []).map((x) => x.resource))}{field("namespace", "namespace")}{field("name", "name")}
      <button class="toggle" aria-pressed={!flat} title="Consequences below their owners" onClick={() => change({ group: flat ? "" : "none" })}>by owner</button>
      <button onClick={answer.reload}>ask again</button>
      {c && <button disabled={busy} onClick={async () => { work(true); try { await save(c, status?.cluster ?? "", filter); } finally { work(false); } }}>{busy ? "writing…" : "save as HTML"}</button>}
    </div>}
    <Failed error={answer.error} />
    {!c && !answer.error && <Reading />}
    {c && <>
      <p class={"lead" + (c.complete && !c.truncated ? "" : " unsure")}>
        Between <Time at={c.from} exact={false} /> and <Time at={c.to} exact={false} />: {items.length
          ? kinds.map(([k, , title]) => [items.filter((i) => i.change === k).length, title.toLowerCase()] as const).filter(([n]) => n).map(([n, t]) => `${count(n)} ${t}`).join(", ")
          : c.complete ? "nothing changed" : "no change is recorded"}{c.churned > 0 && <span class="quiet">; {some(c.churned, "object")} changed and ended as before</span>}. <Verdict of={c} /> {c.since && !recording && <button onClick={() => change({ from: c.since })}>from then on</button>}
        {c.truncated && <span class="verdict gap">only the first part: narrow the period</span>}
      </p>
      {lists}
    </>}
  </div>;
}

function List({ of, answer }: { of: Group[]; answer: Changes }) {
  const [most, set] = useState(shown);
  return <>
    <ul class="net">{of.slice(0, most).map((g) => {
      const { change: i, owner } = g, below = <Below of={g} answer={answer} />;
      if (i) return <Net key={path(i)} of={i} answer={answer}>{below}</Net>;
      return owner && <li key={Object.values(owner).join()}><span /><span /><span class="kind">{owner.kind}</span><span class="name"><RefName of={owner} /></span>{below}</li>;
    })}</ul>
    {of.length > most && <button onClick={() => set(most + 1000)}>{some(of.length - most, "more object")}</button>}
  </>;
}

function Below({ of, answer }: { of: Group; answer: Changes }) {
  const [open, show] = useState(false), text = consequences(of);
  if (!text) return null;
  return <div class="under below">
    {of.items.length ? <button class="plain" aria-expanded={open} onClick={() => show(!open)}>{open ? "▾" : "▸"} {text}</button> : <span class="quiet">{text}</span>}
    {open && <List of={of.items.map((change) => ({ change, counts: {}, items: [] }))} answer={answer} />}
  </div>;
}

function Net({ of, answer, children }: { of: NetChange; answer: Changes; children?: ComponentChildren }) {
  const [open, show] = useState(false), diff = useAsked<Difference>(open ? path(of) + "/diff" : "", { from: answer.from, to: answer.to });
  // Of another object under the same name, everybody expects another identity.
  const summary = (of.summary ?? "").split(", ").filter((part) => !of.recreated || !/^(uid|creationTimestamp) /.test(part)).join(", ");
  return <li><button class="plain fold" aria-expanded={open} aria-label={`Difference of ${of.name}`} onClick={() => show(!open)}>{open ? "▾" : "▸"}</button>
    <Verb type={typeOf(of.change)} /><span class="kind">{of.resource.kind}</span><span class="name"><ObjectName of={of} /></span>
    <span class="by">{of.managers?.join(", ")}</span><span class="summary">{of.recreated && <b>deleted and created again{summary && ", "}</b>}<Summary of={summary} /><span class="quiet"> {of.count > 1 && some(of.count, "change") + ", "}last <Time at={of.time} exact={false} /></span></span>
    {open && <div class="under"><Failed error={diff.error} />{diff.value && diff.current ? <><Unsure of={diff.value} />{diff.value.diff ? <Unified text={diff.value.diff} /> : <Empty>No visible difference.</Empty>}</> : !diff.error && <Reading />}</div>}{children}</li>;
}

const escape = (s: string) => visible(s).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** Writes the answer with its differences as one file that needs no daemon and runs no script. */
async function save(c: Changes, cluster: string, filter: Record<string, string>) {
  const parts: string[] = [], name = (kind: string, namespace = "", of: string) => `<b>${escape(`${kind} ${namespace && namespace + "/"}${of}`)}</b>`;
  let objects = 0;
  const add = async (i: NetChange) => {
    let diff = "left out: more than 500 objects", unsure: string[] = [];
    if (objects++ < 500) await get<Difference>(path(i) + "/diff", { from: c.from, to: c.to }).then((d) => { diff = d.diff; unsure = doubts(d); }, (e: Error) => { diff = e.message; });
    parts.push(`<details><summary>${name(i.resource.kind, i.namespace, i.name)} ${c.groups ? i.change : ""} ${i.recreated ? "deleted and created again" : ""} ${(i.summary ?? "").split(" -> ").map((text) => `<bdi dir="ltr">${escape(text)}</bdi>`).join(" → ")} <i>${escape((i.managers ?? []).join(", "))}</i></summary>${unsure.map((text) => `<p class="h">${text}</p>`).join("")}<pre>`
      + diff.split("\n").map((l) => `<span class="${({ "+": "a", "-": "d", "@": "h" } as Record<string, string>)[l[0] ?? ""] ?? ""}">${escape(l)}</span>`).join("\n") + "</pre></details>");
  };
  for (const [title, of] of sections(c)) {
    parts.push(`<h2>${title} (${of.length})</h2>`);
    for (const g of of) {
      if (g.change) await add(g.change);
      else if (g.owner) parts.push(`<p>${name(g.owner.kind, g.owner.namespace, g.owner.name)}</p>`);
      const text = consequences(g);
      if (!text) continue;
      parts.push(`<details class="c"><summary>${escape(text)}</summary>`);
      for (const i of g.items) await add(i);
      parts.push("</details>");
    }
  }
  const lacks = [...c.gaps.map((g) => `${resourceName(g.resource)}${scope(g)} ${g.from} to ${g.to}: ${g.cause}`), ...(c.unread ?? []).map(unreadText), c.since && `the history begins at ${c.since}`, c.truncated && "more objects changed"].filter(Boolean);
  const verdict = c.complete && !c.truncated ? "Complete: no gap in this period." : `Not complete: ${lacks.join("; ") || "the log does not reach back to the beginning of this period"}.`;
  const only = Object.entries(filter).filter(([, v]) => v).map(([k, v]) => `${k}: ${v}`).join(", ");
  const page = `<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"><title>${escape(cluster)} ${c.from}</title>
<style>:root{color-scheme:light dark}body{font:14px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem}pre{overflow:auto;font-size:12px}.a{color:light-dark(#116329,#7ee787)}.d{color:light-dark(#a0111f,#ffa198)}.h{opacity:.7}p{margin:0}.c{margin-left:2rem}</style>
<h1>${escape(cluster)}: ${c.from} to ${c.to}</h1><p>${only && `Only of ${escape(only)}. `}${escape(verdict)} ${count(objects)} objects changed; ${count(c.churned)} ended as they began.</p>${parts.join("\n")}`;
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([page], { type: "text/html" }));
  a.download = `${cluster || "cluster"}-${clock(c.from, false).replace(/\W/g, "-")}.html`;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
}
