// What several views are made of.
import type { ReadonlySignal } from "@preact/signals";
import { Component, type ComponentChildren, type RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Gap, Histogram, Problem, Ref, Resource, Type, Unread } from "./api";
import { link, place } from "./place";
import { calendar, clock, count, resourceName, some, span } from "./text";

export const glyphs: Record<Type, string> = { added: "+", updated: "~", deleted: "−", sync: "=", gap: "⌁" };

export const Verb = ({ type }: { type: Type }) => <span class={"verb " + type} title={type}><span aria-hidden="true">{glyphs[type]}</span><span class="sr">{type}</span></span>;

export const Time = ({ at, exact = true }: { at: string; exact?: boolean }) => <time dateTime={at} title={at}>{clock(at, exact)}</time>;

/** The summary of a change, with arrows as people write them. Letters that are written from right to left would have the values
 *  around an arrow change places. */
export const Summary = ({ of = "" }: { of?: string }) => <>{of.split(" -> ").map((text, i) => <>{i > 0 && " → "}<bdi dir="ltr">{text}</bdi></>)}</>;

export const objectLink = (r: Resource, namespace: string | undefined, name: string, query: Record<string, string | number | undefined> = {}) =>
  link("object", [resourceName(r), namespace || "-", name], query);

export const ObjectName = ({ of, query }: { of: { resource: Resource; namespace?: string; name?: string }; query?: Record<string, string | number> }) =>
  of.name ? <a href={objectLink(of.resource, of.namespace, of.name, query)}>{of.namespace && <span class="quiet">{of.namespace}/</span>}{of.name}</a> : <span>all objects</span>;

/** An object as references in objects name it: by its kind, which the interface takes too. `bare`: whether it is in the namespace is not known. */
export const RefName = ({ of, bare }: { of: Ref; bare?: boolean }) => {
  const group = of.apiVersion.includes("/") ? "." + of.apiVersion.split("/")[0] : "";
  return <a href={link("object", [of.kind.toLowerCase() + group, of.namespace || "-", of.name])}>{!bare && of.namespace && <span class="quiet">{of.namespace}/</span>}{of.name}</a>;
};

export const Failed = ({ error }: { error?: Problem }) => error ? <p class="notice bad" role="alert">{error.message}</p> : null;

export const Empty = ({ children }: { children: ComponentChildren }) => <p class="empty">{children}</p>;

export const Reading = () => <p class="empty" aria-busy="true">Reading…</p>;

export const unreadText = (u: Unread) => `${u.resource} ${u.namespace ?? ""} not read since ${u.since}: ${u.cause}`;

/** What a gap is of, if not of all objects. */
export const scope = (g: Gap) => g.name ? ` of ${g.namespace ? g.namespace + "/" : ""}${g.name}` : g.namespace ? ` in ${g.namespace}` : "";

const listed = 200; // of what a period lacks, which may be thousands

/** What a period's answer is worth. */
export function Verdict({ of }: { of: { complete: boolean; gaps: Gap[]; unread?: Unread[]; since?: string; truncated?: boolean } }) {
  const [open, set] = useState(false), [most, list] = useState(listed);
  if (of.complete) return <span class="verdict good">✓ complete</span>;
  const begins = of.since && <> <span class="verdict gap">history begins within this period, at <Time at={of.since} exact={false} /></span></>;
  if (!of.gaps.length && !of.unread) return <>{begins || !of.truncated && <span class="verdict gap">not everything of this period is recorded</span>}</>;
  const all = [...of.unread ?? [], ...of.gaps];
  return <>
    <button class="verdict gap" aria-expanded={open} onClick={() => set(!open)}>{of.gaps.length > 0 && `⌁ ${some(of.gaps.length, "gap")} `}{of.unread && <>not read since <Time at={of.unread.map((u) => u.since).sort((a, b) => Date.parse(a) - Date.parse(b))[0]!} /></>}</button>{begins}
    {open && <ul class="gaps">{all.slice(0, most).map((g) => "since" in g ? <li>{unreadText(g)}</li> : <li><Verb type="gap" /> <b>{resourceName(g.resource)}</b>{scope(g)} <Time at={g.from} /> – <Time at={g.to} />: {g.cause}</li>)}
      {all.length > most && <li><button onClick={() => list(most + listed)}>{count(all.length - most)} more</button></li>}</ul>}
  </>;
}

/** Calls the newest function when an element has another size. */
function useResized(box: RefObject<HTMLElement | null>, f: () => void) {
  const newest = useRef(f);
  newest.current = f;
  useLayoutEffect(() => {
    const sizes = new ResizeObserver(() => newest.current());
    sizes.observe(box.current!);
    return () => sizes.disconnect();
  }, []);
}

