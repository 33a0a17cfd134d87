package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/event"
)

type getOptions struct {
	admin     adminFlags
	store     storeFlag
	namespace string
	all       bool
	selector  string
	output    string
	at        string
	watch     bool
}

func newGetCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get RESOURCE[,RESOURCE]... [NAME]...",
		Short: "Show objects of the watches",
		Long: "Get prints objects from the caches of a running daemon. Objects outside its watches are missing,\n" +
			"dropped and redacted fields are not there either. RESOURCE is what kubectl takes: a plural, singular, short\n" +
			"name or kind, with version and group if necessary, or RESOURCE/NAME. Without -n all namespaces are shown. The\n" +
			"columns are those of kubectl; the daemon asks the API server for those of a custom resource, if it has the permission.\n" +
			"With --watch it prints changes from the event log: those of a watch with history: false only where a route takes them.",
		Example: "  watcherd get pods\n  watcherd get deploy,statefulsets -n prod -l tier=web -o wide\n  watcherd get widgets.example.com blue red -n prod -o yaml\n" +
			"  watcherd get pods -n prod --watch\n  watcherd get pods -o jsonpath='{.items[*].spec.nodeName}'\n" +
			"  watcherd get pods -o custom-columns=POD:.metadata.name,NODE:.spec.nodeName\n  watcherd get pods -n prod --at 2h",
		Args: cobra.MinimumNArgs(1),
		RunE: o.store.reading(&o.admin, o.run),
	}
	o.admin.bind(cmd)
	o.store.bind(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "", "only objects of this namespace")
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "objects of all namespaces (the default)")
	flags.StringVarP(&o.selector, "selector", "l", "", "only objects with these labels, such as tier=web,env!=dev")
	flags.StringVarP(&o.output, "output", "o", formatTable, "table, wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=HEADER:PATH,...")
	mustMark(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(objectFormats, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)))
	flags.StringVar(&o.at, "at", "", "show the objects as they were: how long ago (15m, 2h, 3d) or when (2026-01-31T12:00:00Z); of a recording, its end by default")
	flags.BoolVarP(&o.watch, "watch", "w", false, "print the objects, then each that changes")
	return cmd
}

// wanted are objects that get is asked for: those of a resource, or some of them.
type wanted struct {
	resource string
	names    []string
}

// targets reads the arguments: RESOURCE[,RESOURCE]... [NAME]..., or RESOURCE/NAME...
func targets(args []string) ([]wanted, error) {
	var list []wanted
	if !strings.Contains(args[0], "/") {
		for resource := range strings.SplitSeq(args[0], ",") {
			list = append(list, wanted{resource, args[1:]})
		}
		args = args[1:]
		if strings.Contains(strings.Join(args, " "), "/") {
			return nil, &usageError{errors.New("give names once, as RESOURCE NAME or as RESOURCE/NAME")}
		}
		return list, nil
	}
	for _, arg := range args {
		resource, name, slash := strings.Cut(arg, "/")
		if !slash || name == "" {
			return nil, &usageError{fmt.Errorf("%q is not RESOURCE/NAME, as the other arguments are", arg)}
		}
		if n := len(list); n > 0 && list[n-1].resource == resource {
			list[n-1].names = append(list[n-1].names, name)
			continue
		}
		list = append(list, wanted{resource, []string{name}})
	}
	return list, nil
}

