// Object: its versions, what each changed, and its state at each.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Asked, type Blame, type Change, type Difference, get, type Json, type Owned, type Page, type Problem, type Query, recording, type Ref, type Resource, type State, type Status, type Version, type Versions, useAsked } from "./api";
import { Empty, Failed, Kept, objectLink, ObjectName, Reading, RefName, Summary, Time, unreadText, Verb, Verdict } from "./parts";
import { change, link, place } from "./place";
import { appliable, brief, clock, count, type Field, fields, nested, now, redacted, resourceName, some, span, unhashed, yaml } from "./text";

/** A value: a string as it is, unless it is empty or in place of another type, of which it may have the characters. */
const value = (v: Json, other?: Json) => v && typeof v === "string" && typeof (other ?? v) === "string" && other !== null ? v : yaml(v);

/** A value beside the one that it is compared with. */
const beside = (v: Json, other?: Json) => brief(value(v, other), other === undefined ? "" : value(other, v));

const more = 1000; // rows of a table at a time: those of an object of a megabyte take a browser half a minute

const depth = 8; // pages of a search, each of which takes the daemon half a second at most

/** The newest changes of the history: a page, and those that continue it. Where it ends before the last has continue and reached. */
async function searched(path: string, query: Query, stop: AbortSignal): Promise<Page> {
  const first = await get<Page>(path, query, stop), items = [...first.items];
  let last = first;
  for (let n = 1; n < depth && last.continue; n++) {
    try {
      last = await get<Page>(path, { ...query, continue: last.continue }, stop);
    } catch (error) {
      if (stop.aborted) throw error;
      break;
    }
    items.push(...last.items);
  }
  return { ...last, to: first.to, items };
}

/** What Kubernetes Events say about an object in a period, the newest first, the time that the search came back to if that
 *  is not its beginning, and the reason if it failed. */
function useEvents(status: Status | undefined, namespace: string | undefined, name: string, of: Resource | undefined, from: string | undefined, to: string | undefined): { said: Change[]; reached?: string; failed?: Problem } {
  const core = status?.caches?.some((c) => c.resource === "events"), watched = core || status?.caches?.some((c) => c.resource === "events.events.k8s.io");
  const about = core ? "involvedObject" : "regarding", is = (field: string, value: string) => `object.${about}.${field} == ${JSON.stringify(value)}`;
  // Many leave the version out; another group may have the kind, as Service.
  const version = `object.${about}.apiVersion`, group = `(!has(${version}) || ${of?.group ? `${version}.startsWith(${JSON.stringify(of.group + "/")})` : `!${version}.contains("/")`})`;
  const path = watched && of?.kind && from ? "history" : "", query = {
    resource: core ? "events" : "events.events.k8s.io", namespace, limit: 100, when: `${is("name", name)} && ${is("kind", of?.kind ?? "")} && ${group}`,
  };
  const past = useAsked<Page>(path, { ...query, from, to }, 0, searched);
  // What comes later begins a minute before: a record is written a moment after its time.
  const found = past.current ? past.value : undefined, begin = found && !to ? new Date(Date.parse(found.to) - 60_000).toISOString() : "";
  const later = useAsked<Page>(begin && path, { ...query, from: begin }, 10_000);
  const all = new Map([...found?.items ?? [], ...later.value?.items ?? []].map((c) => [c.sequence, c]));
  const apart = later.value?.continue && Date.parse(later.value.reached!) > Date.parse(found!.to), end = apart ? later.value : found;
  return { said: [...all.values()].filter((c) => c.type === "added" || c.type === "updated").sort((a, b) => b.sequence - a.sequence), reached: end?.continue && end.reached, failed: past.error ?? later.error };
}