/** Elements that follow from the values `of` alone, and are made again when one of these is another. Unlike elements that are
 *  kept and given again, they lead to none of an earlier rendering: in a view that is live for hours, these would become many. */
export class Kept extends Component<{ of: unknown[]; children: () => ComponentChildren }> {
  override shouldComponentUpdate(next: { of: unknown[] }) { return next.of.some((v, i) => v !== this.props.of[i]); }
  render() { return this.props.children(); }
}

/** A list of which only the rows in view are elements. All rows have one height. None of the values is made of elements:
 *  an effect keeps those of the rendering that it is from, and old elements lead to all later ones. */
export function Rows<T extends object>(props: {
  label: string; items: T[]; height: number; selected: number; row: (item: T) => ComponentChildren; name: (item: T) => string; rowKey: (item: T) => string | number;
  onSelect: (index: number) => void; onTop?: (top: boolean) => void; onEnd?: (short: boolean) => void; onView?: (newest?: T, oldest?: T) => void; empty: string;
}) {
  const box = useRef<HTMLDivElement>(null), [view, set] = useState({ top: 0, height: 600 });
  const { items, height, selected } = props;
  const look = () => {
    const e = box.current!;
    set((old) => old.top === e.scrollTop && old.height === e.clientHeight ? old : { top: e.scrollTop, height: e.clientHeight });
    props.onTop?.(e.scrollTop < height);
    if (e.scrollTop + e.clientHeight > e.scrollHeight - 4 * height) props.onEnd?.(false);
  };
  useResized(box, look);
  useEffect(() => { if (items.length * height < view.height) props.onEnd?.(true); }, [items, view.height]); // there is nothing to scroll
  useEffect(() => {
    const e = box.current!;
    if (selected >= 0 && selected * height < e.scrollTop) e.scrollTop = selected * height;
    else if ((selected + 1) * height > e.scrollTop + e.clientHeight) e.scrollTop = (selected + 1) * height - e.clientHeight;
  }, [items[selected] && props.rowKey(items[selected])]); // not of a row that others move
  useEffect(() => {
    const top = Math.floor(view.top / height);
    props.onView?.(items[top], items[Math.min(items.length, Math.ceil((view.top + view.height) / height)) - 1]);
  }, [items, view, height]);
  const first = Math.max(0, Math.floor(view.top / height) - 8), last = Math.min(items.length, Math.ceil((view.top + view.height) / height) + 8);
  // What has the focus stays an element, also where others move it out of view: a reader who uses the keyboard would be thrown out.
  const held = box.current?.querySelector<HTMLElement>(".row:focus-within")?.dataset["key"], at = held === undefined ? -1 : items.findIndex((item) => String(props.rowKey(item)) === held);
  const indices = Array.from({ length: last - first }, (_, i) => first + i);
  if (at >= 0 && at < first) indices.unshift(at);
  else if (at >= last) indices.push(at);
  return <div class="rows" ref={box} onScroll={look} tabIndex={0} role="group" aria-label={props.label}>
    <div role="list" style={{ height: items.length * height + "px" }} class="rows-in">
      {indices.map((i) => [i, items[i]!] as const).map(([i, item]) => <div key={props.rowKey(item)} data-key={props.rowKey(item)} role="listitem" aria-setsize={items.length} aria-posinset={i + 1}
        aria-current={i === selected ? "true" : undefined} class={"row " + props.name(item) + (i === selected ? " selected" : "")} style={{ top: i * height + "px", height: height + "px" }}
        onClick={() => props.onSelect(i)}><Kept of={[item, calendar()]}>{() => props.row(item)}</Kept></div>)}
    </div>
    {!items.length && <Empty>{props.empty}</Empty>}
  </div>;
}

const stacked: Type[] = ["sync", "updated", "added", "deleted"];

/** The times of the newest and the oldest row in view, in milliseconds. */
export type View = [oldest: number, newest: number] | null;

/** What of the strip's period the list shows. */
function Thumb({ view, from, to, n }: { view: ReadonlySignal<View>; from: number; to: number; n: number }) {
  if (!view.value || view.value[1] < from || view.value[0] > to) return null;
  const at = (t: number) => Math.min(n, Math.max(0, (t - from) / (to - from) * n)), width = Math.max(n / 200, at(view.value[1]) - at(view.value[0]));
  return <rect class="thumb" x={Math.min(n - width, at(view.value[0]))} width={width} y="0" height="100" />;
}

