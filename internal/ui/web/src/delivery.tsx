// Delivery: the sinks, what waits for them, and what they refused.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, type Letter, type Letters, post, Problem, type Query, type Sink, type Status, useAsked } from "./api";
import { Ask, Empty, Failed, Field, objectLink, Reading, Spark, Time, Verb } from "./parts";
import { change, link, place } from "./place";
import { ago, bytes, count, nested, now, some, span } from "./text";

interface Course { at: number; delivered: number; queued: number }

/** What the sinks did since the view was opened, a point for each status. */
function useCourses(status?: Status): Map<string, Course[]> {
  const all = useRef(new Map<string, Course[]>()), seen = useRef(status); // of when the view is opened, the time is not known
  if (status && status !== seen.current) {
    seen.current = status;
    for (const s of status.sinks ?? []) {
      const list = all.current.get(s.name) ?? [];
      if (list.length && s.delivered < list.at(-1)!.delivered) list.length = 0; // the daemon was restarted
      all.current.set(s.name, [...list, { at: Date.now(), delivered: s.delivered, queued: s.queued }].slice(-90));
    }
  }
  return all.current;
}

const good = ["idle", "running", "opening"];

export function Delivery({ status, reload }: { status?: Status; reload: () => void }) {
  const courses = useCourses(status), [asked, ask] = useState<Sink>(), [failed, fail] = useState<Problem>();
  const chosen = place.value.path[0], sinks = status?.sinks ?? [];
  const act = async (s: Sink, what: "pause" | "resume") => {
    ask(undefined);
    fail(undefined);
    try { await post(`sinks/${encodeURIComponent(s.name)}/${what}`); } catch (e) { fail(e as Problem); }
    reload();
  };
  const rate = (s: Sink) => {
    const list = courses.get(s.name) ?? [], last = list.at(-1), first = list.at(-6) ?? list[0];
    return first && last && last.at > first.at ? ((last.delivered - first.delivered) / (last.at - first.at) * 1000).toFixed(1) : "–";
  };
  if (status && !sinks.length) return <Empty>No sink is configured.</Empty>;
  return <div class="page">
    <h1>Delivery</h1>
    <Failed error={failed} />
    <div class="scroll"><table class="grid">
      <thead><tr><th>Sink</th><th>State</th><th class="n">Waiting</th><th>Backlog</th><th class="n">Oldest</th><th class="n">Per second</th><th class="n">Delivered</th><th class="n">Dead letters</th><th><span class="sr">Commands</span></th></tr></thead>
      <tbody>{sinks.map((s) => <>
        <tr key={s.name} class={s.name === chosen ? "chosen" : ""}>
          <th scope="row" data-label="Sink"><a href={link("delivery", [s.name])} aria-current={s.name === chosen ? "true" : undefined}>{s.name}</a> <span class="quiet">{s.configured ? s.kind : "not configured any more"}</span></th>
          <td data-label="State"><span class={"dot " + (good.includes(s.state) && !s.blocked ? "live" : s.state === "paused" ? "waiting" : "bad")}>{s.state}</span>{s.nextAttempt && s.state === "backing-off" && <span class="quiet"> next in {span(Date.parse(s.nextAttempt) - now())}</span>}</td>
          <td data-label="Waiting" class="n" title={bytes(s.queuedBytes)}>{count(s.queued)}</td>
          <td data-label="Backlog"><Spark of={(courses.get(s.name) ?? []).map((c) => c.queued)} label={`Backlog since this view was opened, now ${s.queued}`} /></td>
          <td data-label="Oldest" class="n">{s.oldest ? span(now() - Date.parse(s.oldest)) : "–"}</td>
          <td data-label="Per second" class="n">{rate(s)}</td>
          <td data-label="Delivered" class="n">{count(s.delivered)}</td>
          <td data-label="Dead letters" class="n">{s.deadLetters ? <a class="deleted" href={link("delivery", [s.name])}>{count(s.deadLetters)}</a> : "0"}</td>
          <td class="n">{s.configured && <>{s.state === "backing-off" && <button onClick={() => act(s, "resume")}>try now</button>} <button onClick={() => s.state === "paused" ? act(s, "resume") : ask(s)}>{s.state === "paused" ? "resume" : "pause"}</button></>}</td>
        </tr>
        {(s.reason || s.lastError && s.state !== "idle") && <tr class="why" key={s.name + " why"}><td colSpan={9}>{s.reason || `last error ${ago(s.lastErrorTime)}: ${s.lastError}`}{s.attempts ? <span class="quiet"> · {some(s.attempts, "attempt")}</span> : null}{s.lastSuccess && <span class="quiet"> · last success {ago(s.lastSuccess)}</span>}</td></tr>}
      </>)}</tbody>
    </table></div>
    {chosen && sinks.some((s) => s.name === chosen) ? <One key={chosen} sink={sinks.find((s) => s.name === chosen)!} reload={reload} /> : status && <p class="quiet">Choose a sink to see what it refused and what fails.</p>}
    {asked && <Ask title={`Pause ${asked.name}?`} yes="pause" onYes={() => act(asked, "pause")} onNo={() => ask(undefined)}>
      <p>Nothing is lost: its events wait in the store until it is resumed. The log keeps them on disk meanwhile, beyond its retention.</p></Ask>}
  </div>;
}

