package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

func newSinksCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:   "sinks",
		Short: "Pause or resume a sink, skip an event, or purge a removed sink",
		RunE:  helpOnly,
	}
	flags.bind(cmd)
	cmd.AddCommand(
		newSinkActCommand(&flags, "pause", "Pause deliveries to a sink",
			"Pause ends deliveries to a sink until it is resumed, also over restarts and reloads. Writes in flight finish, and\n"+
				"the backlog is kept. Other sinks are not affected.", "sink %s is paused\n"),
		newSinkActCommand(&flags, "resume", "Resume a sink that is paused, and try one that is backing off now",
			"Resume ends a pause and makes the next attempt at once, for instance after the receiver is fixed.", "sink %s is resumed\n"),
		newSinkSkipCommand(&flags),
		newSinkActCommand(&flags, "purge", "Delete the backlog and dead letters of a removed sink",
			"Purge deletes the backlog and the dead letters that are kept for a sink which was removed from the configuration.\n"+
				"A sink that is configured cannot be purged.", "sink %s is purged\n"),
	)
	return cmd
}

func newSinkActCommand(flags *adminFlags, verb, short, long, done string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     verb + " SINK",
		Short:   short,
		Long:    long,
		Example: "  watcherd sinks " + verb + " ops",
	}
	takeSink(cmd, func(cmd *cobra.Command, sink string) error {
		if err := flags.post(cmd.Context(), sinkPath(sink, verb), struct{}{}, &struct{}{}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), done, sink)
		return err
	})
	return cmd
}

// takeSink makes a command take its sink as the argument, or with --sink as the commands about events do.
func takeSink(cmd *cobra.Command, run func(cmd *cobra.Command, sink string) error) {
	var sink string
	cmd.Flags().StringVar(&sink, "sink", "", "name of the sink, in place of the argument")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("sink") {
			return cobra.NoArgs(cmd, args)
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return run(cmd, append(args, sink)[0])
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
	}
	takeSink(cmd, func(cmd *cobra.Command, sink string) error {
		var s admin.Skipped
		if err := flags.post(cmd.Context(), sinkPath(sink, "skip"), r, &s); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "event %d skipped, now dead letter %d of sink %s: %s %s: %s\n",
			s.Sequence, s.Position, sink, clean(s.Type), clean(s.Subject), clean(s.Reason))
		return err
	})
	cmd.Flags().Uint64Var(&r.Sequence, "sequence", 0, "sequence of the event; 0: the one that blocks the sink")
	return cmd
}

func sinkPath(sink, verb string) string {
	return "/api/v1/sinks/" + url.PathEscape(sink) + "/" + verb
}

func newReloadCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Reload the configuration now",
		Long: "Reload reloads the configuration file without waiting for a change, and prints the outcome. Reloads are five seconds\n" +
			"apart, so that one after another takes as long.",
		Example: "  watcherd reload",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var c status.Config
			answered := make(chan error, 1)
			go func() { answered <- flags.post(cmd.Context(), "/api/v1/reload", struct{}{}, &c) }()
			if err := flags.awaitReload(cmd, answered); err != nil {
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

// awaitReload returns the answer to a reload. While there is none, it prints what the daemon waits for.
func (f *adminFlags) awaitReload(cmd *cobra.Command, answered <-chan error) error {
	tick := time.NewTicker(repeatEvery)
	defer tick.Stop()
	for printed := ""; ; {
		select {
		case err := <-answered:
			return err
		case <-tick.C:
		}
		waits := "the configuration is being applied"
		var st status.Status
		if f.get(cmd.Context(), "/api/v1/status", nil, &st) == nil { // the answer to the reload has the error
			var draining []string
			for i := range st.Sinks {
				if st.Sinks[i].State == "draining" {
					draining = append(draining, st.Sinks[i].Name)
				}
			}
			if len(draining) > 0 {
				waits = "waiting for the deliveries in flight of " + strings.Join(draining, ", ") + ", which the new configuration replaces or removes"
			}
		}
		if waits != printed {
			fmt.Fprintf(cmd.ErrOrStderr(), "watcherd: %s\n", clean(waits))
			printed = waits
		}
	}
}

func newReplayCommand() *cobra.Command {
	var (
		flags              adminFlags
		sink, since, until string
		from               uint64
	)
	cmd := &cobra.Command{
		Use:   "replay --sink SINK (--since TIME | --from-sequence N)",
		Short: "Deliver recorded events to a sink again",
		Long: "Replay queues events of the log for a sink again, marked \"replay\": true and with the ids they had: what\n" +
			"the routes that lead to it now take of the history. How far back that goes is up to store.retention;\n" +
			"'watcherd status' shows it.",
		Example: "  watcherd replay --sink ops --since 1h\n  watcherd replay --sink ops --since 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z\n" +
			"  watcherd replay --sink ops --from-sequence 4711",
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := flags.now(cmd.Context())
			r := admin.ReplayRequest{Sink: sink, FromSequence: from}
			switch {
			case cmd.Flags().Changed("from-sequence") && from == 0:
				return &usageError{errors.New("--from-sequence is a sequence, from 1")}
			case since == "" && from == 0:
				return &usageError{errors.New("--since or --from-sequence is required: the beginning of what to replay")}
			}
			var err error
			if r.FromTime, err = timeFlag("--since", since, now); err != nil {
				return err
			}
			if r.ToTime, err = timeFlag("--until", until, now); err != nil {
				return err
			}
			return flags.deliver(cmd, "/api/v1/replay", r, "event", sink,
				"no route to the sink takes an event of that time; 'watcherd history' shows those, and 'watcherd explain' why a route does not take one")
		},
	}
	flags.bind(cmd)
	addSinkFlag(cmd.Flags(), &sink)
	cmd.Flags().StringVar(&since, "since", "", "events since: how long ago (15m, 2h, 3d) or a time (RFC 3339)")
	cmd.Flags().Uint64Var(&from, "from-sequence", 0, "events from this sequence on")
	cmd.Flags().StringVar(&until, "until", "", "events until: how long ago or a time")
	cmd.MarkFlagsMutuallyExclusive("since", "from-sequence")
	return cmd
}

