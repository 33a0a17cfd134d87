// Config: what runs, what it sends where, and why an event went where it went.
import { useState } from "preact/hooks";
import { type Configuration, type Explanation, type Hold, post, type Problem, type Status, useAsked } from "./api";
import { FieldList } from "./object";
import { Empty, Failed, Field, Reading, Time, Verb } from "./parts";
import { change, link, place } from "./place";
import { ago, bytes, count, fields, free, some, yaml } from "./text";

export function Config({ status, reload }: { status?: Status; reload: () => void }) {
  const [failed, fail] = useState<Problem>(), [same, say] = useState(false);
  if (!status) return <Reading />;
  const { config, store } = status, routes = status.routes ?? [];
  const later = config.needsRestart?.length ? ", but for the keys above" : "";
  const again = async () => {
    fail(undefined);
    say(false);
    try {
      const c = await post<Status["config"]>("reload");
      say(!c.lastError);
    } catch (e) { fail(e as Problem); }
    reload();
  };
  return <div class="page">
    <h1>Config</h1>
    <Failed error={failed} />
    {config.lastError && <div class="notice bad" role="alert"><b>The file is not what runs.</b> The configuration of {ago(config.lastSuccess)} still does.<pre>{config.lastError}</pre></div>}
    {config.needsRestart?.length ? <p class="notice gap">These keys take effect at a restart: {config.needsRestart.join(", ")}</p> : null}
    {config.warnings?.map((w) => <p class="notice gap">{w}</p>)}
    <dl class="facts-list">
      <dt>File</dt><dd><code>{config.file}</code> <button onClick={again}>reload</button> <span role="status" class="quiet">{!config.lastError && same && "the file is what runs" + later}</span></dd>
      <dt>Runs</dt><dd>{config.lastError ? "an earlier configuration" : "as the file has it"}{!config.lastError && later}, <code>{config.hash}</code>, as of {config.lastSuccess ? <Time at={config.lastSuccess} exact={false} /> : "never"}</dd>
      <dt>Daemon</dt><dd>{status.version}, up {ago(status.started).replace(" ago", "")}</dd>
      <dt>Store</dt><dd>{store.opening ? "not open" : <>{bytes(store.bytes)}{store.maxBytes ? ` of ${bytes(store.maxBytes)}` : ""}, {some(store.loggedEvents, "event")} in the log{free(store.diskFree)}</>}</dd>
      {store.journal && <><dt>Replica</dt><dd><code>{store.journal.replica}</code> {store.journal.role === "leader" ? "leads" : `follows ${store.journal.leader || "no leader yet"}`}, term {store.journal.term} of the journal <code>{store.journal.stream}</code></dd></>}
    </dl>
    {!store.opening && <h2>Routes</h2>}
    {!store.opening && !routes.length && <Empty>No route is configured: changes are recorded and not delivered.</Empty>}
    {routes.length > 0 && <div class="scroll"><table class="grid">
      <thead><tr><th>Watches</th><th>Route</th><th>Sinks</th><th class="n">Matched</th><th class="n">Filtered</th><th class="n">Unchanged</th><th class="n">Not sampled</th><th class="n">Errors</th></tr></thead>
      <tbody>{routes.map((r) => <>
        <tr key={r.name}><td data-label="Watches">{r.watches?.join(", ") || <span class="quiet">all</span>}</td><th scope="row" data-label="Route" class="arrow">{r.name}</th><td data-label="Sinks" class="arrow">{r.sinks.map((s, i) => <>{i > 0 && ", "}<a href={link("delivery", [s])}>{s}</a></>)}</td>
          <td data-label="Matched" class="n">{count(r.matched)}</td><td data-label="Filtered" class="n">{count(r.filtered)}</td><td data-label="Unchanged" class="n">{count(r.unchanged)}</td><td data-label="Not sampled" class="n">{count(r.unsampled)}</td><td data-label="Errors" class="n">{count(r.errors)}</td></tr>
        {r.firstError && <tr class="why"><td colSpan={8}>{r.firstError}</td></tr>}
      </>)}</tbody></table></div>}
    <Explain hash={config.hash} />
    <Texts key={config.hash + config.lastAttempt} later={later} />
  </div>;
}