/** Parts of a line, of which those that touch are one. */
function united(parts: [number, number][]): [number, number][] {
  const all: [number, number][] = [];
  for (const [x, y] of parts.sort((a, b) => a[0] - b[0])) {
    const last = all.at(-1);
    if (last && x <= last[1]) last[1] = Math.max(last[1], y);
    else all.push([x, y]);
  }
  return all;
}

/** Changes over time: to see, to choose a period of, and to scroll the list by. Arrow keys move the
 *  period, + and − zoom, Page Up and Page Down scroll by a tenth of it. What is stale is of another question; `all`: what an expression leaves out is counted, too. */
export function Strip({ of, stale, all, view, onPeriod, onScroll }: { of?: Histogram; stale: boolean; all?: boolean; view: ReadonlySignal<View>; onPeriod: (from: number, to: number) => void; onScroll: (to: number) => void }) {
  const area = useRef<SVGSVGElement>(null), [brush, setBrush] = useState<[number, number] | null>(null), [hover, setHover] = useState(-1);
  if (!of || !of.buckets.length) return <div class="strip" />;
  const n = of.buckets.length, from = Date.parse(of.from), to = Date.parse(of.to);
  const sum = (i: number) => Object.entries(of.buckets[i]!.counts).reduce((s, [t, c]) => s + (t === "gap" ? 0 : c ?? 0), 0);
  const sums = of.buckets.map((_, i) => sum(i)), most = Math.max(1, ...sums), total = sums.reduce((a, b) => a + b, 0);
  const place = (e: PointerEvent) => {
    const r = area.current!.getBoundingClientRect();
    return Math.min(1, Math.max(0, (e.clientX - r.left) / r.width));
  };
  const at = (f: number) => from + f * (to - from);
  const keys = (e: KeyboardEvent) => {
    const w = to - from, by: Record<string, [number, number]> = { ArrowLeft: [-w / 4, -w / 4], ArrowRight: [w / 4, w / 4], "+": [w / 4, -w / 4], "-": [-w / 2, w / 2] };
    const step = by[e.key], page = { PageUp: w / 10, PageDown: -w / 10 }[e.key];
    if (step) onPeriod(from + step[0], to + step[1]);
    else if (page) onScroll((view.value?.[1] ?? to) + page);
    else return;
    e.preventDefault();
  };
  const shown = hover >= 0 && hover < n ? of.buckets[hover]! : undefined;
  const words = (c: Partial<Record<Type, number>>) => Object.entries(c).map(([t, k]) => `${count(k ?? 0)} ${t}`).join(", ") || "nothing";
  return <div class={stale ? "strip counting" : "strip"} aria-busy={stale}>
    <div class="strip-head">{stale ? "Counting…" : <>
      <span>{shown ? <><Time at={shown.from} exact={false} /> +{span((to - from) / n)}: {words(shown.counts)}</> : <>{some(total, "change")} in {span(to - from)}{all && ", whatever the expression selects"}{total > 0 && <span class="quiet">, at most {count(most)} in {span((to - from) / n)}</span>}</>}</span>
      <Verdict of={of} /></>}
    </div>
    <div class="strip-area" role="slider" tabIndex={0} aria-label="Period: arrow keys move it, plus and minus zoom, page up and page down scroll the list" aria-valuenow={to} aria-valuetext={`${clock(of.from, false)} to ${clock(of.to, false)}, ${stale ? "counting" : some(total, "change")}`}
      onKeyDown={keys}>
      <svg ref={area} viewBox={`0 0 ${n} 100`} preserveAspectRatio="none" aria-hidden="true"
        onPointerDown={(e) => { if (e.button) return; area.current!.setPointerCapture(e.pointerId); const f = place(e); setBrush([f, f]); }}
        onPointerMove={(e) => { const f = place(e); setHover(Math.min(n - 1, Math.floor(f * n))); if (brush) setBrush([brush[0], f]); }}
        onPointerLeave={() => setHover(-1)}
        onPointerUp={(e) => {
          const f = place(e);
          if (brush && Math.abs(f - brush[0]) > 0.005) onPeriod(at(Math.min(f, brush[0])), at(Math.max(f, brush[0])));
          else if (brush) onScroll(at(Math.min(n, Math.floor(f * n) + 1) / n)); // to the end of the bar
          setBrush(null);
        }}
        onPointerCancel={() => setBrush(null)}>
        <defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"><path d="M0 6L6 0" class="hatch" vector-effect="non-scaling-stroke" /></pattern></defs>
        {united([...of.gaps, ...(of.unread ?? []).map((u) => ({ from: u.since, to: of.to }))].map((g) => {
          const x = Math.max(0, (Date.parse(g.from) - from) / (to - from) * n), y = Math.min(n, (Date.parse(g.to) - from) / (to - from) * n);
          return [x, Math.max(x + n / 200, y)];
        })).map(([x, y]) => <rect x={x} width={y - x} y="0" height="100" fill="url(#hatch)" class="gap-area" />)}
        {stacked.map((type) => <path class={"series " + type} d={of.buckets.map((b, i) => {
          const below = stacked.slice(0, stacked.indexOf(type)).reduce((s, t) => s + (b.counts[t] ?? 0), 0), c = b.counts[type] ?? 0;
          return c ? `M${i + 0.1} ${100 - below / most * 100}h.8v${-Math.max(1, c / most * 100)}h-.8z` : "";
        }).join("")} />)}
        <Thumb view={view} from={from} to={to} n={n} />
        {brush && <rect class="brush" x={Math.min(...brush) * n} width={Math.abs(brush[1] - brush[0]) * n} y="0" height="100" />}
      </svg>
    </div>
    <div class="strip-axis"><Time at={of.from} exact={false} /><Time at={new Date((from + to) / 2).toISOString()} exact={false} /><Time at={of.to} exact={false} /></div>
  </div>;
}

