package main

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/status"
)

func newSinksCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:   "sinks",
		Short: "Pause or resume a sink, skip an event, or purge a removed sink",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  helpOnly,
	}
	flags.bind(cmd)
	cmd.AddCommand(
		newSinkActCommand(&flags, "pause", "Pause deliveries to a sink",
			"Pause ends deliveries to a sink until it is resumed, also over restarts and reloads. Writes in flight finish, and\n"+
				"the backlog is kept. Other sinks are not affected.", "sink %s is paused\n"),
		newSinkActCommand(&flags, "resume", "Resume a sink that is paused, and try one that is backing off now",
			"Resume ends a pause and makes the next attempt at once, for instance after the receiver is fixed.", "sink %s is tried now\n"),
		newSinkSkipCommand(&flags),
		newSinkActCommand(&flags, "purge", "Delete the backlog and dead letters of a removed sink",
			"Purge deletes the backlog and the dead letters that are kept for a sink which was removed from the configuration.\n"+
				"A sink that is configured cannot be purged.", "sink %s is purged\n"),
	)
	return cmd
}

func newSinkActCommand(flags *adminFlags, verb, short, long, done string) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " SINK",
		Short:   short,
		Long:    long,
		Example: "  watcherd sinks " + verb + " ops",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.post(cmd.Context(), sinkPath(args[0], verb), struct{}{}, &struct{}{}); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), done, args[0])
			return err
		},
	}
}

func newSinkSkipCommand(flags *adminFlags) *cobra.Command {
	var r admin.SkipRequest
	cmd := &cobra.Command{
		Use:   "skip SINK",
		Short: "Move the event that blocks a sink to its dead letters",
		Long: "Skip moves one event to the sink's dead letters, with the reason \"skipped\": the event that has been failing for the\n" +
			"longest time, or the one with the given sequence. The events behind it are tried at once.",
		Example: "  watcherd sinks skip ops\n  watcherd sinks skip ops --sequence 4711",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var s admin.Skipped
			if err := flags.post(cmd.Context(), sinkPath(args[0], "skip"), r, &s); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "event %d skipped, now dead letter %d of sink %s: %s %s: %s\n",
				s.Sequence, s.Position, args[0], clean(s.Type), clean(s.Subject), clean(s.Reason))
			return err
		},
	}
	cmd.Flags().Uint64Var(&r.Sequence, "sequence", 0, "sequence of the event; 0: the one that blocks the sink")
	return cmd
}

func sinkPath(sink, verb string) string {
	return "/api/v1/sinks/" + url.PathEscape(sink) + "/" + verb
}

func newReloadCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:     "reload",
		Short:   "Reload the configuration now",
		Long:    "Reload reloads the configuration file now instead of waiting for a change, and prints the outcome.",
		Example: "  watcherd reload",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var c status.Config
			if err := flags.post(cmd.Context(), "/api/v1/reload", struct{}{}, &c); err != nil {
				return err
			}
			if c.LastError != "" {
				return errors.New("reload failed; the previous configuration is still active: " + c.LastError)
			}
			for _, key := range c.NeedsRestart {
				fmt.Fprintf(cmd.ErrOrStderr(), "watcherd: the change of %s takes effect at a restart\n", key)
			}
			for _, warning := range c.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "watcherd: this looks like a mistake: %s\n", warning)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s runs, hash %s\n", c.File, short(c.Hash))
			return err
		},
	}
	flags.bind(cmd)
	return cmd
}
