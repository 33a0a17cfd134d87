// Feed: every change as it is recorded, the newest on top, and any period of the past.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Change, connection, follow, type Frame, get, type Histogram, type Page, passing, Problem, type Query, type Status, type Type, useAsked } from "./api";
import { Failed, Field, glyphs, Kept, objectLink, ObjectName, Rows, scope, Strip, Summary, Time, Verb, type View } from "./parts";
import { change, link, place } from "./place";
import { calendar, clock, count, now, resourceName, some } from "./text";

const most = 2000, far = 10_000; // rows that are kept of a live feed, and that are read
const ranges: [string, string, number][] = [["15m", "15 min", 900], ["1h", "1 h", 3600], ["6h", "6 h", 21600], ["24h", "24 h", 86400], ["168h", "7 d", 604800]];
const types: Type[] = ["added", "updated", "deleted", "sync", "gap"];

/** A row, or with `hole` a number of changes of which there are no rows: they came before it, and after the sequence `after`. */
type Row = Change & { hole?: number; after?: number };

function merge(newer: Row[], older: Row[]): Row[] {
  const top = older[0]?.sequence ?? 0;
  if (newer.every((r) => (r.after ?? r.sequence - 1) >= top)) return [...newer, ...older]; // of a frame
  const known = new Set(older.map((r) => r.sequence)), fresh = newer.filter((r) => !known.has(r.sequence));
  return [...without(fresh, older, top), ...without(older, fresh, Infinity)].sort((a, b) => b.sequence - a.sequence);
}

/** The rows whose holes do not count what others list. What is left of a hole came before these if they reach up to a
 *  sequence above it, and else after them. */
function without(rows: Row[], others: Row[], top: number): Row[] {
  return rows.flatMap((r) => {
    const listed = r.hole ? others.filter((o) => !o.hole && o.sequence > r.after! && o.sequence < r.sequence) : [], last = listed.at(-1);
    const left = (r.hole ?? 0) - listed.length;
    return !last ? [r] : left <= 0 ? [] : top > r.sequence ? [{ ...r, sequence: last.sequence - 0.5, time: last.time, hole: left }] : [{ ...r, hole: left }];
  });
}

/** Where the rows end: what follows is asked for by the daemon's own place, or by the last row. */
interface Next { continue?: string; before?: number }

const behind = (rows: Row[]): Next => ({ before: Math.ceil(rows.at(-1)!.sequence) });

/** The place of a list that begins with a row, or with what it stands for. By its sequence: times may fall while these rise. */
const beginning = (r: Row) => ({ at: r.time, before: Math.floor(r.sequence) + 1 });
const live = { at: "", before: "" };

interface Feed { rows: Row[]; next?: Next; error?: Problem; busy: boolean; page?: Page }

/** What came while the list is held, and with `page` where it continues; `cut`: there are more. */
interface Waiting { n: number; rows: Row[]; cut?: boolean; page?: Page }

/** What the stream has counted since a time; `least`: and there was more, which the log has no longer or which cannot be read. */
interface Counts { total: number; shown: number; since: string; least?: boolean }

/** Adds what came, and drops the oldest rows: they are read again when they are scrolled to. */
function add(s: Feed, newer: Row[]): Feed {
  const rows = merge(newer, s.rows);
  if (rows.length <= most) return { ...s, rows };
  rows.length = most;
  while (rows.at(-1)?.hole) rows.pop();
  return { ...s, rows, next: behind(rows) };
}

/** A page with what an expression could not decide on another, too; `same`: of changes that are in part the same, at least so many. */
function undecided(page: Page, other?: Page, same?: boolean): Page {
  const both = (a = 0, b = 0) => same ? Math.max(a, b) : a + b;
  return { ...page, failed: both(page.failed, other?.failed), firstError: page.firstError ?? other?.firstError, absent: both(page.absent, other?.absent) };
}