export function ObjectView({ status }: { status?: Status }) {
  const [named = "", namespace = "-", name = ""] = place.value.path, q = place.value.query;
  const resource = recording?.kinds[named] ?? named;
  const base = `objects/${[resource, namespace, name].map(encodeURIComponent).join("/")}`;
  const end = q.get("end") || undefined, next = q.get("continue") || undefined; // of the versions that are shown; none: now
  const versions = useAsked<Versions>(base + "/versions", { limit: 500, to: end, continue: next }, 5000);
  const items = versions.value?.items ?? [];
  // The newest, or the one that the address names: of what is older than all, the oldest.
  const v = Number(q.get("v")), w = Number(q.get("w")), found = v > 0 ? items.findIndex((i) => i.sequence <= v) : 0;
  const at = found < 0 ? items.length - 1 : found, other = w > 0 ? items.findIndex((i) => i.sequence === w) : at + 1;
  const version = items[at], before: Compared = w > 0 ? items[other] ?? { sequence: w } : items[other];
  const [old, young]: Compared[] = before && version && before.sequence > version.sequence ? [version, before] : [before, version];
  // Each resource has a watch of its own: what follows a change may be recorded a moment before it.
  const about = (seconds: number) => new Date(Date.parse(version!.time) + seconds * 1000).toISOString();
  const tabs = [["changes", "Changes"], ["yaml", "YAML"], ...recording ? [] : [["blame", "Blame"], ["owned", "Owned"]]] as const;
  const tab = (tabs.find(([t]) => t === q.get("tab")) ?? tabs[0]!)[0];
  const state = useAsked<State>(version ? base : "", { version: version?.sequence }); // not by time: the clock may have been set back
  const owners = (state.value?.object as { metadata?: { ownerReferences?: Ref[] } } | undefined)?.metadata?.ownerReferences ?? [];
  // Blame is of the last state, also beside older versions.
  const newest = useAsked<Versions>(end && tab === "blame" ? base + "/versions" : "", { limit: 1 }, 5000), latest = end ? newest.value : versions.value;
  // A deletion leaves no state, and metadata alone has no kind.
  const last = useAsked<Page>(version && !recording ? "history" : "", { resource, namespace: namespace === "-" ? undefined : namespace, name, limit: 1 });
  // Of a page, what was its oldest version once: an object that changes on has others, and each would begin the search again.
  const begin = useRef<{ of?: string; from?: string }>({});
  if (versions.current && (begin.current.of !== next || !begin.current.from)) begin.current = { of: next, from: items.at(-1)?.time };
  // The address may have a namespace where there is none, as that of an object which it owns.
  const known = last.value?.items[0], within = known?.name ? known.namespace : namespace === "-" ? "" : namespace;
  const { said, reached, failed } = useEvents(status, within, name, known?.resource, begin.current.from, end);
  const events = (after: number, before?: number) => said.filter((e) => e.sequence > after && (!before || e.sequence <= before)).map((e) => <li key={"event" + e.sequence} class="event">
    <a href={objectLink(e.resource, e.namespace, e.name ?? "", { v: e.sequence })} title={e.summary}><Verb type="sync" /><Time at={e.time} /><span class="by">Event</span><span class={"summary" + (e.summary?.startsWith("Warning ") ? " warning" : "")}>{e.summary}</span></a></li>);
  const times = [...items.map((i) => Date.parse(i.time)), -Infinity]; // the last is that of what is not listed
  const spot = (time: number) => times.findIndex((t) => time > t); // one, also where times fall while sequences rise
  const spots = versions.value?.gaps.map((g) => spot(Date.parse(g.to))) ?? []; // once for all versions: there may be thousands
  const gaps = (i: number) => versions.value!.gaps.filter((_, n) => spots[n] === i).map((g) => <li key={"gap" + g.from} class="life gap"><Verb type="gap" /> gap from <Time at={g.from} /> to <Time at={g.to} />: {g.cause}</li>);
  const choose = (i: number) => { const v = items[i]; if (v) change({ v: i ? v.sequence : "" , w: "" }, false); };
  const page = (of?: Versions) => change({ end: of?.items.at(-1)?.time, continue: of?.continue, v: "", w: "" });
  useLayoutEffect(() => { // at once: a key is about what is shown
    const key = (e: Event) => {
      const step = ({ "[": 1, j: 1, "]": -1, k: -1 } as Record<string, number>)[(e as CustomEvent<string>).detail];
      if (step) { choose(at + step); e.preventDefault(); }
    };
    addEventListener("key", key);
    return () => removeEventListener("key", key);
  });
  const rest = versions.value?.continue, oldest = rest ? items.at(-1) : undefined, older = !!oldest && v > 0 && v < oldest.sequence;
  useEffect(() => { if (older && rest !== next) change({ end: oldest!.time, continue: rest }, false); }, [older, rest]); // the one that the address names
  useEffect(() => { document.querySelector(".versions [aria-current]")?.scrollIntoView({ block: "nearest" }); }, [at, items.length]);
  if (!resource || !name) return <Empty>An object is at #/object/RESOURCE/NAMESPACE/NAME.</Empty>;
  return <div class="object">
    <header class="object-head">
      <h1>{within && <span class="quiet">{within}/</span>}{name} <span class="kind">{resource}</span></h1>
      {owners.length > 0 && <span class={state.current ? "owners" : "owners stale"}><span class="quiet">of</span> {owners.map((o) => <span key={o.kind + o.name}><span class="kind">{o.kind}</span> <RefName bare of={{ ...o, namespace: o.apiVersion === "v1" && o.kind === "Node" ? "" : within }} /></span>)}</span>}
      {items.length > 1 && <label class="slider"><span>state at {version && <Time at={version.time} />}</span>
        <input type="range" min={0} max={items.length - 1} value={items.length - 1 - at} aria-valuetext={version?.time} onInput={(e) => choose(items.length - 1 - Number(e.currentTarget.value))} /></label>}
      {!recording && <a href={link("feed", [], { resource, namespace: within, name })}>in the feed</a>}
    </header>
    <Failed error={versions.error ?? newest.error} />
    {versions.value?.unread && <p class="notice gap">{versions.value.unread.map(unreadText).join("; ")}</p>}
    {failed && <p class="notice gap">Kubernetes Events were not searched: {failed.message}</p>}
    {versions.value && !items.length && <Empty>No change of this object{end && <> up to <Time at={end} /></>} is recorded. {end && <button onClick={() => page()}>The newest versions</button>} {versions.value.before !== "exact" && "What was before the log begins is not known."}{versions.value.gaps.length > 0 && <> <Verdict of={{ complete: false, gaps: versions.value.gaps }} /></>}</Empty>}
    <p class="sr" role="status">{version && [version.type, clock(version.time), version.manager, version.summary].filter(Boolean).join(" ")}</p>
    {version && <div class="split">
      <ol class="versions" aria-label="Versions, the newest first">
        {end && <li class="life"><button onClick={() => page()}>The newest versions</button></li>}
        {items.map((v, i) => <>
          {gaps(i)}
          {events(v.sequence, items[i - 1]?.sequence)}
          {reached && spot(Date.parse(reached)) === i && <li class="life gap" key="reached">Kubernetes Events before <Time at={reached} /> were not all searched</li>}
          {i > 0 && v.type === "deleted" && <li class="life" key={"life" + v.sequence}>created again under this name</li>}
          <li key={v.sequence} aria-current={i === at ? "true" : undefined} class={v.type}>
            <button class="plain" onClick={() => choose(i)}><Verb type={v.type} /><Time at={v.time} /><span class="by">{v.manager}</span><span class="summary"><Summary of={v.summary} /></span></button>
            {i !== at && !recording && <button class="plain compare" aria-pressed={i === other} title="Compare the shown version with this one" aria-label={`Compare with the version of ${v.time}`} onClick={() => change({ w: i === at + 1 ? "" : v.sequence }, false)}>⇄</button>}
          </li></>)}
        {versions.value!.before === "gap" && gaps(items.length).slice(-1)}
        <li class="life">{rest ? <button onClick={() => page(versions.value)}>Older versions</button> : versions.value!.before === "exact" ? "it did not exist before" : "not known before"}</li>
      </ol>
      <section class="pane" aria-label="The shown version">
        <div class="tabs"><div role="tablist">{tabs.map(([t, title]) => <button role="tab" aria-selected={t === tab} onClick={() => change({ tab: t === "changes" ? "" : t })}>{title}</button>)}</div>
          {!recording && <a href={link("between", [], { from: about(-1), to: about(60), namespace: within })}>what followed</a>}
          {!recording && <a href={link("config", [], { event: version.sequence })} title="Where the event went, and why">explain</a>}
          <span class="quiet">{tab === "changes" && (old?.time && young?.time ? <>from <Time at={old.time} /> to <Time at={young.time} /></> : <Time at={version.time} />)}</span></div>
        {found < 0 && !rest && <p class="notice gap">{versions.value!.before === "exact" ? "At the change that the address names, it did not exist: this is its first version." : "The change that the address names is not recorded any more: this is the oldest one that is."}</p>}
        {tab === "changes" ? <Kept of={[version.sequence, before?.sequence, other - at]}>{() => <Changes base={base} newer={young!} older={old} next={other === at + 1} />}</Kept>
          : tab === "yaml" ? <Kept of={[state.value, state.current, state.error]}>{() => <Yaml state={state} />}</Kept>
          : tab === "owned" ? <Owns base={base} version={at > 0 || end ? version : undefined} />
          : latest ? <Blamed key={[latest.items[0]?.sequence, latest.gaps.length, latest.unread?.map((u) => u.since)].join()} base={base} last={at === 0 && !end} /> : <Reading />}
      </section>
    </div>}
  </div>;
}