func (o *getOptions) run(cmd *cobra.Command, args []string) error {
	if o.all && o.namespace != "" {
		return &usageError{errors.New("-n and -A exclude each other")}
	}
	if o.store.dir != "" && o.at == "" {
		_, end, err := o.store.period()
		if err != nil {
			return err
		}
		if end.IsZero() {
			return &usageError{errors.New("--store needs --at: the time of the states to show")}
		}
		o.at = end.Format(time.RFC3339Nano)
	}
	if _, err := selector.ParseLabels(o.selector); err != nil {
		return &usageError{fmt.Errorf("-l: %w", err)}
	}
	list, err := targets(args)
	if err != nil {
		return err
	}
	if o.watch && (len(list) > 1 || len(list[0].names) > 1 || o.at != "") {
		return &usageError{errors.New("--watch takes one resource, one name at most, and no --at")}
	}
	g := &getter{getOptions: o, cmd: cmd}
	if g.printer, err = newObjectPrinter(cmd.OutOrStdout(), o.output); err != nil {
		return err
	}
	if g.printer.at, err = timeFlag("--at", o.at, o.admin.now(cmd.Context())); err != nil {
		return err
	}
	g.printer.single = o.watch || len(list) == 1 && len(list[0].names) == 1
	g.printer.kinds = len(list) > 1
	if g.client, err = o.admin.client(); err != nil {
		return err
	}
	if o.watch {
		return g.follow(&list[0])
	}
	var missing []error
	for i := range list {
		if err := g.show(&list[i], g.printer.add); err != nil {
			missing = append(missing, err)
		}
	}
	if len(g.empty) == len(list) {
		g.noteEmpty()
	}
	return errors.Join(append(missing, g.printer.end())...)
}

// noteEmpty makes known that there are no objects.
func (g *getter) noteEmpty() {
	fmt.Fprintf(g.cmd.ErrOrStderr(), "No resources found%s.\n", g.where())
}

// where is the namespace that is asked for, as the end of a sentence.
func (g *getter) where() string {
	if g.namespace == "" {
		return ""
	}
	return " in namespace " + g.namespace
}

type getter struct {
	*getOptions
	cmd     *cobra.Command
	client  *client.Client
	printer *objectPrinter
	empty   []string // resources without an object
}

// show prints what is asked for of a resource, or calls it missing.
func (g *getter) show(w *wanted, print func(raw []byte) error) error {
	var missing []error
	for _, name := range append(w.names, "")[:max(len(w.names), 1)] {
		query := url.Values{"limit": {"1000"}}
		setGiven(query, map[string]string{"namespace": g.namespace, "labelSelector": g.selector, "name": name})
		found := 0
		err := g.each(w.resource, query, func(raw []byte) error {
			found++
			return print(raw)
		})
		switch {
		case err != nil:
			missing = append(missing, err)
		case found == 0 && name != "":
			among := "the objects that the watches see"
			if g.at != "" {
				among = "the objects recorded at that time"
			}
			missing = append(missing, fmt.Errorf("%s %q%s is not among %s", w.resource, name, g.where(), among))
		case found == 0 && !g.printer.together():
			g.empty = append(g.empty, w.resource)
		}
	}
	return errors.Join(append(missing, g.printer.flush())...)
}

// each reads the objects of a resource, of now or of a time.
func (g *getter) each(resource string, query url.Values, visit func(raw []byte) error) error {
	ctx, path := g.cmd.Context(), "/api/v1/objects/"+url.PathEscape(resource)
	if g.printer.table() {
		query.Set("columns", "true")
	}
	if g.at == "" {
		query.Set("metadata", strconv.FormatBool(g.output == formatName))
		return eachObject(ctx, g.client, path, query, func(page *admin.ObjectList) error {
			if page.Metadata.Incomplete != "" && !query.Has("continue") {
				fmt.Fprintf(g.cmd.ErrOrStderr(), "watcherd: %s; objects may be missing\n", clean(page.Metadata.Incomplete))
			}
			g.printer.own = page.Metadata.Columns
			return visitAll(page.Items, visit)
		})
	}
	if g.printer.table() && g.store.dir == "" { // the columns are those of now
		var page admin.ObjectList
		if err := g.client.Get(ctx, path, url.Values{"limit": {"1"}, "columns": {"true"}}, &page); err == nil {
			g.printer.own = page.Metadata.Columns
		}
	}
	query.Del("columns")
	query.Set("at", g.printer.at.UTC().Format(time.RFC3339Nano))
	inexact := map[history.As][]string{} // names of objects
	defer func() { printInexact(g.cmd.ErrOrStderr(), inexact) }()
	var unread []history.Unread
	for as := history.Exact; ; {
		var page history.List
		if err := g.client.Get(ctx, path, query, &page); err != nil {
			return err
		}
		for i := range page.Items {
			s := &page.Items[i]
			if s.As != history.Exact {
				inexact[s.As] = append(inexact[s.As], strings.TrimPrefix(s.Namespace+"/"+s.Name, "/"))
			}
			if len(s.Object) > 0 {
				if err := visit(s.Object); err != nil {
					return err
				}
			}
		}
		if as == history.Exact {
			as = page.As
		}
		if len(unread) == 0 {
			unread = page.Unread
		}
		if page.Continue == "" {
			if as != history.Exact {
				fmt.Fprintf(g.cmd.ErrOrStderr(), "watcherd: objects may be missing: %s\n", worthWords(as))
			}
			printUnread(g.cmd.ErrOrStderr(), unread)
			return nil
		}
		query.Set("continue", page.Continue)
	}
}