/** Takes the newest page. Where it does not reach the rows that are there, they follow later. */
function renew(s: Feed, page: Page): Feed {
  page = undecided(page, s.page, true);
  const last = s.rows.at(-1);
  if (last && s.next?.before && (page.items[0]?.sequence ?? 0) < last.sequence) return { ...s, page }; // it came late: rows that followed it were dropped
  const oldest = page.items.at(-1)?.sequence ?? 0, reaches = !page.continue || s.rows.some((r) => r.sequence >= oldest);
  const next = page.continue ? { continue: page.continue } : undefined;
  if (!reaches) return { ...s, rows: page.items, next, page };
  if (!last || last.sequence > oldest) s = { ...s, next, page };
  else if (!s.page && next) s = { ...s, next: behind(s.rows) }; // the first page came late
  return add(s, page.items);
}

function useFeed(query: Query, past: boolean, held: boolean) {
  // Frames tell what came; an expression is for the history alone, which is then asked again.
  const { when, from, to, ...streamed } = query, asks = !!when;
  const [state, set] = useState<Feed>({ rows: [], busy: true });
  const [refused, refuse] = useState<Problem>();
  const counts = useSignal<Counts>({ total: 0, shown: 0, since: "" });
  const waiting = useSignal<Waiting>({ n: 0, rows: [] });
  const holding = useRef(held), reading = useRef(new AbortController().signal), answered = useRef(""), newest = useRef(0), key = JSON.stringify([query, past]);
  holding.current = held;
  newest.current = state.rows[0]?.sequence ?? 0;

  const release = () => {
    const w = waiting.value;
    if (!w.n && !w.page) return;
    waiting.value = { n: 0, rows: [] };
    set((s) => w.cut ? { ...s, rows: w.rows, next: behind(w.rows) } : w.page ? renew(s, { ...w.page, items: w.rows }) : add(s, w.rows));
  };
  useEffect(() => { if (!held) release(); }, [held]);

  const load = async (more?: Next) => {
    const stop = reading.current;
    set((s) => ({ ...s, busy: true }));
    try {
      const page = await get<Page>("history", { ...query, limit: 200, ...more }, stop);
      if (!more) answered.current = page.to;
      set((s) => {
        if (!more) return { ...renew(s, page), error: undefined, busy: false, page };
        if (s.next !== more) return { ...s, busy: false }; // rows were cut meanwhile: others follow them
        const rows = merge(page.items, s.rows);
        return { rows, next: page.continue && rows.length < far ? { continue: page.continue } : undefined, busy: false, page: undecided(page, s.page) };
      });
    } catch (error) {
      if (stop.aborted) return;
      set((s) => ({ ...s, busy: false, error: error as Problem }));
      if (!more && passing(error)) setTimeout(() => { if (!stop.aborted) void load(); }, 2000);
    }
  };
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0, calm = 0, missed = false, loaded = false;
    reading.current = stop.signal;
    answered.current = "";
    set({ rows: [], busy: true });
    refuse(undefined);
    waiting.value = { n: 0, rows: [] };
    counts.value = { total: 0, shown: 0, since: "" };
    if (past) {
      void load();
      return () => stop.abort();
    }
    /** Takes the changes since the last answer, or with a place to continue at those of them that were read. While they wait,
     *  those that are listed stay among them: they show that the page reaches the list. */
    const take = (page: Page) => {
      if (!holding.current) return set((s) => page.continue ? renew(s, page) : add(s, page.items));
      const w = waiting.value, all = merge(page.items, page.continue ? [] : w.rows);
      waiting.value = {
        n: all.filter((r) => r.sequence > newest.current).length, rows: all.slice(0, most),
        cut: all.length > most || w.cut && !page.continue, page: page.continue ? page : w.page,
      };
    };
    const again = () => {
      missed = true;
      timer ||= setTimeout(async () => {
        missed = false;
        // A record is written a moment after its time.
        const from = answered.current && new Date(Date.parse(answered.current) - 60_000).toISOString();
        try {
          const page = await get<Page>("history", { ...query, from, limit: 200 }, stop.signal);
          answered.current = page.to;
          set((s) => ({ ...s, error: undefined, page: s.page && undecided(s.page, page, true) }));
          take(page);
        } catch (error) {
          if (!stop.signal.aborted) set((s) => ({ ...s, error: error as Problem }));
          answered.current = "";
          missed ||= !!from || passing(error); // without a time to begin at: the daemon's clock may have been set back
        }
        timer = 0;
        if (missed && !stop.signal.aborted) again();
      }, 1000);
    };
    const end = follow(streamed, {
      began: (first) => {
        calm = setTimeout(() => refuse(undefined), 1000); // not of one that ends at once
        if (first) {
          counts.value = { total: 0, shown: 0, since: new Date(now()).toISOString() }; // a tab may have been opened in the background
          set({ rows: [], busy: true }); // there may be those of another log
          waiting.value = { n: 0, rows: [] };
          void load();
        }
        loaded = true;
      },
      failed: (problem) => {
        clearTimeout(calm);
        refuse(problem.status ? problem : undefined); // else the status has it
        if (!loaded) void load(); // what there is, at least
        loaded = true;
      },
      lost: () => { counts.value = { ...counts.value, least: true }; }, // frames have what there is
      frame: (f: Frame, after: number) => {
        const c = counts.value, total = f.total - (query.noise ? f.noise : 0);
        counts.value = { ...c, total: c.total + total, shown: c.shown + f.rows.length, least: c.least || !!f.unreadable };
        if (asks) return total || f.unreadable ? again() : undefined;
        const rows: Row[] = [...f.rows].reverse(), oldest = rows.at(-1);
        if (oldest && total > rows.length) rows.push({ ...oldest, sequence: oldest.sequence - 0.5, hole: total - rows.length, after });
        if (!holding.current) set((s) => add(s, rows));
        else {
          const w = waiting.value, all = merge(rows, w.rows);
          waiting.value = { n: w.n + total, rows: all.slice(0, most), cut: w.cut || all.length > most };
        }
      },
    });
    return () => { end(); stop.abort(); clearTimeout(timer); clearTimeout(calm); };
  }, [key]);
  return { ...state, refused, asked: answered.current, counts: counts.value, newer: waiting.value.n, least: !!waiting.value.page || asks && !!waiting.value.cut, older: () => { if (state.next && !state.busy) void load(state.next); } };
}