/** A version, of which the page may not have the time. */
type Compared = { sequence: number; time?: string } | undefined;

function Changes({ base, newer, older, next }: { base: string; newer: { sequence: number }; older: Compared; next: boolean }) {
  const diff = useAsked<Difference>(base + "/diff", { version: newer.sequence, base: next ? undefined : older?.sequence });
  const a = diff.value?.from, b = diff.value?.to, both = a?.exists && b?.exists && a.sequence;
  const x = useAsked<State>(both ? base : "", { version: a?.sequence }), y = useAsked<State>(both ? base : "", { version: b?.sequence });
  const shown = diff.value?.rekeyed ? unhashed : (o: Json) => o;
  const current = diff.current && (!x.value || x.current) && (!y.value || y.current);
  const list = x.value?.object && y.value?.object ? fields(shown(x.value.object), shown(y.value.object)) : [];
  const [most, set] = useState(40);
  if (diff.error) return <Failed error={diff.error} />;
  if (!diff.value) return <Reading />;
  return <div class={current ? "" : "stale"} aria-busy={!current}>
    <Unsure of={diff.value} />
    {a && !a.exists && b?.exists && (a.as === "exact" || b.type === "added") && <p class="notice added"><Verb type="added" /> created</p>}
    {a?.exists && b?.as === "exact" && !b.exists && <p class="notice deleted"><Verb type="deleted" /> deleted</p>}
    <Failed error={x.error ?? y.error} />
    {both && <FieldList of={list.slice(0, most)} />}
    {both && list.length > most && <button onClick={() => set(most + more)}>{some(list.length - most, "more field")}</button>}
    {both && !diff.value.diff && <Empty>No visible change.</Empty>}
    {diff.value.diff && <Unified text={diff.value.diff} />}
  </div>;
}

