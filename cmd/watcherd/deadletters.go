package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/status"
)

func newDeadLettersCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use: "deadletters", Aliases: []string{"deadletter", "dl"}, Short: "List, retry or drop dead letters",
		RunE: helpOnly,
	}
	flags.bind(cmd)
	cmd.AddCommand(
		newLettersListCommand(&flags),
		newLettersActCommand(&flags, "retry", "Deliver dead letters again",
			"Retry puts dead letters at the end of the sink's queue: those at the given positions, those of a filter, or all.", "requeued for"),
		newLettersActCommand(&flags, "drop", "Delete dead letters",
			"Drop deletes dead letters for good: those at the given positions, those of a filter, or with --all every one.", "dropped from"),
	)
	return cmd
}

// letterFlags are the flags of a filter of dead letters.
type letterFlags struct {
	filter       admin.LetterFilter
	since, until string
}

func (f *letterFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.filter.Types, "type", nil, "only of this type: added, updated, deleted, sync or gap")
	flags.StringVar(&f.filter.Resource, "resource", "", "only of this resource, as kubectl names it; *.GROUP for a group")
	flags.StringVarP(&f.filter.Namespace, "namespace", "n", "", "only of this namespace")
	flags.StringVar(&f.filter.Name, "name", "", "only of the object with this name")
	flags.StringVar(&f.filter.Reason, "reason", "", "only with this text in the reason")
	flags.StringVar(&f.since, "since", "", "only with a last attempt since: how long ago (15m, 2h, 3d) or a time (RFC 3339)")
	flags.StringVar(&f.until, "until", "", "only with a last attempt until: how long ago or a time")
}

// given is the filter, nil if there is none.
func (f *letterFlags) given(now func() (time.Time, error)) (*admin.LetterFilter, error) {
	var err error
	if f.filter.From, err = timeFlag("--since", f.since, now); err != nil {
		return nil, err
	}
	if f.filter.To, err = timeFlag("--until", f.until, now); err != nil {
		return nil, err
	}
	if f.empty() {
		return nil, nil //nolint:nilnil // there is none
	}
	return &f.filter, nil
}

// empty reports whether the filter selects everything, once its times are read.
func (f *letterFlags) empty() bool { return reflect.ValueOf(f.filter).IsZero() }

