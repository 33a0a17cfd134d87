package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
)

func newSinktestCommand() *cobra.Command {
	c := plugin.NewConfig()
	var (
		timeout       time.Duration
		authorization string
	)
	cmd := &cobra.Command{
		Use:   "sinktest --url URL",
		Short: "Check whether a plugin keeps the contract of a sink",
		Long: "Sinktest sends a plugin what the sink of kind plugin may send: batches, repeats, odd and large events, requests at once,\n" +
			"requests that break off. It prints a table of the checks, and exits with 1 if one failed. The plugin gets about 400 events\n" +
			"of a cluster named sinktest: give it a place of its own. Durability cannot be seen from here: kill the plugin, and look.",
		Example: "  watcherd sinktest --url unix:///run/sink.sock\n  SINK_AUTHORIZATION='Bearer …' watcherd sinktest --url https://sink.example.com/ --authorization-env SINK_AUTHORIZATION",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.URL == "" {
				return &usageError{errors.New("--url names the plugin")}
			}
			c.Timeout = sinks.Duration(timeout)
			if authorization != "" {
				c.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: authorization}}}
			}
			if err := c.Validate(); err != nil {
				return &usageError{err}
			}
			var failed int
			var faults []string
			t := newTable(cmd.OutOrStdout(), "CHECK", "RESULT", "TOOK", "")
			err := plugin.Check(cmd.Context(), c, func(o plugin.Outcome) {
				result, note := "passed", o.Note
				switch {
				case o.Err != nil:
					failed++
					result = "FAILED"
					faults = append(faults, fmt.Sprintf("%s: %s", o.Check, clean(o.Err.Error())))
				case o.Skipped != "":
					result, note = "skipped", o.Skipped
				}
				t.row(o.Check, result, o.Took.Round(time.Millisecond).String(), note)
			})
			if err != nil {
				return err
			}
			if err := t.flush(); err != nil {
				return err
			}
			for _, fault := range faults {
				fmt.Fprintln(cmd.ErrOrStderr(), "watcherd:", fault)
			}
			if failed > 0 {
				return fmt.Errorf("%s failed", plural(failed, "check"))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&c.URL, "url", "", "the plugin: unix:///PATH, http:// or https://")
	cmd.Flags().StringVar(&authorization, "authorization-env", "", "environment variable with the value of the header Authorization")
	cmd.Flags().StringVar(&c.TLS.CAFile, "ca-file", "", "PEM certificates to trust instead of the system's")
	cmd.Flags().BoolVar(&c.Insecure, "insecure", false, "send credentials to an http:// URL beyond loopback")
	cmd.Flags().DurationVar(&timeout, "timeout", c.Timeout.Std(), "of one request")
	return cmd
}