const rowHeight = () => matchMedia("(max-width: 700px)").matches ? 46 : 26;

export function Feed({ status }: { status?: Status }) {
  const q = place.value.query, value = (name: string) => q.get(name) ?? "";
  // A list that was scrolled by the strip begins at a time of its period, and stands still as one of the past does.
  const past = !!(value("from") || value("to")), at = value("at"), before = value("before"), still = past || !!at, lens = value("lens") !== "all", range = ranges.find(([r]) => r === value("range")) ?? ranges[0]!;
  const filter: Query = { resource: value("resource"), namespace: value("namespace"), name: value("name"), type: value("type"), manager: value("manager"), when: value("when"), noise: lens ? "false" : "" };
  const [paused, pause] = useState(false), [top, setTop] = useState(true), [height, setHeight] = useState(rowHeight);
  const [expression, showExpression] = useState(!!filter.when), [filtering, showFilter] = useState(false);
  const feed = useFeed(still ? { ...filter, from: value("from"), to: !before && at || value("to"), before } : filter, still, paused || !top);
  const view = useSignal<View>(null), first = useRef<Row | undefined>(undefined); // what is in view
  /** Has the way back lead to the rows in view: those of a list that is held, as others came above them. */
  const keep = () => { if ((paused || !top) && first.current) history.replaceState(null, "", link("feed", [], { ...Object.fromEntries(q), ...beginning(first.current) })); };
  const period = past ? { from: value("from"), to: value("to") } : { from: `-${range[0]}` };
  const histogram = useAsked<Histogram>("history/histogram", { ...filter, when: "", noise: "", ...period, buckets: 120 }, past || paused ? 0 : 5000);
  const rows = feed.rows, noise = histogram.current ? histogram.value?.noise ?? 0 : 0;
  // A change stays selected while others come.
  const chosen = useSignal(0), listed = useRef(rows), index = () => listed.current.findIndex((r) => r.sequence === chosen.value);
  const select = (i: number) => { chosen.value = listed.current[Math.max(0, Math.min(i, listed.current.length - 1))]?.sequence ?? 0; };
  listed.current = rows;
  const selected = chosen.value ? index() : -1;

  useEffect(() => {
    const resized = () => setHeight(rowHeight());
    addEventListener("resize", resized);
    return () => removeEventListener("resize", resized);
  }, []);
  useEffect(() => {
    const key = (e: Event) => {
      const k = (e as CustomEvent<string>).detail, row = listed.current[index()];
      if (k === "j") select(index() + 1);
      else if (k === "k") select(index() - 1);
      else if (k === "p") pause(!paused);
      else if (k === "Enter" && row && (row.hole || row.name) && document.activeElement?.closest("a, button") == null) {
        if (row.hole) change(beginning(row));
        else {
          keep();
          location.hash = objectLink(row.resource, row.namespace, row.name!, { v: row.sequence });
        }
      }
      else return;
      e.preventDefault();
    };
    addEventListener("key", key);
    return () => removeEventListener("key", key);
  });

  const setType = (t: Type) => {
    const on = new Set(value("type").split(",").filter(Boolean));
    if (!on.delete(t)) on.add(t);
    change({ type: [...on].join(",") });
  };
  const field = (label: string, name: string, list?: string[], id?: string) => <Field label={label} value={value(name)} list={list} id={id} onValue={(v) => change({ [name]: v })} />;
  const on = value("type").split(","), known = (list: (string | undefined)[]) => [...new Set(list.filter((v) => v))].sort() as string[];
  // Of thousands of rows, and not for each of ten frames a second.
  const names = useMemo(() => ({ namespaces: known(rows.map((r) => r.namespace)), managers: known(rows.map((r) => r.manager)) }), [feed.busy, Math.floor(Date.now() / 2000)]);
  const shown = feed.counts, bad = feed.error && filter.when ? feed.error : undefined;
  return <div class="feed" onClick={(e) => { if ((e.target as Element).closest(".row a") && !(e.ctrlKey || e.metaKey || e.shiftKey || e.altKey)) keep(); }}>
    <h1 class="sr">Feed</h1>
    <Kept of={[names, q, status, expression, filtering, !!bad]}>{() => <div class={"filter" + (filtering || Object.entries(filter).some(([k, v]) => v && k !== "noise") ? " open" : "")} role="search">
      {field("resource", "resource", (status?.caches ?? []).map((c) => c.resource), "filter")}
      {field("namespace", "namespace", names.namespaces)}
      {field("name", "name")}
      {field("manager", "manager", names.managers)}
      <span class="toggles" role="group" aria-label="Types">{types.map((t) => <button class={"toggle " + t} aria-pressed={on.includes(t)} onClick={() => setType(t)}><span aria-hidden="true">{glyphs[t]}</span> {t}</button>)}</span>
      <button class="toggle" aria-pressed={expression || !!filter.when} title="A CEL expression, as a route has it" onClick={() => { showExpression(!expression && !filter.when); if (filter.when) change({ when: "" }); }}>CEL</button>
      {(expression || filter.when) && <Field label="when" wide bad={!!bad} value={value("when")} onValue={(v) => change({ when: v })} />}
    </div>}</Kept>
    <Kept of={[histogram.value, histogram.current, !!filter.when, calendar()]}>{() => <Strip of={histogram.value} stale={!histogram.current} all={!!filter.when} view={view}
      onPeriod={(from, to) => {
        const end = Math.min(Math.max(to, from + 1000), now());
        change({ from: new Date(Math.min(from, end - 1000)).toISOString(), to: new Date(end).toISOString(), ...live });
      }}
      onScroll={(to) => change({ ...live, at: new Date(Math.min(to, now())).toISOString() })} />}</Kept>
    <div class="bar">
      <span class="ranges" role="group" aria-label="Range">{ranges.map(([r, title]) => <button class="toggle" aria-pressed={!past && r === range[0]} onClick={() => change({ range: r, from: "", to: "", ...live })}>{title}</button>)}</span>
      <button class="narrow" aria-expanded={filtering} onClick={() => showFilter(!filtering)}>filter</button>
      {still ? <span>{past && <Time at={value("from")} exact={false} />} – <Time at={at || value("to") || feed.asked || "now"} exact={false} /> <button class="primary" onClick={() => change({ from: "", to: "", ...live })}>back to live</button></span>
        : <button aria-pressed={paused} onClick={() => pause(!paused)}>{paused ? "resume" : "pause"} <kbd>p</kbd></button>}
      {feed.newer > 0 && <button class="primary" onClick={() => { pause(false); document.querySelector(".rows")!.scrollTop = 0; }}>{feed.least && "at least "}{count(feed.newer)} newer ↑</button>}
      {!still && !filter.when && <span class="counts">{shown.since && <>{shown.least && "at least "}{some(shown.total, "change")} <span class="quiet">since <Time at={shown.since} exact={false} />{shown.total > shown.shown && `, ${count(shown.shown)} of them listed`}</span></>}</span>}
      {(still || filter.when) && feed.page && <span class="counts">{some(feed.rows.length, "change")}{feed.next ? " so far" : feed.page.continue && " are listed: choose a shorter period for the others"}</span>}
      {!still && !filter.when && !feed.next && rows.length >= far && feed.page?.continue && <span class="quiet">older changes are not listed: choose a period</span>}
      {(noise > 0 || !lens) && <button class="plain link" title="Of status alone, and of Leases, Events and Endpoints, in the period of the histogram" onClick={() => change({ lens: lens ? "all" : "" })}>{lens ? `${filter.when ? "status changes" : some(noise, "status change")} hidden: show` : "hide status changes"}</button>}
      {feed.page?.reached && feed.next && <span class="quiet">searched back to <Time at={feed.page.reached} exact={false} /> <button disabled={feed.busy} onClick={feed.older}>search on</button></span>}
      {feed.page?.failed ? <span class="quiet" title={feed.page.firstError}>expression failed on {!still && "at least "}{count(feed.page.failed)}</span> : null}
      {feed.page?.absent && !rows.length ? <span class="quiet">a field that the expression reads is missing in {!still && "at least "}{some(feed.page.absent, "change")}</span> : null}
    </div>
    <Failed error={feed.error ?? histogram.error ?? feed.refused} />
    <Rows label="Changes, the newest first" items={rows} height={height} selected={selected} rowKey={(r) => r.sequence} name={(r) => r.hole ? "hole" : r.type} onSelect={select} onTop={setTop} onEnd={(short) => { if (!short || !filter.when) feed.older(); }}
      onView={(newest, oldest) => { first.current = newest; view.value = newest && oldest ? [Date.parse(oldest.time), Date.parse(newest.time)] : null; }}
      row={(r) => r.hole
        ? <button class="plain link" onClick={() => change(beginning(r))}>{some(r.hole, "more change")} at this time: list them</button>
        : r.type === "gap"
          ? <><Time at={r.time} /><Verb type="gap" /><span class="kind">{resourceName(r.resource)}</span><span class="summary">gap{r.gap && <> from <Time at={r.gap.from} /> to <Time at={r.gap.to} />{scope(r.gap)}: {r.gap.cause}</>}</span></>
          : <><Time at={r.time} /><Verb type={r.type} /><span class="kind">{r.resource.kind}</span><span class="name"><ObjectName of={r} query={{ v: r.sequence }} /></span><span class="by">{r.manager}</span><span class={"summary" + (r.summary === r.type ? " quiet" : "")} title={r.summary}><Summary of={r.summary} /></span></>}
      empty={feed.busy ? "Reading the history…" : feed.error ? "Nothing to show." : feed.next ? "No change that was searched matches." : still ? "No recorded change in this period matches." : `No recorded change matches${lens && noise ? ", besides status changes" : ""}. ${connection.value === "live" ? "New ones show here at once." : ""}`} />
    <p class="sr" role="status">{rows[selected] && words(rows[selected])}</p>
    <Spoken text={still ? "" : some(shown.total, "change")} />
  </div>;
}

/** A row as screen readers have it when a key moves to it. */
const words = (r: Row) => r.hole ? some(r.hole, "more change") : [r.type, r.resource.kind || resourceName(r.resource), r.namespace && r.namespace + "/" + r.name || r.name, clock(r.time), r.manager, r.summary].filter(Boolean).join(" ");

/** Counts for screen readers, at most every five seconds. */
function Spoken({ text }: { text: string }) {
  const [said, say] = useState(""), now = useRef(text);
  now.current = text;
  useEffect(() => {
    const timer = setInterval(() => say(now.current), 5000);
    return () => clearInterval(timer);
  }, []);
  return <p class="sr" role="status">{said}</p>;
}