func (f *letterFlags) query(now func() (time.Time, error)) (url.Values, error) {
	if _, err := f.given(now); err != nil {
		return nil, err
	}
	q := url.Values{"limit": {"1000"}}
	setGiven(q, map[string]string{
		"type": strings.Join(f.filter.Types, ","), "resource": f.filter.Resource, "namespace": f.filter.Namespace, "name": f.filter.Name, "reason": f.filter.Reason,
	})
	for key, at := range map[string]time.Time{"from": f.filter.From, "to": f.filter.To} {
		if !at.IsZero() {
			q.Set(key, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return q, nil
}

// helpOnly is for commands that only group others.
func helpOnly(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func newLettersListCommand(flags *adminFlags) *cobra.Command {
	var (
		sink, output string
		filter       letterFlags
		events       bool
	)
	cmd := &cobra.Command{
		Use:   "list [--sink SINK]",
		Short: "List dead letters",
		Example: "  watcherd deadletters list\n  watcherd deadletters list --sink ops\n  watcherd deadletters list --sink ops --reason 'status 413' --since 1h\n" +
			"  watcherd deadletters list --sink ops --events -o json | jq '.items[].event'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			query, err := filter.query(flags.now(cmd.Context()))
			if err != nil {
				return err
			}
			if events {
				query.Set("events", "true")
			}
			names := []string{sink}
			if sink == "" {
				var st status.Status
				if err := client.Get(cmd.Context(), "/api/v1/status", nil, &st); err != nil {
					return err
				}
				names = namesOf(st.Sinks, func(s status.Sink) string { return s.Name })
			}
			all := admin.DeadLetterList{Items: []admin.DeadLetter{}}
			for _, name := range names {
				if err := appendLetters(cmd.Context(), client, &all, name, query); err != nil {
					return err
				}
			}
			if output != "table" {
				return printStructured(cmd.OutOrStdout(), output, all)
			}
			if len(all.Items) == 0 {
				text := "No sink has dead letters"
				switch {
				case !filter.empty():
					text = "No dead letter matches"
				case sink != "":
					text = "Sink " + sink + " has no dead letters"
				}
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s.\n", text)
				return err
			}
			t := newTable(cmd.OutOrStdout(), "SINK", "POSITION", "TYPE", "SUBJECT", "ATTEMPTS", "LAST TRY", "REASON")
			for _, l := range all.Items {
				t.row(l.Sink, number(l.Position), l.Type, l.Subject, strconv.Itoa(l.Attempts), ago(l.Last, time.Now()), l.Reason)
			}
			if err := t.flush(); err != nil || !events {
				return err
			}
			for _, l := range all.Items {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "\n%d  %s\n", l.Position, clean(l.Reason)); err != nil {
					return err
				}
				if err := printStructured(cmd.OutOrStdout(), "yaml", l.Event); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&sink, "sink", "", "only of this sink")
	filter.bind(cmd)
	cmd.Flags().BoolVar(&events, "events", false, "with the events, as the sink would get them now")
	addOutputFlag(cmd, &output, "table, json or yaml", "table", "json", "yaml")
	return cmd
}

// appendLetters appends all dead letters of a sink that a query selects.
func appendLetters(ctx context.Context, c *client.Client, all *admin.DeadLetterList, sink string, query url.Values) error {
	query.Del("after")
	for {
		var page admin.DeadLetterList
		if err := c.Get(ctx, "/api/v1/deadletters/"+url.PathEscape(sink), query, &page); err != nil {
			return err
		}
		all.Items = append(all.Items, page.Items...)
		if page.Continue == 0 {
			return nil
		}
		query.Set("after", strconv.FormatUint(page.Continue, 10))
	}
}

func newLettersActCommand(flags *adminFlags, verb, short, long, done string) *cobra.Command {
	var (
		sink   string
		filter letterFlags
		dryRun bool
		all    bool
	)
	everything := "" // the flag that the verb requires in place of arguments
	if verb == "drop" {
		everything = " --all"
	}
	cmd := &cobra.Command{
		Use:   verb + " --sink SINK [POSITION...]",
		Short: short,
		Long:  long,
		Example: fmt.Sprintf("  watcherd deadletters %s --sink ops%s\n  watcherd deadletters %s --sink ops 4711 4715\n"+
			"  watcherd deadletters %s --sink ops --reason 'status 413' --dry-run", verb, everything, verb, verb),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r := admin.LettersRequest{DryRun: dryRun}
			var err error
			if r.Filter, err = filter.given(flags.now(cmd.Context())); err != nil {
				return err
			}
			if r.Filter != nil && len(args) > 0 {
				return &usageError{errors.New("give positions or a filter")}
			}
			r.All = r.Filter == nil && len(args) == 0
			switch {
			case all && !r.All:
				return &usageError{errors.New("--all excludes positions and a filter")}
			case r.All && !all && !dryRun && everything != "":
				return &usageError{errors.New("give positions, a filter, or --all to drop every dead letter of the sink")}
			}
			for _, a := range args {
				position, err := strconv.ParseUint(a, 10, 64)
				if err != nil {
					return &usageError{fmt.Errorf("%q is not a position; 'watcherd deadletters list' shows them", a)}
				}
				r.Positions = append(r.Positions, position)
			}
			var out admin.Progress
			if err := flags.post(cmd.Context(), "/api/v1/deadletters/"+url.PathEscape(sink)+"/"+verb, r, &out); err != nil {
				return err
			}
			would := ""
			if dryRun {
				would = "would be "
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s%s sink %s\n", plural(out.Count, "dead letter"), would, done, sink)
			return err
		},
	}
	addSinkFlag(cmd.Flags(), &sink)
	filter.bind(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count the dead letters")
	cmd.Flags().BoolVar(&all, "all", false, "every dead letter of the sink")
	return cmd
}