/** What of a difference is not certain. */
export function doubts({ from, to, rekeyed }: Difference): string[] {
  const unknown = [from, to].filter((s) => s.as !== "exact"), list: string[] = [];
  if (unknown.length) list.push(unknown.map((s) => s === from ? "The earlier state" : "The later state").join(" and ") + (unknown.some((s) => s.as === "gap") ? " may differ: a gap covers that time." : " is not known: it is not recorded."));
  if (rekeyed) list.push("The key of the hashes changed in between: whether redacted values differ is not known.");
  return list;
}

export const Unsure = ({ of }: { of: Difference }) => <>{doubts(of).map((text) => <p class="notice gap">{text}</p>)}</>;

export const FieldList = ({ of, names: [old, young] = ["before", "after"] }: { of: Field[]; names?: [string, string] }) => of.length ? <div class="scroll" tabIndex={0} role="group" aria-label="Changed fields"><table class="fields"><thead class="sr"><tr><th>field</th><th>{old}</th><th>{young}</th></tr></thead><tbody>
  {of.map((f) => <tr><th scope="row"><Verb type={f.before === undefined ? "added" : f.after === undefined ? "deleted" : "updated"} />{" "}{f.path}</th><td class="old">{f.before !== undefined && <del>{beside(f.before, f.after)}</del>}</td><td class="new">{f.after !== undefined && <ins>{beside(f.after, f.before)}</ins>}</td></tr>)}
