// The page: where the reader is, what holds everywhere, and the keys.
import { signal, useSignal } from "@preact/signals";
import { Component, type ComponentChildren, options, render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { allowed, connection, getStatus, locked, recording, type Status, unlock, useAsked } from "./api";
import { Between } from "./between";
import { Config } from "./config";
import { Delivery } from "./delivery";
import { Feed } from "./feed";
import { ObjectView } from "./object";
import { link, type Place, place } from "./place";
import { count, free, some, visible } from "./text";
import { Watches } from "./watches";

const all = [["feed", "Feed"], ["between", "Between"], ["delivery", "Delivery"], ["watches", "Watches"], ["config", "Config"]] as const;
const views = recording ? [] : all;
const help = signal(false);

/** Closes the help. A focus in it would be lost. */
function close() {
  if (document.activeElement?.closest(".help")) document.getElementById("keys")?.focus();
  help.value = false;
}

const ofViews: [string, string][] = [["/", "to the filter"], ["j  k", "next and previous row"], ["Enter", "open the row"], ["p", "pause and resume the feed"], ["g f, g b, g d, g w, g c", "Feed, Between, Delivery, Watches, Config"]];
const keys: [string, string][] = [...recording ? [] : ofViews, ["[  ]", "older and newer version of an object"], ["?", "this help"], ["Esc", "leave a field, close this"]];

/** A key of the current view: the name of the event that it listens for is "key:" and the key. */
let going = false;
addEventListener("keydown", (e) => {
  const field = (e.target as HTMLElement).closest?.("input, textarea, select");
  if (e.key === "Escape") {
    (field as HTMLElement | null)?.blur();
    close();
    return;
  }
  if (field || e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
  const target = going && views.find(([view]) => view[0] === e.key);
  going = e.key === "g" && !going;
  if (target) location.hash = link(target[0]);
  else if (e.key === "?") help.value = !help.value;
  else if (e.key === "/") document.getElementById("filter")?.focus();
  else if (!dispatchEvent(new CustomEvent("key", { detail: e.key, cancelable: true }))) { /* a view took it */ } else return;
  e.preventDefault();
});

// named is the cluster and, where several processes share it, the feed.
const named = (s: Status) => s.feed ? `${s.cluster} · ${s.feed}` : s.cluster;

// opening is why nothing is known of what is recorded: a replica that follows does not open its store.
const opening = ({ store: { journal } }: Status) => journal?.role === "follower" ? `This replica follows ${journal.leader || "no leader yet"}: the one that leads shows what is recorded.`
  : "The store is being opened and checked: what it has shows after that.";

function Top({ status }: { status?: Status }) {
  const { view } = place.value;
  const theme = useSignal(allowed(() => localStorage.getItem("watcherd.theme")) ?? "");
  useEffect(() => {
    document.documentElement.style.colorScheme = theme.value || "light dark";
    allowed(() => localStorage.setItem("watcherd.theme", theme.value));
  }, [theme.value]);
  const next: Record<string, string> = { "": "dark", dark: "light", light: "" };
  return <header class="top">
    <a class="mark" href={link(recording ? "between" : "feed")}>watcherd</a>
    {recording ? <span class="cluster">{recording.cluster}</span> : status && <span class="cluster" title={status.apiServer}>{named(status)}</span>}
    <nav aria-label="Views">{views.map(([name, title]) => <a href={link(name)} aria-current={name === view || name === "feed" && view === "object" ? "page" : undefined}>{title}</a>)}</nav>
    <span class="state">
      {connection.value && <span class={"dot " + connection.value}>{connection.value === "live" ? "live" : "reconnecting"}</span>}
      {status?.store.paused && <span class="dot bad" title={status.store.reason}>store paused</span>}
      {status && !status.store.opening && <span class="quiet" title={`${count(status.store.loggedEvents)} events in the log${free(status.store.diskFree)}`}>{some(status.store.loggedEvents, "event")}</span>}
      <button class="plain" title="Colours: of the system, dark, light" aria-label={`Colours: ${theme.value || "of the system"}`} onClick={() => { theme.value = next[theme.value] ?? ""; }}>◐</button>
      <button id="keys" class="plain" title="Keys (?)" aria-label="Keys" onClick={() => { help.value = true; }}>?</button>
    </span>
  </header>;
}

function Locked() {
  return <main class="locked"><form onSubmit={(e) => { e.preventDefault(); unlock((e.currentTarget.elements.namedItem("token") as HTMLInputElement).value.trim()); }}>
    <h1>A token, please</h1>
    <p>{locked.value}</p>
    <label class="field wide"><span>Token</span><input name="token" type="password" autocomplete="off" /></label>
    <p class="actions"><button class="primary" type="submit">Continue</button></p>
    <p class="quiet"><code>watcherd ui</code> opens this page with the token of your configuration. It stays in this tab.</p>
  </form></main>;
}

/** A view that fails shows that, until the reader goes to another place. */
class Guarded extends Component<{ children: ComponentChildren }, { error?: Error; at?: Place }> {
  static override getDerivedStateFromError = (error: Error) => ({ error, at: place.peek() });
  render() {
    const { error, at } = this.state;
    return error && at === place.value ? <p class="notice bad" role="alert">This cannot be shown: {error.message}</p> : this.props.children;
  }
}

function App() {
  const { path } = place.value, view = recording && place.value.view !== "object" ? "between" : place.value.view;
  const status = useAsked<Status>(recording ? "" : "status", {}, 2000, getStatus);
  const s = status.value, source = useRef({ name: "", n: 0 });
  if (s && source.current.name !== named(s)) source.current = { name: named(s), n: source.current.n + (source.current.name ? 1 : 0) };
  const known = s?.store.opening ? undefined : s;
  useEffect(() => { document.title = visible([view === "object" ? path[2] : all.find(([v]) => v === view)?.[1], s ? named(s) : recording?.cluster, "watcherd"].filter(Boolean).join(" · ")); });
  if (locked.value) return <><Top /><Locked /></>;
  const body: Partial<Record<string, () => preact.JSX.Element>> = Object.assign(Object.create(null), {
    feed: () => <Feed status={known} />, object: () => <ObjectView key={path.join("/")} status={known} />, between: () => <Between status={known} />,
    delivery: () => <Delivery status={known} reload={status.reload} />, watches: () => <Watches status={known} />, config: () => <Config status={s} reload={status.reload} />,
  });
  return <>
    <Top status={s} />
    {status.error && <p class="notice bad" role="alert">{status.error.message}; this page asks again every two seconds.</p>}
    {s?.store.opening && <p class="notice gap" role="status">{opening(s)}</p>}
    {s && (s.store.failed || s.store.paused) && <p class="notice bad" role="alert">New changes are not recorded at the moment: {s.store.failed || s.store.reason}</p>}
    <main key={view + source.current.n /* what is shown is of one source: another daemon may have come to the address */}><Guarded>{(body[view] ?? (() => <p class="empty">There is no view {view}. <a href={link("feed")}>To the feed</a></p>))()}</Guarded></main>
    {help.value && <aside class="help" aria-label="Keys"><h2>Keys <button class="plain" aria-label="Close" onClick={close}>×</button></h2>
      <dl>{keys.map(([k, what]) => <><dt><kbd>{k}</kbd></dt><dd>{what}</dd></>)}</dl></aside>}
  </>;
}

// Every text that is shown becomes a node by itself: most have something that others chose.
const made = options.vnode;
options.vnode = (node) => {
  const text = node as { props: unknown }, named = node.props as Record<string, unknown>;
  if (typeof text.props === "string") text.props = visible(text.props);
  else for (const name of ["title", "aria-label"]) if (typeof named[name] === "string") named[name] = visible(named[name]);
  made?.(node);
};

render(<App />, document.body);