/** The configuration that runs, and what the file has otherwise. */
function Texts({ later }: { later: string }) {
  const answer = useAsked<Configuration>("config", {}, 5000), c = answer.value, most = 200;
  const others = c && !c.equal && c.running !== undefined && c.file !== undefined ? fields(c.running, c.file) : [];
  return <section aria-label="Configuration"><h2>Configuration</h2>
    <Failed error={answer.error} />
    {c && <>
      {c.problems.length > 0 && <div class="scroll"><table class="grid"><thead><tr><th>Line</th><th>Key</th><th>Problem of the file</th></tr></thead><tbody>
        {c.problems.map((p) => <tr><td data-label="Line" class="n">{p.line ? `${p.line}:${p.column ?? 1}` : "–"}</td><th scope="row" data-label="Key">{p.key || <span class="quiet">the file</span>}</th><td data-label="Problem">{p.message}</td></tr>)}
      </tbody></table></div>}
      {c.file === undefined ? <p class="notice bad">The file cannot be read, or is not YAML.</p> : c.equal ? <p class="quiet">The file has what runs{later}.</p>
        : c.running !== undefined && <><p class="notice gap">{others.length ? "The file has other values than what runs:" : "The file is not what runs, but no value that is shown differs."}</p><FieldList of={others.slice(0, most)} names={["what runs", "the file"]} />{others.length > most && <p class="quiet">and {some(others.length - most, "more value")}</p>}</>}
      {c.running !== undefined && <pre class="scroll" tabIndex={0} aria-label="What runs">{yaml(c.running)}</pre>}
      <p class="quiet">Comments are left out, and *** is in place of what may be a secret.</p>
    </>}
  </section>;
}

const verdicts: Record<string, string> = {
  covered: "covers it", resources: "is for other resources", namespaces: "is for other namespaces", selector: "its selectors do not match", snapshot: "has no sync events",
  watch: "the gap is of another watch", taken: "takes it", watches: "is for other watches", events: "is for other types of events", changed: "no value of its `changed` differs",
  when: "its expression is false", missing: "its expression reads what is not there", error: "its expression fails", sample: "it is outside of the sample", for: "is for what lasts",
};

function Explain({ hash }: { hash: string }) {
  const event = place.value.query.get("event") ?? "";
  return <section aria-label="Explain"><h2>Why an event went where it went</h2>
    <div class="filter"><Field id="filter" label="event" wide value={event} onValue={(v) => change({ event: v })} /></div>
    {!event && <p class="quiet">The sequence or the id of an event. The versions of an object and dead letters link to it.</p>}
    {event && <Verdicts key={hash} event={event} />}
  </section>;
}

const taken = (r: Explanation["recorded"][number]) => r.sink + (r.routes.length ? ` (by ${r.routes.join(", ")})` : "") + (r.throttle ? `, unless a later event within ${r.throttle} replaced it by throttle` : "");

const Held = ({ of: { sink, since, due } }: { of: Hold }) => sink
  ? <>, held for {sink} by throttle until {due && <Time at={due} exact={false} />}</>
  : <>, matching since <Time at={since} exact={false} />{due ? <>, due at <Time at={due} exact={false} /></> : ", which was reported"}</>;

/** Where an event went, and where the configuration that runs sends it. */
function Verdicts({ event }: { event: string }) {
  const answer = useAsked<Explanation>(`events/${encodeURIComponent(event)}/explain`, {}, 5000), e = answer.current ? answer.value : undefined;
  return <>
    <Failed error={answer.error} />
    {e && <>
      <p><Verb type={e.type} /> <Time at={e.time} /> <b>{e.subject}</b> <span class="quiet">{e.id}</span></p>
      {e.note && <p class="notice gap">{e.note}</p>}
      <p>When it was recorded: {e.recorded.length ? e.recorded.map(taken).join("; ") : "no sink took it"}.</p>
      <div class="scroll"><table class="grid"><thead><tr><th>With the configuration of now</th><th>Verdict</th><th>Sinks</th></tr></thead><tbody>
        {e.watches.map((w) => <tr><th scope="row" data-label="Watch"><span class="quiet">watch</span> {w.watch}</th><td data-label="Verdict">{verdicts[w.verdict] ?? w.verdict}{w.selection && `, ${w.selection}`}</td><td /></tr>)}
        {e.routes.map((r) => <tr><th scope="row" data-label="Route"><span class="quiet">route</span> {r.route}</th><td data-label="Verdict">{verdicts[r.verdict] ?? r.verdict}{r.error && `: ${r.error}`}{e.holds.filter((h) => h.route === r.route).map((h) => <Held of={h} />)}</td><td data-label="Sinks">{r.verdict === "taken" ? r.sinks.join(", ") : <span class="quiet">–</span>}</td></tr>)}
      </tbody></table></div></>}
  </>;
}
