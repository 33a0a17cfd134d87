package main

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/status"
)

func newSinksCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:   "sinks",
		Short: "Resume a sink that waits, or purge one that was removed",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  helpOnly,
	}
	flags.bind(cmd)
	cmd.AddCommand(
		newSinkActCommand(&flags, "resume", "Try a sink that is paused or backing off now",
			"Resume has the next attempt made now, for when what was wrong with the receiver is mended.", "sink %s is tried now\n"),
		newSinkActCommand(&flags, "purge", "Forget a sink that is not configured any more",
			"Purge deletes the backlog and the dead letters that are kept for a sink which was removed from the configuration.\n"+
				"A sink that is configured cannot be purged.", "sink %s is purged\n"),
	)
	return cmd
}

func newSinkActCommand(flags *adminFlags, verb, short, long, done string) *cobra.Command {
	var sink string
	cmd := &cobra.Command{
		Use:     verb + " --sink SINK",
		Short:   short,
		Long:    long,
		Example: "  watcherd sinks " + verb + " --sink ops",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			if err := client.post(cmd.Context(), "/api/v1/sinks/"+url.PathEscape(sink)+"/"+verb, struct{}{}, &struct{}{}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), done, sink)
			return err
		},
	}
	flags.addSinkFlag(cmd, cmd.Flags(), &sink)
	return cmd
}

func newReloadCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:     "reload",
		Short:   "Have the configuration read and applied now",
		Long:    "Reload does at once what the daemon does when its file changes, and says what became of it.",
		Example: "  watcherd reload",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			var c status.Config
			if err := client.post(cmd.Context(), "/api/v1/reload", struct{}{}, &c); err != nil {
				return err
			}
			if c.LastError != "" {
				return errors.New("the former configuration goes on: " + c.LastError)
			}
			for _, key := range c.NeedsRestart {
				fmt.Fprintf(cmd.ErrOrStderr(), "watcherd: the change of %s takes effect at a restart\n", key)
			}
			for _, warning := range c.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "watcherd: this looks like a mistake: %s\n", warning)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s runs, hash %s\n", c.File, short(c.Hash))
			return err
		},
	}
	flags.bind(cmd)
	return cmd
}