func newSnapshotCommand() *cobra.Command {
	var (
		flags       adminFlags
		sink, watch string
	)
	cmd := &cobra.Command{
		Use:   "snapshot --sink SINK",
		Short: "Deliver the current state of everything to a sink",
		Long: "Snapshot queues the state of every object that the routes to the sink take, as sync events. Changes that happen\n" +
			"meanwhile are delivered in their order with it.",
		Example: "  watcherd snapshot --sink archive\n  watcherd snapshot --sink archive --watch workloads",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.deliver(cmd, "/api/v1/snapshot", admin.SnapshotRequest{Sink: sink, Watch: watch}, "object", sink,
				"no route to the sink takes sync events of what is recorded; one with events or changed does only if its events has sync")
		},
	}
	flags.bind(cmd)
	addSinkFlag(cmd.Flags(), &sink)
	cmd.Flags().StringVar(&watch, "watch", "", "only objects of this watch")
	return cmd
}

// deliver runs a command that queues events, and shows how far it is. what the daemon
// counts at the end is an event or an object, and none explains that there is none.
func (f *adminFlags) deliver(cmd *cobra.Command, path string, request any, what, sink, none string) error {
	client, err := f.client()
	if err != nil {
		return err
	}
	p := newProgress(cmd.ErrOrStderr())
	last, err := client.Run(cmd.Context(), path, request, func(n int) { p.show(plural(n, "event")) })
	p.clear()
	if err != nil {
		return err
	}
	if last.Count == 0 && none != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "watcherd: %s\n", none)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s queued for sink %s\n", plural(last.Count, what), sink)
	return err
}

// progress is a line on a terminal that is written over; elsewhere it is nothing.
type progress struct {
	w     io.Writer
	shown bool
}

func newProgress(w io.Writer) *progress {
	if !pretty.IsTerminal(w) {
		w = io.Discard
	}
	return &progress{w: w}
}

func (p *progress) show(text string) {
	p.shown = true
	_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s...", text) // decoration
}

func (p *progress) clear() {
	if p.shown {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func newUICommand() *cobra.Command {
	var (
		flags          adminFlags
		open, readOnly bool
	)
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print the address of the page, or open it",
		Long: "Ui prints the address of the page that the daemon serves, with the token for commands in its fragment if there is one.\n" +
			"The page keeps the token in its tab. Who has the address may do what the token allows.",
		Example: "  watcherd ui\n  watcherd ui --config watcherd.yaml --open\n  watcherd ui --config watcherd.yaml --read-only",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.client()
			if err != nil {
				return err
			}
			page, err := c.Page(!readOnly)
			if err != nil {
				return err
			}
			if open {
				return openBrowser(cmd.Context(), page)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), page)
			return err
		},
	}
	flags.bind(cmd)
	cmd.Flags().BoolVar(&open, "open", false, "open the page in the browser of the desktop")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "with the token for reading")
	return cmd
}

// openBrowser leads the browser to a page through a file that only its user may read: other
// users of the machine see the arguments of processes. The file is deleted after a while.
func openBrowser(ctx context.Context, page string) (err error) {
	dir, err := os.MkdirTemp("", "watcherd-ui-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "watcherd.html")
	redirect := fmt.Sprintf("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=%s\">\n", html.EscapeString(page))
	if err := os.WriteFile(file, []byte(redirect), 0o600); err != nil {
		return err
	}
	opener := "xdg-open"
	if runtime.GOOS == "darwin" {
		opener = "open"
	}
	if out, err := exec.CommandContext(ctx, opener, file).CombinedOutput(); err != nil { //nolint:gosec // one of the two above
		return fmt.Errorf("%s: %w %s; without --open the address is printed", opener, err, out)
	}
	select {
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
	}
	return nil
}
