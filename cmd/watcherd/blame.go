package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/history"
)

func newBlameCommand() *cobra.Command {
	var o historyOptions
	cmd := &cobra.Command{
		Use:   "blame RESOURCE NAME",
		Short: "Show who set each field of an object last",
		Long: "Blame prints an object as YAML, and before each line the field manager that set it last and how long ago,\n" +
			"from the history. A line that is older than the history has a < before the age, and the manager from the managed\n" +
			"fields that the API server has now. A ? means that later changes may have been missed.",
		Example: "  watcherd blame deploy web -n prod\n  watcherd blame deploy/web -n prod -o json | jq '.fields[] | select(.manager==\"kubectl-edit\") | .path'",
		Args:    cobra.RangeArgs(1, 2),
		RunE:    o.store.reading(&o.admin, o.blame),
	}
	o.bind(cmd, "namespace of the object; may be left out if only one has an object of the name")
	addOutputFlag(cmd, &o.output, "text, json or yaml", "text", "json", "yaml")
	return cmd
}

func (o *historyOptions) blame(cmd *cobra.Command, args []string) error {
	client, path, err := o.object(cmd.Context(), args)
	if err != nil {
		return err
	}
	var b history.Blame
	if err := client.Get(cmd.Context(), path+"/blame", url.Values{}, &b); err != nil {
		return err
	}
	if len(b.Fields) == 0 {
		return errors.New("no state of the object is recorded")
	}
	notes := cmd.ErrOrStderr()
	if b.Deleted {
		fmt.Fprintln(notes, "watcherd: the object is deleted: this is its last state")
	}
	if b.Truncated {
		fmt.Fprintln(notes, "watcherd: the object has so many versions that the oldest were not compared")
	}
	if b.Unmanaged != "" {
		fmt.Fprintf(notes, "watcherd: the managed fields were not read: %s\n", clean(b.Unmanaged))
	}
	printVerdict(notes, &history.Span{Complete: true, Gaps: b.Gaps, Unread: b.Unread})
	if o.output != "text" {
		return printStructured(cmd.OutOrStdout(), o.output, b)
	}
	return printBlame(cmd.OutOrStdout(), &b, time.Now())
}

// maxMargin is how much of a manager's name is printed.
const maxMargin = 40

func printBlame(w io.Writer, b *history.Blame, now time.Time) error {
	margins, widest := make([]string, len(b.Fields)), 0
	for i := range b.Fields {
		margins[i] = clean(b.Fields[i].Manager)
		if manager := []rune(margins[i]); len(manager) > maxMargin {
			margins[i] = string(manager[:maxMargin-1]) + "…"
		}
		widest = max(widest, len([]rune(margins[i])))
	}
	out := bufio.NewWriter(w)
	for i := range b.Fields {
		f := &b.Fields[i]
		mark, at := "", f.Time
		switch {
		case f.As == history.Gap:
			mark = "?"
		case f.As == history.UnknownBefore && at.IsZero():
			mark, at = "<", f.Before // it is that old at least
		case f.As == history.UnknownBefore:
			mark = "<"
		}
		if f.Head != "" {
			for line := range strings.Lines(f.Head + "\n") {
				fmt.Fprintf(out, "%*s | %s\n", widest+7, "", clean(strings.TrimSuffix(line, "\n")))
			}
		}
		for line := range strings.Lines(f.Text + "\n") {
			fmt.Fprintf(out, "%-*s %1s%5s | %s\n", widest, margins[i], mark, age(at, now), clean(strings.TrimSuffix(line, "\n")))
		}
	}
	return out.Flush()
}