interface Group { reason: string; letters: Letter[] }

/** Numbers and ids in a reason differ from letter to letter: they are no reason for a group of its own. */
const alike = (reason: string) => reason.replace(/\d+(\.\d+)*/g, (n) => /^[1-5]\d\d$/.test(n) ? n : "#").replace(/"[^"]{24,}"/g, "\"…\"");

const listed = 1000, depth = 20; // letters that are shown, and pages of a search, for each of which the daemon reads a thousand

/** The oldest letters that match. With continue, more may. */
async function oldest(path: string, query: Query, stop: AbortSignal): Promise<Letters> {
  const items: Letter[] = [];
  let page: Letters | undefined;
  for (let n = 0; n < depth && items.length < listed && (!page || page.continue); n++) {
    page = await get<Letters>(path, { ...query, limit: listed - items.length, after: page?.continue }, stop);
    items.push(...page.items);
  }
  return { items, continue: page!.continue };
}

function One({ sink, reload }: { sink: Sink; reload: () => void }) {
  const base = `deadletters/${encodeURIComponent(sink.name)}`;
  const q = place.value.query, filter = { resource: q.get("resource") ?? "", namespace: q.get("namespace") ?? "", name: q.get("name") ?? "", reason: q.get("reason") ?? "" };
  const filtered = Object.values(filter).some(Boolean);
  const letters = useAsked<Letters>(base, filter, 5000, oldest), page = letters.current ? letters.value : undefined; // not of another filter
  const [command, plan] = useState<{ what: "retry" | "drop"; of: object; reason: string; n?: number }>(), [done, say] = useState(""), [failed, fail] = useState<Problem>();
  const groups = new Map<string, Group>();
  for (const l of page?.items ?? []) {
    const key = alike(l.reason), g = groups.get(key) ?? { reason: l.reason, letters: [] };
    g.letters.push(l);
    groups.set(key, g);
  }
  const newest = useRef(0); // the number of the last question
  const prepare = async (what: "retry" | "drop", of: object, reason: string) => {
    const mine = ++newest.current;
    fail(undefined);
    say("");
    try {
      const { count: n } = await post<{ count: number }>(`${base}/${what}`, { ...of, dryRun: true });
      if (mine !== newest.current) return;
      if (n) plan({ what, of, reason, n });
      else say("There is none: nothing was done");
    } catch (e) { if (mine === newest.current) fail(e as Problem); }
  };
  const run = async () => {
    const { what, of, n: counted } = command!;
    plan(undefined);
    try {
      const { count: n } = await post<{ count: number }>(`${base}/${what}`, what === "drop" ? { ...of, count: counted } : of); // what is deleted is what was counted
      say(what === "retry" ? `${some(n, "dead letter")} queued again` : `${some(n, "dead letter")} deleted`);
    } catch (e) { fail(e as Problem); }
    letters.reload();
    reload();
  };
  return <section aria-label={sink.name}>
    <h2>{sink.name}</h2>
    {sink.failing?.length ? <><h3>Objects that fail</h3><div class="scroll"><table class="grid"><thead><tr><th>Object</th><th class="n">For</th><th class="n">Attempts</th><th class="n">Events behind</th><th>Reason</th></tr></thead><tbody>
      {sink.failing.map((f) => <tr><th scope="row" data-label="Object">{f.subject ?? `event ${f.sequence}`}</th><td data-label="For" class="n">{span(now() - Date.parse(f.since))}</td><td data-label="Attempts" class="n">{f.attempts}</td><td data-label="Events behind" class="n">{f.behind}</td><td data-label="Reason">{f.lastError}</td></tr>)}
    </tbody></table></div>{sink.failingObjects > sink.failing.length && <p class="quiet">and {some(sink.failingObjects - sink.failing.length, "more object")}</p>}</> : null}
    <h3>Dead letters</h3>
    <Failed error={failed ?? letters.error} />
    <p role="status" class={done && "notice good"}>{done}</p>
    {(sink.deadLetters > 0 || filtered || done) && <div class="filter" role="search">
      {Object.entries(filter).map(([name, value], i) => <Field key={name} id={i ? undefined : "filter"} label={name} value={value} onValue={(v) => change({ [name]: v })} />)}
      <Commands what={filtered ? "all that match" : "all"} onChoose={(what) => prepare(what, filtered ? { filter } : { all: true }, filtered ? Object.entries(filter).filter(([, v]) => v).map(([k, v]) => `${k}: ${v}`).join(", ") : "")} />
    </div>}
    {!page && !letters.error && <Reading />}
    {page && !groups.size && <Empty>{filtered ? page.continue ? "No dead letter that was searched matches." : "No dead letter matches." : `${sink.name} has no dead letters.`}</Empty>}
    {page?.continue ? <p class="quiet">{filtered ? "Newer dead letters were not searched" : `The oldest ${count(page.items.length)} of ${count(sink.deadLetters)}`}; what is done with all is done with the others, too.</p> : null}
    {[...groups].map(([key, g]) => <details class="group" key={key}>
      <summary><b>{count(g.letters.length)}</b> <span class="reason">{g.reason}</span></summary>
      <p class="actions left"><Commands onChoose={(what) => prepare(what, { positions: g.letters.map((l) => l.position) }, g.reason)} /></p>
      {g.letters.slice(0, 100).map((l) => <LetterRow key={l.position} base={base} letter={l} />)}
      {g.letters.length > 100 && <p class="quiet">and {some(g.letters.length - 100, "more dead letter")}</p>}
    </details>)}
    {command && <Ask title={`${command.what === "retry" ? "Deliver" : "Delete"} ${some(command.n ?? 0, "dead letter")}${command.what === "retry" ? " again" : ""}?`} yes={command.what === "retry" ? "deliver again" : "delete"}
      danger={command.what === "drop"} word={command.what === "drop" ? sink.name : undefined} onYes={run} onNo={() => plan(undefined)}>
      <p class="reason">{command.reason}</p>
      <p>{command.what === "retry" ? `They go to the end of the queue of ${sink.name}. What is refused again becomes a dead letter again.` : "They are not delivered. The history keeps the changes until its retention ends."}</p></Ask>}
  </section>;
}

