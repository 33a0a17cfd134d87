package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

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
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			r := admin.ReplayRequest{Sink: sink, FromSequence: from}
			var err error
			if since != "" {
				if r.FromTime, err = admin.ParseSince(since, now); err != nil {
					return &usageError{fmt.Errorf("--since: %w", err)}
				}
			} else if from == 0 {
				return &usageError{errors.New("--from-sequence is a sequence, from 1")}
			}
			if until != "" {
				if r.ToTime, err = admin.ParseSince(until, now); err != nil {
					return &usageError{fmt.Errorf("--until: %w", err)}
				}
			}
			return flags.deliver(cmd, "/api/v1/replay", r, sink)
		},
	}
	flags.bind(cmd)
	addSinkFlag(cmd.Flags(), &sink)
	cmd.Flags().StringVar(&since, "since", "", "events since: how long ago (15m, 2h, 3d) or a time (RFC 3339)")
	cmd.Flags().Uint64Var(&from, "from-sequence", 0, "events from this sequence on")
	cmd.Flags().StringVar(&until, "until", "", "events until: how long ago or a time")
	cmd.MarkFlagsOneRequired("since", "from-sequence")
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
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.deliver(cmd, "/api/v1/snapshot", admin.SnapshotRequest{Sink: sink, Watch: watch}, sink)
		},
	}
	flags.bind(cmd)
	addSinkFlag(cmd.Flags(), &sink)
	cmd.Flags().StringVar(&watch, "watch", "", "only objects of this watch")
	return cmd
}

// deliver runs a command that queues events, and shows how far it is.
func (f *adminFlags) deliver(cmd *cobra.Command, path string, request any, sink string) error {
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
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s queued for sink %s\n", objectsOrEvents(path, last.Count), sink)
	return err
}

func objectsOrEvents(path string, n int) string {
	if path == "/api/v1/snapshot" {
		return plural(n, "object")
	}
	return plural(n, "event")
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
