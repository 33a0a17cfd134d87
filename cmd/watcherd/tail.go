package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/wait"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

type tailOptions struct {
	admin      adminFlags
	routes     []string
	resources  []string
	name       string
	namespaces []string
	types      []string
	since      string
	output     string
	noFollow   bool
	follow     bool
	limit      int
}

func newTailCommand() *cobra.Command {
	var o tailOptions
	cmd := &cobra.Command{
		Use:   "tail [RESOURCE [NAME]]",
		Short: "Follow the events of a running daemon",
		Long: "Tail prints events from the daemon's event log as they are recorded: every change, or with --route those that a\n" +
			"route took, regardless of the state of the sinks. It resumes at its position after a lost connection or a restart of the daemon.",
		Example: "  watcherd tail\n  watcherd tail deploy web -n prod\n  watcherd tail --resource pods -n prod --type deleted\n  watcherd tail --since 1h --no-follow -o json | jq .data.name",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				resource, name, err := named(args)
				if err != nil {
					return err
				}
				o.resources, o.name = append(o.resources, resource), name
			}
			return o.run(cmd, nil)
		},
	}
	o.admin.bind(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.routes, "route", nil, "only events that this route matched")
	flags.StringSliceVar(&o.resources, "resource", nil, "only events of this resource, as kubectl names it; *.GROUP for a group")
	flags.StringSliceVarP(&o.namespaces, "namespace", "n", nil, "only events of this namespace")
	flags.StringSliceVar(&o.types, "type", nil, "only events of this type: added, updated, deleted, sync or gap")
	flags.StringVar(&o.since, "since", "", "start in the past: how long ago (15m, 2h, 3d), a time, or a sequence")
	addOutputFlag(cmd, &o.output, "pretty or json (CloudEvents, one per line)", "pretty", "json")
	flags.BoolVar(&o.noFollow, "no-follow", false, "stop at the end of the log")
	flags.BoolVarP(&o.follow, "follow", "f", true, "wait for further events (the default)")
	cmd.MarkFlagsMutuallyExclusive("follow", "no-follow")
	flags.IntVar(&o.limit, "limit", 0, "stop after this number of events")
	return cmd
}

func (o *tailOptions) query(ctx context.Context) (url.Values, error) {
	if o.limit < 0 {
		return nil, &usageError{errors.New("--limit is a number of events")}
	}
	o.noFollow = o.noFollow || !o.follow
	q := url.Values{}
	for key, values := range map[string][]string{"route": o.routes, "resource": o.resources, "namespace": o.namespaces, "type": o.types} {
		for _, v := range values {
			q.Add(key, v)
		}
	}
	if o.name != "" {
		q.Set("name", o.name)
	}
	if o.since != "" {
		if _, err := strconv.ParseUint(o.since, 10, 64); err != nil {
			at, err := timeFlag("--since", o.since, o.admin.now(ctx))
			if err != nil {
				return nil, err
			}
			o.since = at.Format(time.RFC3339)
		}
		q.Set("since", o.since)
	}
	if o.noFollow {
		q.Set("follow", "false")
		if o.since == "" {
			q.Set("since", "0")
		}
	}
	return q, nil
}

// Between attempts to connect again.
const (
	retryFirst = 500 * time.Millisecond
	retryMost  = 10 * time.Second
)

func (o *tailOptions) run(cmd *cobra.Command, _ []string) error {
	query, err := o.query(cmd.Context())
	if err != nil {
		return err
	}
	client, err := o.admin.client()
	if err != nil {
		return err
	}
	t := &tail{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), left: o.limit, day: time.Now().Format(time.DateOnly)}
	if o.output == "pretty" {
		t.printer = &pretty.Printer{Color: pretty.WantsColor(t.out)}
	}
	if err := t.follow(cmd.Context(), client, query, o.noFollow); err != nil || !o.noFollow || t.any {
		return err
	}
	where := ""
	if len(o.namespaces) > 0 {
		where = " in namespace " + strings.Join(o.namespaces, ", ")
	}
	_, err = fmt.Fprintf(t.notes, "No events found%s.\n", clean(where))
	return err
}

// follow prints a stream, connecting again when it is lost.
func (t *tail) follow(ctx context.Context, client *client.Client, query url.Values, noFollow bool) error {
	connected := false
	for delay := retryFirst; ; delay = min(2*delay, retryMost) {
		began, err := t.connect(ctx, client, query)
		switch {
		case t.failed != nil:
			return t.failed
		case ctx.Err() != nil, t.done:
			return nil //nolint:nilerr // interrupted, or there is no more to print
		case !connected && !began:
			return err
		case noFollow && err == nil && !t.cut:
			return nil
		}
		// A daemon that starts or stops answers 503.
		if p, ok := errors.AsType[*admin.Problem](err); ok && p.Status != http.StatusServiceUnavailable {
			return err
		}
		if began {
			connected, delay = true, retryFirst
			fmt.Fprintln(t.notes, "watcherd: lost the connection to the daemon; reconnecting")
		}
		if err := wait.For(ctx, delay); err != nil {
			return nil //nolint:nilerr // as above
		}
	}
}