/** A field of a filter, applied when its reader stops or presses Enter. What `read` makes of the text is in its place once the reader has left. */
export function Field(props: { label: string; value: string; onValue: (v: string) => void; read?: (v: string) => string; list?: string[]; wide?: boolean; id?: string; bad?: boolean }) {
  const [text, set] = useState(props.value), timer = useRef(0), given = useRef(props.value); // what this field gave, or was given
  useEffect(() => {
    if (props.value === given.current) return; // the reader may write on already
    clearTimeout(timer.current);
    given.current = props.value;
    set(props.value);
  }, [props.value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const { view, path } = place.peek();
  const give = (v: string) => {
    clearTimeout(timer.current);
    const at = place.peek(), value = props.read ? props.read(v.trim()) : v.trim();
    if (value === given.current || at.view !== view || at.path.join("/") !== path.join("/")) return; // of another place, if the field loses the focus as it goes
    given.current = value;
    props.onValue(value);
  };
  const input = (e: { currentTarget: HTMLInputElement }) => {
    const v = e.currentTarget.value;
    set(v);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => give(v), 600);
  };
  const id = props.list && "list-" + props.label.replace(/\W/g, "");
  return <label class={"field" + (props.wide ? " wide" : "") + (props.read ? " time" : "") + (props.bad ? " bad" : "")}><span>{props.label}</span>
    <input id={props.id} type="text" value={text} list={id} spellcheck={false} autocomplete="off" autocapitalize="off" onInput={input} onBlur={(e) => { give(e.currentTarget.value); if (props.read) set(given.current); }} onKeyDown={(e) => { if (e.key === "Enter") give(e.currentTarget.value); }} />
    {id && <datalist id={id}>{props.list!.map((v) => <option value={v} />)}</datalist>}
  </label>;
}

/** A question before what cannot be undone. With a word, that has to be typed. Once it is answered, the focus is where it was. */
export function Ask(props: { title: string; word?: string; yes: string; danger?: boolean; onYes: () => void; onNo: () => void; children?: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null), [typed, set] = useState("");
  useEffect(() => { box.current!.showModal(); }, []);
  return <dialog ref={box} onClose={props.onNo} aria-label={props.title}>
    <form method="dialog" onSubmit={(e) => { e.preventDefault(); box.current!.close(); props.onYes(); }}>
      <h2>{props.title}</h2>
      {props.children}
      {props.word && <Typed word={props.word} onText={set} />}
      <p class="actions"><button type="button" onClick={() => box.current!.close()}>Cancel</button><button type="submit" class={props.danger ? "danger" : "primary"} disabled={!!props.word && typed !== props.word}>{props.yes}</button></p>
    </form>
  </dialog>;
}

const Typed = ({ word, onText }: { word: string; onText: (v: string) => void }) =>
  <label class="field wide"><span>Type <b>{word}</b> to confirm</span><input type="text" autocomplete="off" spellcheck={false} onInput={(e) => onText(e.currentTarget.value)} /></label>;

/** Numbers over time, the newest at the right. */
export function Spark({ of, label }: { of: number[]; label: string }) {
  if (of.length < 2) return null;
  const most = Math.max(1, ...of);
  return <svg class="spark" viewBox={`0 0 ${of.length - 1} 20`} preserveAspectRatio="none" role="img" aria-label={label}>
    <path d={of.map((v, i) => `${i ? "L" : "M"}${i} ${19 - v / most * 18}`).join("")} vector-effect="non-scaling-stroke" />
  </svg>;
}