</tbody></table></div> : null;

/** Whether a part of a text that begins at an index would begin with a mark of a letter. */
const within = (text: string, at: number) => /^\p{M}/u.test(text[at] ?? "");

/** A unified diff. In a line that replaces one, what both begin and end with is not marked. */
export function Unified({ text }: { text: string }) {
  const lines = text.replace(/\n$/, "").split("\n").slice(2), [most, set] = useState(2 * more);
  const other = (i: number): string | undefined => {
    const first = lines[i]![0] === "-" ? i : i - 1, old = lines[first], young = lines[first + 1];
    return old?.[0] === "-" && young?.[0] === "+" && lines[first - 1]?.[0] !== "-" && lines[first + 2]?.[0] !== "+" ? i === first ? young : old : undefined;
  };
  const body = (l: string, twin?: string) => {
    if (!twin || l.length > 4000) return brief(l.slice(1), twin?.slice(1));
    let x = 1, y = 0;
    while (x < l.length && l[x] === twin[x]) x++;
    while (y < l.length - x && y < twin.length - x && l[l.length - 1 - y] === twin[twin.length - 1 - y]) y++;
    while (x > 1 && (within(l, x) || within(twin, x))) x--;
    while (y && (within(l, l.length - y) || within(twin, twin.length - y))) y--;
    return <>{l.slice(1, x)}<mark>{l.slice(x, l.length - y)}</mark>{l.slice(l.length - y)}</>;
  };
  return <div class="scroll" tabIndex={0} role="group" aria-label="Difference as YAML"><table class="diff"><tbody>{lines.slice(0, most).map((l, i) => {
    const kind = ({ "+": "added", "-": "deleted", "@": "hunk" } as Record<string, string>)[l[0] ?? ""] ?? "";
    return <tr class={kind}><td class="sign">{kind === "hunk" ? "" : l[0]}</td><td>{kind === "hunk" ? l : kind ? body(l, other(i)) : brief(l.slice(1))}</td></tr>;
  })}</tbody></table>{lines.length > most && <button onClick={() => set(most + more)}>{some(lines.length - most, "more line")}</button>}</div>;
}

const marks: Record<string, [string, string]> = { exact: ["", "exact"], gap: ["?", "later changes may have been missed"], "unknown-before": ["<", "older than the history"] };

/** The last state, and in the margin of each line who set it last. */
function Blamed({ base, last }: { base: string; last: boolean }) {
  const blame = useAsked<Blame>(base + "/blame"), b = blame.value, [most, set] = useState(2 * more);
  if (blame.error) return <Failed error={blame.error} />;
  if (!b) return <Reading />;
  if (!b.fields.length) return <Empty>No state of it is recorded.</Empty>;
  const lines = b.fields.flatMap((f) => [...(f.head ? f.head.split("\n").map((text) => ({ text, f: undefined })) : []), ...f.text.split("\n").map((text) => ({ text, f }))]);
  return <>
    {b.deleted ? <p class="notice deleted">The object is deleted: this is its last state.</p> : !last && <p class="notice">Blame is of the last state, not of the chosen one.</p>}
    {b.unread && <p class="notice gap">It may be another by now: <Verdict of={{ complete: false, gaps: [], unread: b.unread }} /></p>}
    {(b.gaps.length > 0 || b.fields.some((f) => f.as === "gap")) && <p class="notice gap">{b.gaps.length > 0 && some(b.gaps.length, "gap") + ": "}a line with ? may have been set later, by another manager.</p>}
    {b.truncated && <p class="notice gap">The object has so many versions that the oldest were not compared.</p>}
    {b.unmanaged && <p class="notice gap">The managed fields were not read: {b.unmanaged}</p>}
    <div class="scroll" tabIndex={0} role="group" aria-label="State with who set each line"><table class="blame"><thead class="sr"><tr><th>manager</th><th>age</th><th>line</th></tr></thead><tbody>
      {lines.slice(0, most).map(({ text, f }) => {
        const time = f && (f.time ?? f.before), [mark, words] = marks[f?.as ?? ""] ?? ["", ""], age = time && span(now() - Date.parse(time));
        return <tr class={f?.as}><td class="by" title={f && [f.manager, f.operation, f.subresource].filter(Boolean).join(", ")}>{f?.manager}</td>
          <td class="age">{f && <><span class="as" title={words} aria-hidden="true">{mark}</span><span class="sr">{words} </span></>}{time && <time dateTime={time} title={f.time ? time : `before ${time}`}>{f.sequence ? <a href={link("object", place.value.path, { v: f.sequence })}>{age}</a> : age}</time>}</td><td>{brief(text)}</td></tr>;
      })}
    </tbody></table>{lines.length > most && <button onClick={() => set(most + more)}>{some(lines.length - most, "more line")}</button>}</div>
  </>;
}