// printInexact has a line for each reason for which states of objects are not exact.
func printInexact(w io.Writer, inexact map[history.As][]string) {
	const shown = 3
	for _, as := range slices.Sorted(maps.Keys(inexact)) {
		names, more := inexact[as], ""
		if len(names) > shown {
			names, more = names[:shown], fmt.Sprintf(" and %d more", len(names)-shown)
		}
		fmt.Fprintf(w, "watcherd: the state of %s%s is not known exactly: %s\n", clean(strings.Join(names, ", ")), more, worthWords(as))
	}
}

// worthWords is why a state of the past is not exact.
func worthWords(as history.As) string {
	switch as {
	case history.UnknownBefore:
		return "nothing is recorded of that time"
	case history.Gap:
		return "the history has a gap there"
	}
	return string(as)
}

func visitAll(items []json.RawMessage, visit func(raw []byte) error) error {
	for _, item := range items {
		if err := visit(item); err != nil {
			return err
		}
	}
	return nil
}

// eachObject reads a list page by page.
func eachObject(ctx context.Context, c *client.Client, path string, query url.Values, visit func(*admin.ObjectList) error) error {
	for {
		var page admin.ObjectList
		if err := c.Get(ctx, path, query, &page); err != nil {
			return err
		}
		if err := visit(&page); err != nil || page.Metadata.Continue == "" {
			return err
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// follow prints the objects, then each that changes, until the command is interrupted.
func (g *getter) follow(w *wanted) error {
	var st status.Status
	if err := g.client.Get(g.cmd.Context(), "/api/v1/status", nil, &st); err != nil {
		return err
	}
	wanted, err := labels.Parse(g.selector)
	if err != nil {
		return err
	}
	printed := map[string]string{} // versions; the log repeats what came before the list
	row := func(raw []byte) error {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(raw, &o); err != nil {
			return err
		}
		key := o.Namespace + "/" + o.Name
		if !wanted.Matches(labels.Set(o.Labels)) || o.ResourceVersion != "" && printed[key] == o.ResourceVersion {
			return nil
		}
		printed[key] = o.ResourceVersion
		return g.printer.add(raw)
	}
	if err := g.show(w, row); err != nil {
		return err
	}
	if len(g.empty) > 0 {
		g.noteEmpty()
	}
	query := url.Values{"resource": {w.resource}, "since": {strconv.FormatUint(st.Store.LastEvent, 10)}}
	setGiven(query, map[string]string{"namespace": g.namespace, "name": strings.Join(w.names, "")})
	t := &tail{notes: g.cmd.ErrOrStderr(), show: func(e *event.Event) error {
		if e.Type == event.Gap && e.Gap.Cause == record.CauseQuiet {
			return nil // what is printed is what there is
		}
		if e.Type == event.Gap {
			_, err := fmt.Fprintf(g.cmd.ErrOrStderr(), "watcherd: history of %s was lost; run the command again for the state of now\n", e.Gap.Resource)
			return err
		}
		if len(e.Object) == 0 {
			return nil
		}
		return errors.Join(row(e.Object), g.printer.flush())
	}}
	return t.follow(g.cmd.Context(), g.client, query, false)
}
