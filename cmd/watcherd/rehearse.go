package main

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

func newBacktestCommand() *cobra.Command {
	var (
		flags                adminFlags
		since, until, output string
	)
	cmd := &cobra.Command{
		Use:   "backtest --config FILE [--since 24h]",
		Short: "Run the routes of a configuration over the history",
		Long: "Backtest sends the watches, routes and bodies of a configuration to the daemon, which runs them over its history and\n" +
			"compares the result with that of the running configuration: the matches of each route, what each sink would\n" +
			"be given in addition and what it would lose. Nothing is delivered, and nothing changes. --config is also where\n" +
			"the daemon's admin listener is looked up, unless --admin has it.",
		Example: "  watcherd backtest --config new.yaml\n  watcherd backtest --config new.yaml --since 7d -o json | jq '.sinks[] | {sink, added, lost}'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.config == "" {
				return &usageError{errors.New("--config is required: the configuration to run over the history")}
			}
			st, err := watcherd.Load(flags.config, kinds.Builtin())
			if err != nil {
				return err
			}
			now := flags.now(cmd.Context())
			r := admin.BacktestRequest{Proposal: retrace.ProposalOf(st)}
			if r.From, err = timeFlag("--since", since, now); err != nil {
				return err
			}
			if r.To, err = timeFlag("--until", until, now); err != nil {
				return err
			}
			client, err := flags.client()
			if err != nil {
				return err
			}
			p := newProgress(cmd.ErrOrStderr())
			last, err := client.Run(cmd.Context(), "/api/v1/backtest", r, func(n int) { p.show(plural(n, "record")) })
			p.clear()
			if err != nil {
				return err
			}
			if output != "table" {
				return printStructured(cmd.OutOrStdout(), output, last.Backtest)
			}
			return printBacktest(cmd, last.Backtest)
		},
	}
	flags.bind(cmd)
	cmd.Flags().StringVar(&since, "since", "24h", "begin: how long ago (15m, 2h, 3d) or a time (RFC 3339)")
	cmd.Flags().StringVar(&until, "until", "", "end: how long ago or a time (default: now)")
	addOutputFlag(cmd, &output, "table, json or yaml", "table", "json", "yaml")
	return cmd
}

