package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

func newStatusCommand() *cobra.Command {
	var (
		flags  adminFlags
		output string
		watch  bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of watches, routes and sinks",
		Long: "Status shows the watches, routes and sinks of a running daemon, with their lag and their errors. CACHED are the objects\n" +
			"that are read of the resource; a watch's selectors choose among them.",
		Example: "  watcherd status\n  watcherd status -w\n  watcherd status -o json | jq '.sinks[] | {name, state, queued}'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			show := func(w io.Writer) error {
				var st status.Status
				if err := flags.get(cmd.Context(), "/api/v1/status", nil, &st); err != nil {
					return err
				}
				if output != "table" {
					return printStructured(w, output, &st)
				}
				return printStatus(w, &st, time.Now())
			}
			if watch {
				return repeat(cmd, show)
			}
			return show(cmd.OutOrStdout())
		},
	}
	flags.bind(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every 2 seconds")
	addOutputFlag(cmd, &output, "table, json or yaml", "table", "json", "yaml")
	return cmd
}

const repeatEvery = 2 * time.Second

// repeat shows something until the command is interrupted: in place on a terminal, otherwise
// one below the other. Only the first time an error ends it.
func repeat(cmd *cobra.Command, show func(io.Writer) error) error {
	tick := time.NewTicker(repeatEvery)
	defer tick.Stop()
	before := "" // the next screen
	for first := true; ; first = false {
		var b bytes.Buffer
		switch err := show(&b); {
		case cmd.Context().Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintf(&b, "watcherd: %s\n", clean(err.Error()))
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s%s", before, b.Bytes()); err != nil {
			return err
		}
		before = "\n"
		if pretty.IsTerminal(cmd.OutOrStdout()) {
			before = "\x1b[H\x1b[2J"
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// statusPrinter writes the parts of a status; the first error stays.
type statusPrinter struct {
	w   io.Writer
	now time.Time
	err error
}

func printStatus(w io.Writer, st *status.Status, now time.Time) error {
	p := &statusPrinter{w: w, now: now}
	p.summary(st)
	p.watches(st.Watches)
	p.routes(st.Routes)
	p.sinks(st.Sinks)
	p.printf("\nCounts, and LAST SUCCESS, are since start, %s; those of a route or sink that a reload changed, since then.\n", ago(st.Started, now))
	p.problems(st)
	return p.err
}

func (p *statusPrinter) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *statusPrinter) table(rows func(*table), header ...string) {
	p.printf("\n")
	if p.err != nil {
		return
	}
	t := newTable(p.w, header...)
	rows(t)
	p.err = t.flush()
}

func (p *statusPrinter) summary(st *status.Status) {
	state := map[status.Verdict]string{
		status.OK: "healthy", status.Degraded: "degraded", status.Failed: "not ready",
	}[status.Worst(st.Checks(p.now))]
	cluster := clean(st.Cluster)
	if st.Feed != "" {
		cluster += "   feed " + clean(st.Feed)
	}
	p.printf("watcherd %s   cluster %s   up %s   %s\n", clean(st.Version), cluster, age(st.Started, p.now), state)
	p.printf("config   %s   loaded %s   hash %s\n", clean(st.Config.File), ago(st.Config.LastSuccess, p.now), short(st.Config.Hash))
	p.store(&st.Store)
	if st.Store.Journal != nil {
		p.replica(st.Store.Journal)
	}
	if st.Scrub != nil {
		p.scrub(st.Scrub)
	}
}

func (p *statusPrinter) store(s *status.Store) {
	if s.Opening { // nothing is known of what is in it
		state := "is being opened"
		if s.Journal != nil && s.Journal.Role == status.Follower {
			state = "a copy of the leader's"
		}
		p.printf("store    %s   %s\n", clean(s.Path), state)
		return
	}
	p.printf("store    %s   %s", clean(s.Path), size(s.Bytes))
	if s.MaxBytes > 0 {
		p.printf(" of %s", size(s.MaxBytes))
	}
	if s.DiskFree >= 0 {
		p.printf(", %s free", size(s.DiskFree))
	}
	p.printf("   %s in the log", plural(int(s.LoggedEvents), "event"))
	if s.LoggedEvents > 0 {
		p.printf(" (%d to %d)", s.FirstEvent, s.LastEvent)
	}
	p.printf("   last commit %s\n", ago(s.LastCommit, p.now))
}

// replica is one of several of the store: what it does, and how far it is.
func (p *statusPrinter) replica(j *status.Journal) {
	does, lag := "leads", "last append"
	if j.Role == status.Follower {
		does, lag = "follows "+cmp.Or(clean(j.Leader), "no leader yet"), "had all of it"
	}
	when := "never"
	if j.Lag >= 0 {
		when = ago(p.now.Add(-j.Lag), p.now)
	}
	p.printf("replica  %s %s   journal %s, term %d, entry %d   %s %s\n",
		cmp.Or(clean(j.Replica), "?"), does, clean(j.Stream), j.Term, j.Last, lag, when)
}

func (p *statusPrinter) scrub(s *status.Scrub) {
	state := "done " + ago(s.Done, p.now)
	if s.Done.IsZero() {
		state = "runs for " + age(s.Began, p.now) + ", at " + clean(s.Stage)
	}
	p.printf("scrub    %s   %s   %d rewritten", clean(strings.Join(s.Resources, ", ")), state, s.Rewritten)
	if s.Failed > 0 {
		p.printf(", %d failed", s.Failed)
	}
	p.printf("\n")
}

func (p *statusPrinter) watches(watches []status.Watch) {
	p.table(func(t *table) {
		for _, w := range watches {
			for _, s := range w.Sources {
				state := string(s.State)
				if s.State == "watching" && !s.Synced {
					state = "syncing"
				}
				namespace := cmp.Or(s.Namespace, "*")
				t.row(w.Name, s.Resource, namespace, state, strconv.Itoa(s.Objects), ago(s.LastContact, p.now),
					strconv.FormatUint(s.Relists, 10), strconv.FormatUint(s.Restarts, 10))
			}
			for _, m := range w.Missing {
				t.row(w.Name, m.Resource, "*", "waiting", "0", "never", "0", "0")
			}
		}
	}, "WATCH", "RESOURCE", "NAMESPACE", "STATE", "CACHED", "LAST CONTACT", "RELISTS", "RESTARTS")
	for _, w := range watches {
		for _, text := range w.Warnings {
			p.printf("warning: watch %s: %s\n", w.Name, clean(text))
		}
	}
}

func (p *statusPrinter) routes(routes []status.Route) {
	if len(routes) == 0 {
		return
	}
	p.table(func(t *table) {
		for _, r := range routes {
			from := cmp.Or(strings.Join(r.Watches, ","), "*")
			t.row(r.Name, from, strings.Join(r.Sinks, ","), number(r.Matched), number(r.Filtered+r.Unchanged+r.Unsampled), number(r.Errors))
		}
	}, "ROUTE", "WATCHES", "SINKS", "MATCHED", "PASSED OVER", "ERRORS")
	for i := range routes {
		r := &routes[i]
		for _, u := range r.Unseen {
			p.printf("warning: route %s: %s: none of %s changes had it: %s\n", r.Name, u.Key, number(u.Changes), clean(u.Field))
		}
		if len(r.Unseen) == 0 && r.Missing > 0 && r.Missing == r.Filtered && r.Matched == 0 {
			p.printf("warning: route %s: every change lacked a field that when reads\n", r.Name)
		}
		if len(r.EmptyLabels) > 0 {
			p.printf("warning: route %s: empty on every event: labels of metric %s\n", r.Name, strings.Join(r.EmptyLabels, ", "))
		}
	}
}

func (p *statusPrinter) sinks(sinks []status.Sink) {
	if len(sinks) == 0 {
		return
	}
	p.table(func(t *table) {
		for _, s := range sinks {
			state := s.State
			if !s.Configured {
				state = "removed"
			}
			success := "none yet"
			if !s.LastSuccess.IsZero() {
				success = ago(s.LastSuccess, p.now)
			}
			t.row(s.Name, s.Kind, state, strconv.FormatInt(s.Queued, 10), size(s.QueuedBytes), size(s.HeldBytes), age(s.Oldest, p.now),
				number(s.Delivered), strconv.FormatInt(s.DeadLetters, 10), success)
		}
	}, "SINK", "KIND", "STATE", "QUEUED", "BYTES", "LOG HELD", "LAG", "DELIVERED", "DEAD", "LAST SUCCESS")
}

// problems lists faults and likely mistakes. What fails for one reason, as all watches do in an outage of the API server,
// is one line.
func (p *statusPrinter) problems(st *status.Status) {
	type fault struct {
		verdict status.Verdict
		reason  string
	}
	var faults []fault
	parts := map[fault][]string{}
	for _, c := range st.Checks(p.now) {
		if c.Verdict == status.OK {
			continue
		}
		f := fault{c.Verdict, c.Reason}
		if len(parts[f]) == 0 {
			faults = append(faults, f)
		}
		parts[f] = append(parts[f], c.Name)
	}
	var lines []string
	for _, f := range faults {
		lines = append(lines, fmt.Sprintf("%s  %s: %s", map[status.Verdict]string{status.Degraded: "!", status.Failed: "x"}[f.verdict], strings.Join(firstNamed(parts[f]), ", "), f.reason))
	}
	for _, warning := range st.Config.Warnings {
		lines = append(lines, "?  config: "+warning)
	}
	if len(lines) > 0 {
		p.printf("\n")
	}
	for _, line := range lines {
		p.printf("%s\n", clean(line))
	}
}

func number(n uint64) string   { return strconv.FormatUint(n, 10) }
func short(hash string) string { return hash[:min(len(hash), 12)] }