// tail prints a stream, over any number of connections.
type tail struct {
	out, notes io.Writer
	printer    *pretty.Printer          // nil: JSON
	quiet      []*event.Event           // gaps that are to be printed, of one outage
	show       func(*event.Event) error // in place of printing
	lastID     string
	day        string // of the last line, which shows the time alone
	left       int    // events to print; 0: no bound
	any        bool   // an event was printed, or will be
	done       bool
	cut        bool  // the daemon has ended the stream before there was no more to send
	failed     error // of an event or the output, which another connection does not repair
}

// connect prints what one connection brings. began reports whether there was one.
func (t *tail) connect(ctx context.Context, c *client.Client, query url.Values) (began bool, err error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if t.lastID != "" {
		header.Set("Last-Event-ID", t.lastID)
	}
	resp, err := c.Do(ctx, http.MethodGet, "/api/v1/events", query, nil, header)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	t.cut = false
	err = t.read(resp.Body)
	t.failed = errors.Join(t.failed, t.printQuiet())
	return true, err
}

// read prints a stream of server-sent events until it ends. Each event of ours has
// its data in one line.
func (t *tail) read(r io.Reader) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	var id, name string
	var data []byte
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		if len(line) > 0 {
			field, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(field) {
			case "id":
				id = string(value)
			case "event":
				name = string(value)
			case "data":
				data = value
			}
			continue
		}
		if data == nil { // the stream is idle
			err = t.printQuiet()
		} else {
			err = t.print(name, data)
		}
		if err != nil {
			t.failed = err
			return err
		}
		if id != "" {
			t.lastID = id
		}
		if t.done {
			return nil
		}
		id, name, data = "", "", nil
	}
}

func (t *tail) print(name string, data []byte) error {
	switch name {
	case admin.StreamTruncated, admin.StreamUnreadable, admin.StreamEnd:
		return t.note(name, data)
	}
	if t.printer == nil && t.show == nil {
		_, err := t.out.Write(append(escaped(data), '\n'))
		t.count()
		return err
	}
	e, err := event.Parse(data)
	if err != nil {
		return err
	}
	if t.show != nil {
		return t.show(e)
	}
	t.count()
	quiet := e.Gap != nil && e.Gap.Cause == record.CauseQuiet
	if n := len(t.quiet); n > 0 && !(quiet && e.Gap.From.Before(t.quiet[n-1].Gap.To)) {
		if err := t.printQuiet(); err != nil {
			return err
		}
	}
	if !quiet {
		return t.write(e, t.printer.Append(nil, e))
	}
	t.quiet = append(t.quiet, e)
	if t.done {
		return t.printQuiet()
	}
	return nil
}

// printQuiet prints the gaps of an outage of the API server in which nothing was missed.
func (t *tail) printQuiet() error {
	gaps := t.quiet
	if t.quiet = nil; gaps == nil {
		return nil
	}
	return t.write(gaps[0], t.printer.AppendGaps(nil, gaps))
}

// write writes the line of an event, behind its day if that of the line before is another.
func (t *tail) write(e *event.Event, line []byte) error {
	if day := e.Time.Local().Format(time.DateOnly); day != t.day {
		t.day, line = day, append([]byte(day+" "), line...)
	}
	_, err := t.out.Write(line)
	return err
}

// count counts an event that is printed, or will be.
func (t *tail) count() {
	t.any = true
	if t.left > 0 {
		t.left--
		t.done = t.left == 0
	}
}

// note prints a message that is not an event to standard error.
func (t *tail) note(name string, data []byte) error {
	var d struct {
		FirstSequence, Sequence uint64
		Error, Reason           string
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return fmt.Errorf("the stream is not understood: %w", err)
	}
	text := ""
	switch name {
	case admin.StreamTruncated:
		text = fmt.Sprintf("the log no longer has the events before %d", d.FirstSequence)
	case admin.StreamUnreadable:
		text = fmt.Sprintf("event %d cannot be read: %s", d.Sequence, d.Error)
	case admin.StreamEnd:
		text, t.cut = d.Reason, true
	}
	_, err := fmt.Fprintln(t.notes, "watcherd: "+clean(strings.TrimSpace(text)))
	return err
}
