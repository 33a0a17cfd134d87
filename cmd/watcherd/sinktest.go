package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
		Long: "Sinktest sends a plugin what the sink of kind plugin may send: batches, repeats, odd and large events, concurrent requests,\n" +
			"requests that break off. It prints each check when it is done, and exits with 1 if one failed. The plugin gets about 400\n" +
			"events of a cluster named sinktest: give it a store of its own. No check shows durability: kill the plugin and look.",
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
			return sinktest(cmd.Context(), cmd.OutOrStdout(), c)
		},
	}
	cmd.Flags().StringVar(&c.URL, "url", "", "the plugin: unix:///PATH, http:// or https://")
	cmd.Flags().StringVar(&authorization, "authorization-env", "", "environment variable with the value of the header Authorization")
	cmd.Flags().StringVar(&c.TLS.CAFile, "ca-file", "", "PEM certificates to trust instead of the system's")
	cmd.Flags().StringVar(&c.TLS.CertFile, "cert-file", "", "PEM certificate of this client")
	cmd.Flags().StringVar(&c.TLS.KeyFile, "key-file", "", "PEM key of --cert-file")
	cmd.Flags().BoolVar(&c.Insecure, "insecure", false, "send credentials to an http:// URL beyond loopback")
	cmd.Flags().DurationVar(&timeout, "timeout", c.Timeout.Std(), "of one request")
	return cmd
}

// sinktest prints each check as it ends, since one of a program that hangs takes its time.
func sinktest(ctx context.Context, out io.Writer, c *plugin.Config) error {
	const row = "%-8s %-9v %s\n"
	var run, failed int
	fmt.Fprintf(out, row, "RESULT", "TOOK", "CHECK")
	if err := plugin.Check(ctx, c, func(o plugin.Outcome) {
		result, note := "passed", o.Note
		switch {
		case o.Err != nil:
			failed++
			result, note = "FAILED", ""
		case o.Skipped != "":
			result, note = "skipped", o.Skipped
		}
		if run++; note != "" {
			note = " (" + note + ")"
		}
		fmt.Fprintf(out, row, result, o.Took.Round(time.Millisecond), o.Check+note)
		if o.Err != nil {
			fmt.Fprintf(out, row, "", "", "  "+clean(o.Err.Error()))
		}
	}); err != nil {
		return err
	}
	switch {
	case failed > 0 && run == 1:
		return errors.New("the first check failed; the others were not run")
	case failed > 0:
		return fmt.Errorf("%d of %s failed", failed, plural(run, "check"))
	}
	return nil
}
