package main

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
)

func newDeadLettersCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:     "deadletters",
		Aliases: []string{"deadletter", "dl"},
		Short:   "List, retry or drop the dead letters of a sink",
		Args:    usageArgs(cobra.NoArgs),
		RunE:    helpOnly,
	}
	flags.bind(cmd)
	cmd.AddCommand(
		newLettersListCommand(&flags),
		newLettersActCommand(&flags, "retry", "Deliver dead letters again",
			"Retry puts dead letters at the end of the sink's queue: those at the given positions, or all.", "requeued for"),
		newLettersActCommand(&flags, "drop", "Delete dead letters",
			"Drop deletes dead letters for good: those at the given positions, or all.", "dropped from"),
	)
	return cmd
}

// helpOnly is for commands that only group others.
func helpOnly(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func newLettersListCommand(flags *adminFlags) *cobra.Command {
	var sink, output string
	cmd := &cobra.Command{
		Use:     "list --sink SINK",
		Short:   "List dead letters",
		Example: "  watcherd deadletters list --sink ops\n  watcherd deadletters list --sink ops -o json | jq '.items[].reason'",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "table", "json", "yaml"); err != nil {
				return err
			}
			client, err := flags.client()
			if err != nil {
				return err
			}
			all := admin.DeadLetterList{Items: []admin.DeadLetter{}}
			for query := (url.Values{"limit": {"1000"}}); ; {
				var page admin.DeadLetterList
				if err := client.Get(cmd.Context(), "/api/v1/deadletters/"+url.PathEscape(sink), query, &page); err != nil {
					return err
				}
				all.Items = append(all.Items, page.Items...)
				if page.Continue == 0 {
					break
				}
				query.Set("after", strconv.FormatUint(page.Continue, 10))
			}
			if output != "table" {
				return printStructured(cmd.OutOrStdout(), output, all)
			}
			if len(all.Items) == 0 {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "Sink %s has no dead letters.\n", sink)
				return err
			}
			t := newTable(cmd.OutOrStdout(), "POSITION", "TYPE", "SUBJECT", "ATTEMPTS", "LAST TRY", "REASON")
			for _, l := range all.Items {
				t.row(number(l.Position), l.Type, l.Subject, strconv.Itoa(l.Attempts), ago(l.Last, time.Now()), l.Reason)
			}
			return t.flush()
		},
	}
	flags.addSinkFlag(cmd, cmd.Flags(), &sink)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml")
	return cmd
}

func newLettersActCommand(flags *adminFlags, verb, short, long, done string) *cobra.Command {
	var sink string
	cmd := &cobra.Command{
		Use:     verb + " --sink SINK [POSITION...]",
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  watcherd deadletters %s --sink ops\n  watcherd deadletters %s --sink ops 4711 4715", verb, verb),
		Args:    usageArgs(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := admin.LettersRequest{All: len(args) == 0}
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
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s sink %s\n", plural(out.Count, "dead letter"), done, sink)
			return err
		},
	}
	flags.addSinkFlag(cmd, cmd.Flags(), &sink)
	return cmd
}
