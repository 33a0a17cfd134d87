package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/jsonpatch"
	"github.com/watcherd/watcherd/internal/nearest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/pretty"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

func newBodyCommand() *cobra.Command {
	var file, sink, events string
	cmd := &cobra.Command{
		Use:   "body --config FILE --sink NAME",
		Short: "Print what a sink would send",
		Long: "Body prints what a sink of a configuration would send of an event: the value of its body expression, or its\n" +
			"format's encoding. The event is a sample, or read from a file of CloudEvents, one per line, such as tail prints\n" +
			"them. The sample is one of a Deployment, a Pod or an Event of Kubernetes that a route to the sink takes. For an\n" +
			"event that none takes, the reason goes to standard error. Several events make one body if the expression reads\n" +
			"the list events. What the routes that lead to the sink do not ask for, drop or redact is left out, of all routes\n" +
			"together, with hashes of another key. Nothing is sent; the content type goes to standard error.",
		Example: "  watcherd body --config watcherd.yaml --sink slack\n" +
			"  watcherd tail --limit 1 -o json | watcherd body --config watcherd.yaml --sink slack --event -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := watcherd.Load(file, kinds.Builtin())
			if err != nil {
				return err
			}
			s := st.Sink(sink)
			if s == nil {
				known := namesOf(st.Sinks, func(s plan.Sink) string { return s.Name })
				return &usageError{fmt.Errorf("%s has no sink named %q; known: %s", display(file), sink, strings.Join(nearest.First(sink, known), ", "))}
			}
			list, err := eventsFor(cmd.InOrStdin(), events, st, s.Name)
			if err != nil {
				return err
			}
			for i, e := range list {
				reason, err := untaken(st, s.Name, e)
				if err != nil {
					return err
				}
				if reason != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "watcherd: no route to the sink takes the %s event of %s: %s\n", e.Type, clean(e.Subject()), clean(reason))
				}
				if list[i], err = asRouted(st, s.Name, e); err != nil {
					return err
				}
			}
			return printBodies(cmd.OutOrStdout(), cmd.ErrOrStderr(), s, list)
		},
	}
	addConfigFlag(cmd, &file)
	flags := cmd.Flags()
	flags.StringVar(&sink, "sink", "", "name of the sink (required)")
	flags.StringVar(&events, "event", "", "file of CloudEvents, one per line; - is standard input (default: a sample)")
	mustMark(cmd.MarkFlagRequired("sink"))
	mustMark(cmd.MarkFlagFilename("event", "json", "jsonl"))
	mustMark(cmd.RegisterFlagCompletionFunc("sink", func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		st, err := watcherd.Load(file, kinds.Builtin())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for i := range st.Sinks {
			names = append(names, st.Sinks[i].Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}))
	return cmd
}

// eventsFor are the events of a file, or a sample if there is none.
func eventsFor(stdin io.Reader, file string, st *plan.State, sink string) ([]*event.Event, error) {
	if file != "" {
		return readEvents(stdin, file)
	}
	e, err := sampleFor(st, sink)
	return []*event.Event{e}, err
}

// readEvents reads events from a file.
func readEvents(stdin io.Reader, file string) (list []*event.Event, err error) {
	var data []byte
	switch file {
	case "-":
		data, err = io.ReadAll(stdin)
	default:
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		e, err := event.Parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", display(file), err)
		}
		list = append(list, e)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no event to make a body of")
	}
	return list, nil
}