const Commands = ({ what = "", onChoose }: { what?: string; onChoose: (what: "retry" | "drop") => void }) =>
  <><button onClick={() => onChoose("retry")}>deliver {what && what + " "}again…</button> <button class="danger" onClick={() => onChoose("drop")}>delete{what && " " + what}…</button></>;

function LetterRow({ base, letter: l }: { base: string; letter: Letter }) {
  const [event, set] = useState<Letter>(), [failed, fail] = useState<Problem>(), [open, show] = useState(false);
  useEffect(() => {
    if (!open || event) return;
    const stop = new AbortController();
    fail(undefined);
    void get<Letters>(base, { after: l.position - 1, limit: 1, events: "true" }, stop.signal).then((a) => {
      const found = a.items[0];
      if (found?.position === l.position) set(found);
      else fail(new Problem(404, "It is no dead letter any more."));
    }, (e: Problem) => { if (!stop.signal.aborted) fail(e); });
    return () => stop.abort();
  }, [open]);
  return <div class="letter"><button class="plain" aria-expanded={open} onClick={() => show(!open)}>{open ? "▾" : "▸"} {l.type && <Verb type={l.type} />} {l.last && <Time at={l.last} />} {l.subject ?? `event ${l.sequence}`} <span class="quiet">{some(l.attempts, "attempt")}</span></button>
    {l.resource && l.name && <a href={objectLink(l.resource, l.namespace, l.name, { v: l.sequence })}>object</a>} <a href={link("config", [], { event: l.sequence })}>explain</a>
    {open && <><p class="reason">{l.reason}</p><Failed error={failed} />{!failed && <pre class="scroll" tabIndex={0} aria-label="Payload">{event?.event !== undefined ? nested(event.event).text : "Reading…"}</pre>}</>}</div>;
}