func printBacktest(cmd *cobra.Command, b *retrace.Backtest) error {
	out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if b.Scanned == 0 {
		fmt.Fprintln(notes, "watcherd: the history has no record of the period")
	} else {
		fmt.Fprintf(notes, "watcherd: %s from %s to %s\n", plural(b.Scanned, "record"), stamp(b.From), stamp(b.To))
	}
	if b.Truncated {
		fmt.Fprintln(notes, "watcherd: the limit was reached: what is later was not looked at")
	}
	if b.Overtaken {
		fmt.Fprintln(notes, "watcherd: retention deleted records of this time before they were looked at: what they were is not in the result")
	}
	if b.Gaps > 0 {
		fmt.Fprintf(notes, "watcherd: %s in this time: changes may be missing\n", plural(b.Gaps, "gap"))
	}
	if b.Damaged > 0 {
		fmt.Fprintf(notes, "watcherd: %s of this time cannot be read: what they were is not in the result\n", plural(b.Damaged, "record"))
	}
	t := newTable(out, "ROUTE", "MATCHES", "PER HOUR", "PEAK/MIN", "COALESCED", "WHEN FALSE", "UNCHANGED", "ERRORS")
	for i := range b.Routes {
		r := &b.Routes[i]
		t.row(r.Route, number(r.Matches), strconv.FormatFloat(r.PerHour, 'f', 1, 64), strconv.Itoa(r.PeakMinute), strconv.Itoa(r.Coalesced), number(r.Filtered), number(r.Unchanged), number(r.Errors))
		if r.FirstError != "" {
			fmt.Fprintf(notes, "watcherd: route %s: %s\n", r.Route, clean(r.FirstError))
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	t = newTable(out, "SINK", "MATCHES", "RUNNING", "ADDED", "LOST", "BODY ERRORS")
	for i := range b.Sinks {
		s := &b.Sinks[i]
		t.row(s.Sink, strconv.Itoa(s.Matches), strconv.Itoa(s.Running), strconv.Itoa(s.Added), strconv.Itoa(s.Lost), strconv.Itoa(s.BodyErrors))
		if s.BodyError != "" {
			fmt.Fprintf(notes, "watcherd: body of sink %s: %s\n", s.Sink, clean(s.BodyError))
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	for i := range b.Sinks {
		s := &b.Sinks[i]
		for _, list := range []struct {
			sign    string
			samples []retrace.Sample
		}{{"+", s.Gained}, {"-", s.Missed}} {
			for _, e := range list.samples {
				if _, err := fmt.Fprintf(out, "%s %s  %s %s %s\n", list.sign, s.Sink, stamp(e.Time), e.Type, clean(e.Subject)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func newExplainCommand() *cobra.Command {
	var (
		flags  adminFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "explain EVENT",
		Short: "Show which routes take an event, and why others do not",
		Long: "Explain runs the watches and routes of now over a recorded event, which is named by its sequence or its id. The sinks\n" +
			"that it was recorded for are printed, too.",
		Example: "  watcherd explain 4711\n  watcherd explain 3f9c2a7be1d04c58a1b6e0f2d7c98541 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			var x retrace.Explanation
			if err := client.Get(cmd.Context(), "/api/v1/events/"+url.PathEscape(args[0])+"/explain", nil, &x); err != nil {
				return err
			}
			if output != "table" {
				return printStructured(cmd.OutOrStdout(), output, &x)
			}
			return printExplanation(cmd, &x)
		},
	}
	flags.bind(cmd)
	addOutputFlag(cmd, &output, "table, json or yaml", "table", "json", "yaml")
	return cmd
}

func printExplanation(cmd *cobra.Command, x *retrace.Explanation) error {
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%d  %s %s  %s\n", x.Sequence, x.Type, clean(x.Subject), stamp(x.Time))
	for _, to := range x.Recorded {
		by := ""
		if len(to.Routes) > 0 {
			by = " by " + strings.Join(to.Routes, ", ")
		}
		if to.Throttle != "" {
			by += ", unless a later event within " + to.Throttle + " replaced it by throttle"
		}
		fmt.Fprintf(out, "recorded for sink %s%s\n", to.Sink, by)
	}
	if x.Note != "" {
		_, err := fmt.Fprintln(out, x.Note)
		return err
	}
	t := newTable(out, "WATCH", "COVERS IT", "WHY")
	for _, w := range x.Watches {
		t.row(w.Watch, yesNo(w.Verdict == retrace.Covered), watchWords(w))
	}
	if err := t.flush(); err != nil {
		return err
	}
	t = newTable(out, "ROUTE", "TAKES IT", "SINKS", "WHY")
	for _, r := range x.Routes {
		t.row(r.Route, yesNo(r.Verdict == route.Taken), strings.Join(r.Sinks, ","), strings.Join(reasons(x, &r), ": "))
	}
	return t.flush()
}

// reasons are why a route does not take an event, or what it holds of it.
func reasons(x *retrace.Explanation, r *route.Decision) (list []string) {
	if words := routeWords(r.Verdict); words != "" {
		list = append(list, words)
	}
	if r.Error != "" {
		list = append(list, r.Error)
	}
	for _, h := range x.Holds {
		switch {
		case h.Route != r.Route:
		case h.Sink != "":
			list = append(list, "held for "+h.Sink+" by throttle until "+stamp(h.Due))
		case h.Due.IsZero():
			list = append(list, "matching since "+stamp(h.Since)+", which was reported")
		default:
			list = append(list, "matching since "+stamp(h.Since)+", due at "+stamp(h.Due))
		}
	}
	return list
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func watchWords(w retrace.WatchDecision) string {
	switch w.Verdict {
	case retrace.Covered:
		return string(w.Selection)
	case retrace.OtherResources:
		return "other resources, or another version or selectorSide of this one"
	case retrace.OtherSpaces:
		return "other namespaces"
	case retrace.NotSelected:
		return "its selectors do not match"
	case retrace.NoSnapshot:
		return "snapshot: never"
	default:
		return "the gap is of another watch"
	}
}

func routeWords(v route.Verdict) string {
	switch v {
	case route.Taken:
		return ""
	case route.OtherResources:
		return "other resources"
	case route.OtherWatches:
		return "none of its watches covers it"
	case route.OtherEvents:
		return "other events"
	case route.Unchanged:
		return "no value of changed differs"
	case route.Filtered:
		return "when is false"
	case route.Unsampled:
		return "outside of the sample"
	case route.Lasting:
		return "for: it takes what has matched for some time"
	case route.Missing:
		return "when reads what is not there"
	default:
		return "when fails"
	}
}
