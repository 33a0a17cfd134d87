// Watches: what is seen, since when, and what is waited for.
import { useState } from "preact/hooks";
import type { Source, Status, Watch } from "./api";
import { Empty, Reading, Verb } from "./parts";
import { link } from "./place";
import { ago, bytes, count, some } from "./text";

/** The rule that a forbidden source asks for. */
function Rule({ of }: { of: Source }) {
  const [resource = "", ...rest] = of.resource.split("."), group = rest.slice(1).join(".");
  return <pre class="scroll" tabIndex={0} aria-label="The rule to add">{`# ${of.namespace ? `Role in namespace ${of.namespace}` : "ClusterRole"}; watcherd rbac prints all of them\n- apiGroups: ["${group}"]\n  resources: [${resource}]\n  verbs: [list, watch]`}</pre>;
}

const fine = (s: Source) => s.state === "watching" && s.synced && !s.pausedSince;

/** So many sources in their watches: first what is not fine. */
function first(watches: Watch[], most: number): Watch[] {
  const waits = (w: Watch) => !!w.missing?.length || !!w.warnings?.length, bad = (w: Watch) => waits(w) || !(w.sources ?? []).every(fine);
  return watches.toSorted((a, b) => +bad(b) - +bad(a)).map((w) => {
    const sources = (w.sources ?? []).toSorted((a, b) => +fine(a) - +fine(b)).slice(0, most);
    most -= sources.length;
    return { ...w, sources };
  }).filter((w) => w.sources.length || waits(w));
}

export function Watches({ status }: { status?: Status }) {
  const [most, set] = useState(500);
  if (!status) return <Reading />;
  const all = status.watches ?? [], caches = status.caches ?? [], more = all.reduce((n, w) => n + (w.sources ?? []).length, 0) - most;
  const watches = more > 0 ? first(all, most) : all;
  return <div class="page">
    <h1>Watches</h1>
    {status.discoveryError && <p class="notice bad">{status.undiscovered ? "No watch can start" : "The served resources may have changed"}: {status.discoveryError}</p>}
    <p class="facts"><span><b>{some(caches.reduce((n, c) => n + c.objects, 0), "object")}</b></span><span><b>{bytes(caches.reduce((n, c) => n + c.bytes, 0))}</b> in memory</span><span><b>{some(caches.length, "resource")}</b></span><span class="quiet">of {status.apiServer}</span></p>
    {!watches.length && <Empty>No watch is configured.</Empty>}
    {watches.map((w) => <section key={w.name} aria-label={w.name}>
      <h2>{w.name}</h2>
      {w.warnings?.map((t) => <p class="notice gap">{t}</p>)}
      <div class="scroll"><table class="grid even">
        <thead><tr><th>Resource</th><th>State</th><th class="n">Objects</th><th class="n">Memory</th><th class="n">Events</th><th class="n">Last contact</th><th class="n">Relists</th><th class="n">Expired</th></tr></thead>
        <tbody>
          {(w.sources ?? []).map((s) => {
            const ok = fine(s);
            return <>
              <tr key={s.resource + s.namespace}>
                <th scope="row" data-label="Resource"><a href={link("feed", [], { resource: s.resource, namespace: s.namespace })}>{s.resource}</a> {s.namespace && <span class="quiet">in {s.namespace}</span>}</th>
                <td data-label="State"><span class={"dot " + (ok ? "live" : s.state === "forbidden" ? "bad" : "waiting")}>{s.state}{s.synced ? "" : ", first list"}{s.pausedSince ? ", paused" : ""}</span></td>
                <td data-label="Objects" class="n">{count(s.objects)}</td><td data-label="Memory" class="n">{bytes(s.bytes)}</td><td data-label="Events" class="n">{count(s.events)}</td>
                <td data-label="Last contact" class="n">{ago(s.lastContact)}</td><td data-label="Relists" class="n">{count(s.relists)}</td>
                <td data-label="Expired" class="n">{s.expired ? <a href={link("feed", [], { resource: s.resource, type: "gap" })}><Verb type="gap" /> {count(s.expired)}</a> : "0"}</td>
              </tr>
              {(s.reason || s.message || s.decodeErrors + s.skipped > 0) && s.state !== "watching" || s.decodeErrors + s.skipped > 0
                ? <tr class="why"><td colSpan={8}>{s.message || s.reason}{s.decodeErrors + s.skipped > 0 && ` ${some(s.decodeErrors, "object")} not readable, ${count(s.skipped)} skipped.`}{s.state === "forbidden" && <Rule of={s} />}</td></tr> : null}
            </>;
          })}
          {w.missing?.map((m) => <><tr><th scope="row" data-label="Resource">{m.resource}</th><td data-label="State" colSpan={7}><span class="dot waiting">waiting</span></td></tr><tr class="why"><td colSpan={8}>{m.reason}. The watch starts by itself as soon as it can.</td></tr></>)}
        </tbody>
      </table></div>
      {(w.sources ?? []).some((s) => s.edits?.some((e) => e.key === "redact" || e.hits === 0)) && <details class="group"><summary>What is dropped and redacted</summary><ul>
        {(w.sources ?? []).flatMap((s) => (s.edits ?? []).map((e) => <li><span class="quiet">{s.resource}</span> {e.key} <code>{e.path}</code>: {some(e.hits, "value")}</li>))}</ul></details>}
    </section>)}
    {more > 0 && <button onClick={() => set(most + 500)}>{some(more, "more resource")}</button>}
  </div>;
}