/** The objects that it owns: now, or when an older version was the last. */
function Owns({ base, version }: { base: string; version?: Version }) {
  const answer = useAsked<Owned>(base + "/owned", { version: version?.sequence }, version ? 0 : 5000), o = answer.value;
  if (answer.error) return <Failed error={answer.error} />;
  if (!o) return <Reading />;
  return <div class={answer.current ? "" : "stale"} aria-busy={!answer.current}>
    {o.as !== "exact" && <p class="notice gap">{o.as === "gap" ? "Changes may have been missed" : "Not all states of that time are known"}: there may be others.</p>}
    {o.unread && <p class="notice gap">It may own others by now: <Verdict of={{ complete: false, gaps: [], unread: o.unread }} /></p>}
    {o.truncated && <p class="notice gap">Only the first {count(o.items.length)} are listed.</p>}
    {o.items.length ? <div class="scroll"><table class="grid"><thead><tr><th>Kind</th><th>Name</th><th>Since</th></tr></thead><tbody>
      {o.items.map((i) => <tr key={[resourceName(i.resource), i.namespace, i.name].join("/")}><td data-label="Kind" class="kind">{i.resource.kind || i.resource.resource}</td><th scope="row" data-label="Name"><ObjectName of={i} query={version && { v: version.sequence }} />{!i.controller && <span class="quiet"> not controlled by it</span>}</th>
        <td data-label="Since">{i.since && <Time at={i.since} exact={false} />}{i.as !== "exact" && <span class="verdict gap"> {i.as}</span>}</td></tr>)}
    </tbody></table></div> : <Empty>{o.as === "exact" && !o.unread && !o.truncated ? `No object that is watched has an owner reference to it${version ? ", at that time" : ""}.` : "None is known."}</Empty>}
  </div>;
}

function Yaml({ state }: { state: Asked<State> }) {
  const [copied, set] = useState("");
  if (state.error) return <Failed error={state.error} />;
  if (!state.value || !state.current && !state.value.object) return <Reading />;
  const { object, as, exists } = state.value;
  if (object === undefined || object === null) return <Empty>{exists ? "Its state is not recorded." : as === "exact" ? "It did not exist at this time." : "Its state is not known."}</Empty>;
  const bare = (object as { kind?: Json }).kind === "PartialObjectMetadata"; // of a watch of metadata
  const { text, deep } = nested(object);
  if (deep) return <Empty>{text}</Empty>;
  const hashes = bare || !redacted(text) ? 0 : redacted(yaml(appliable(object)));
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(yaml(appliable(object)) + "\n");
      set("copied");
    } catch { set("the browser does not allow it"); }
    setTimeout(() => set(""), 2000);
  };
  return <div class={state.current ? "" : "stale"} aria-busy={!state.current}>
    <p class="actions left">{bare ? <span class="quiet">only its metadata is recorded</span> : <button disabled={!state.current} onClick={copy}>copy for kubectl apply</button>} <span role="status" class="quiet">{copied}</span>{as !== "exact" && <span class="verdict gap">{as}: the last known state</span>}</p>
    {hashes > 0 && <p class="notice gap">{some(hashes, "value")} redacted: kubectl apply would set the hashes. Put the real values in their place first.</p>}
    <pre class="scroll" tabIndex={0} aria-label="State as YAML">{text}</pre>
  </div>;
}