// asRouted makes an event what the routes that lead to the sink deliver of it, all of them
// taken together: the parts that they ask for, without what they hide. The key of the hashes
// is not that of a store.
func asRouted(st *plan.State, sink string, e *event.Event) (*event.Event, error) {
	var (
		accepted redact.Accepted
		parts    record.Flags
		names    []string
	)
	for i := range st.Routes {
		if spec := &st.Routes[i]; slices.Contains(spec.Sinks, sink) {
			parts |= spec.PartsFor(sink)
			names = append(names, spec.Name)
			accepted.Routes = append(accepted.Routes, redact.Route{Name: spec.Name, Drop: spec.Drop, Redact: spec.Redact})
		}
	}
	if names == nil || e.Gap != nil {
		return e, nil
	}
	table, err := redact.Compile(accepted, nil, make([]byte, redact.MinKey))
	if err != nil {
		return nil, err
	}
	r, dicts := &record.Record{Event: *e, Patch: e.Patch, PatchOmitted: e.PatchOmitted}, compact.NewDictionaries(nil)
	r.Event.ID = "" // that of a file may have any form
	r.Targets = []record.Target{{Sink: sink, Flags: parts, Routes: strings.Join(names, ",")}}
	codec := compact.NewCodec(dicts)
	for _, state := range []struct {
		raw []byte
		to  *compact.Body
	}{{e.Object, &r.Object}, {e.OldObject, &r.OldObject}} {
		if len(state.raw) == 0 {
			continue
		}
		o, err := codec.Encode(state.raw, nil, 0)
		if err != nil {
			return nil, fmt.Errorf("the event's object: %w", err)
		}
		*state.to = o.Body()
	}
	if len(r.Patch) == 0 && e.Type == event.Updated && len(e.Object) > 0 && len(e.OldObject) > 0 {
		if r.Patch, err = jsonpatch.Diff(e.OldObject, e.Object); err != nil {
			return nil, err
		}
	}
	if r.Enrichment, err = enrichmentOf(e); err != nil {
		return nil, err
	}
	payload, err := record.Append(nil, r)
	if err != nil {
		return nil, err
	}
	flags := parts.WithSelection(e.Selection)
	if e.Replay {
		flags |= record.Replay
	}
	in := record.Inflater{Cluster: e.Cluster, Feed: e.Feed, ClusterUID: func() string { return e.ClusterUID }, Dictionaries: dicts, Edit: table.Edit}
	out, err := in.Event(e.Sequence, flags, payload, sink)
	if err != nil {
		return nil, err
	}
	out.ID, out.Truncated = e.ID, e.Truncated
	if out.Summary == "" && parts&record.Summary != 0 && !table.EditsRoutes() {
		out.Summary = e.Summary // of an event without its states
	}
	return out, nil
}

// enrichmentOf is what an event has of other objects, as a record has it; nil: nothing.
func enrichmentOf(e *event.Event) (*record.Enrichment, error) {
	if e.Owner == nil && e.InvolvedObject == nil && !e.Incomplete {
		return nil, nil //nolint:nilnil // as the record has it
	}
	out := &record.Enrichment{Incomplete: e.Incomplete}
	chainOf := func(o *event.Owner) []event.Ref {
		if o == nil {
			return nil
		}
		return o.Chain
	}
	var err error
	if e.Owner != nil {
		if out.Owner, err = record.MetadataOf("", nil, nil, chainOf(e.Owner)); err != nil {
			return nil, err
		}
	}
	if i := e.InvolvedObject; i != nil {
		labels, failed := json.Marshal(i.Labels)
		annotations, err := json.Marshal(i.Annotations)
		if err = errors.Join(failed, err); err != nil {
			return nil, err
		}
		group, version, ok := strings.Cut(i.APIVersion, "/")
		if !ok {
			group, version = "", i.APIVersion
		}
		out.Involved = &record.Involved{Resource: event.Resource{Group: group, Version: version, Kind: i.Kind}, Namespace: i.Namespace, Name: i.Name}
		if out.Involved.Object, err = record.MetadataOf(i.UID, labels, annotations, chainOf(i.Owner)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func printBodies(out, notes io.Writer, s *plan.Sink, events []*event.Event) error {
	if s.Body == nil {
		for _, e := range events {
			if err := printBody(out, notes, s.Format.Append(nil, e), s.Format.ContentType(e)); err != nil {
				return err
			}
		}
		return nil
	}
	messages := make([][]*event.Event, len(events))
	for i := range events {
		messages[i] = events[i : i+1]
	}
	if s.Body.ReadsList() && s.BatchMode {
		messages = [][]*event.Event{events}
	}
	for _, m := range messages {
		body, contentType, err := s.Body.Join(m)
		if err != nil {
			return fmt.Errorf("body: %w", err)
		}
		if body == nil {
			fmt.Fprintln(notes, "watcherd: the body is null: nothing is sent")
			continue
		}
		if err := printBody(out, notes, body, contentType); err != nil {
			return err
		}
	}
	return nil
}

func printBody(out, notes io.Writer, body []byte, contentType string) error {
	fmt.Fprintf(notes, "Content-Type: %s\n", contentType)
	text := string(body)
	if pretty.IsTerminal(out) {
		text = cleanLines(text)
	}
	_, err := fmt.Fprintln(out, text)
	return err
}
