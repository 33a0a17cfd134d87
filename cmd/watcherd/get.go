package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/history"
)

// getOptions are the flags of get.
type getOptions struct {
	admin     adminFlags
	store     storeFlag
	namespace string
	all       bool
	selector  string
	output    string
	at        string
}

func newGetCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get RESOURCE [NAME]",
		Short: "Show objects of the watches",
		Long: "Get prints objects from the caches of a running daemon. Objects outside its watches are missing,\n" +
			"dropped and redacted fields are not there either, and the API server is not asked. RESOURCE is what kubectl\n" +
			"takes: a plural, singular, short name or kind, with version and group if necessary. Without -n all namespaces\n" +
			"are shown.",
		Example: "  watcherd get pods\n  watcherd get deploy -n prod -l tier=web -o wide\n  watcherd get widgets.example.com blue -n prod -o yaml\n" +
			"  watcherd get configmaps -o name\n  watcherd get pods -n prod --at 2h",
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: o.store.reading(&o.admin, o.run),
	}
	o.admin.bind(cmd)
	o.store.bind(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "", "only objects of this namespace")
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "objects of all namespaces (the default)")
	flags.StringVarP(&o.selector, "selector", "l", "", "only objects with these labels, such as tier=web,env!=dev")
	addOutputFlag(cmd, &o.output, "table, wide, json, yaml or name", "table", "wide", "json", "yaml", "name")
	flags.StringVar(&o.at, "at", "", "show the objects as they were: how long ago (15m, 2h, 3d) or when (2026-01-31T12:00:00Z)")
	return cmd
}

func (o *getOptions) run(cmd *cobra.Command, args []string) error {
	if o.all && o.namespace != "" {
		return &usageError{errors.New("-n and -A exclude each other")}
	}
	if o.store.dir != "" && o.at == "" {
		return &usageError{errors.New("--store needs --at: the time of the states to show")}
	}
	if _, err := labels.Parse(o.selector); err != nil {
		return &usageError{fmt.Errorf("-l: %w", err)}
	}
	resource, name, err := named(args)
	if err != nil {
		return err
	}
	client, err := o.admin.client()
	if err != nil {
		return err
	}
	query := url.Values{"limit": {"1000"}}
	setGiven(query, map[string]string{"namespace": o.namespace, "labelSelector": o.selector, "name": name})
	full := o.output == "json" || o.output == "yaml"
	if !full {
		query.Set("metadata", "true")
	}
	var list *admin.ObjectList
	if o.at == "" {
		list, err = listObjects(cmd.Context(), client, resource, query)
	} else {
		list, err = o.objectsAt(cmd, client, resource, query)
	}
	if err != nil {
		return err
	}
	if list.Metadata.Incomplete {
		fmt.Fprintln(cmd.ErrOrStderr(), "watcherd: the watch is still reading its first list; more may come")
	}
	if len(list.Items) == 0 && (name != "" || !full) {
		return o.none(cmd.ErrOrStderr(), resource, name)
	}
	if full {
		if name != "" && len(list.Items) == 1 {
			return printStructured(cmd.OutOrStdout(), o.output, list.Items[0])
		}
		return printStructured(cmd.OutOrStdout(), o.output, list)
	}
	return o.print(cmd.OutOrStdout(), list.Items)
}

func listObjects(ctx context.Context, c *client.Client, resource string, query url.Values) (*admin.ObjectList, error) {
	var all *admin.ObjectList
	for {
		var page admin.ObjectList
		if err := c.Get(ctx, "/api/v1/objects/"+url.PathEscape(resource), query, &page); err != nil {
			return nil, err
		}
		next := page.Metadata.Continue
		page.Metadata.Continue, page.Metadata.RemainingItemCount = "", 0
		if all == nil {
			all = &page
		} else {
			all.Items = append(all.Items, page.Items...)
		}
		if next == "" {
			return all, nil
		}
		query.Set("continue", next)
	}
}

// objectsAt reads all the pages of a time, and reports unknown states.
func (o *getOptions) objectsAt(cmd *cobra.Command, c *client.Client, resource string, query url.Values) (*admin.ObjectList, error) {
	at, err := timeFlag("--at", o.at, time.Now())
	if err != nil {
		return nil, err
	}
	query.Set("at", at.UTC().Format(time.RFC3339Nano))
	query.Del("metadata")
	all, notes := &admin.ObjectList{APIVersion: "v1", Kind: "List", Items: []json.RawMessage{}}, cmd.ErrOrStderr()
	for {
		var page history.List
		if err := c.Get(cmd.Context(), "/api/v1/objects/"+url.PathEscape(resource), query, &page); err != nil {
			return nil, err
		}
		for i := range page.Items {
			s := &page.Items[i]
			if s.As != history.Exact {
				fmt.Fprintf(notes, "watcherd: the state of %s is not known exactly: %s\n", clean(strings.TrimPrefix(s.Namespace+"/"+s.Name, "/")), s.As)
			}
			if len(s.Object) > 0 {
				all.Items = append(all.Items, s.Object)
			}
		}
		if page.Continue == "" {
			if page.As != history.Exact {
				fmt.Fprintf(notes, "watcherd: objects may be missing at that time: %s\n", page.As)
			}
			return all, nil
		}
		query.Set("continue", page.Continue)
	}
}

func (o *getOptions) none(stderr io.Writer, resource, name string) error {
	where := ""
	if o.namespace != "" {
		where = " in namespace " + o.namespace
	}
	if name != "" {
		return fmt.Errorf("%s %q%s is not among the objects that the watches see", resource, name, where)
	}
	_, err := fmt.Fprintf(stderr, "No resources found%s.\n", where)
	return err
}

func (o *getOptions) print(w io.Writer, items []json.RawMessage) error {
	objects := make([]metav1.PartialObjectMetadata, len(items))
	namespaced := false
	for i, item := range items {
		if err := json.Unmarshal(item, &objects[i]); err != nil {
			return fmt.Errorf("the answer of the daemon is not understood: %w", err)
		}
		namespaced = namespaced || objects[i].Namespace != ""
	}
	if o.output == "name" {
		return printNames(w, objects)
	}
	header := []string{"NAME", "AGE"}
	if namespaced {
		header = append([]string{"NAMESPACE"}, header...)
	}
	if o.output == "wide" {
		header = append(header, "VERSION", "LABELS")
	}
	t := newTable(w, header...)
	now := time.Now()
	for i := range objects {
		m := &objects[i].ObjectMeta
		cells := []string{m.Name, age(m.CreationTimestamp.Time, now)}
		if m.CreationTimestamp.IsZero() {
			cells[1] = "<unknown>"
		}
		if namespaced {
			cells = append([]string{m.Namespace}, cells...)
		}
		if o.output == "wide" {
			text := labels.FormatLabels(m.Labels)
			cells = append(cells, m.ResourceVersion, text)
		}
		t.row(cells...)
	}
	return t.flush()
}

// printNames prints what kubectl takes as names: pod/web, deployment.apps/web.
func printNames(w io.Writer, objects []metav1.PartialObjectMetadata) error {
	for i := range objects {
		o := &objects[i]
		gv, err := schema.ParseGroupVersion(o.APIVersion)
		if err != nil {
			return err
		}
		kind := schema.GroupKind{Group: gv.Group, Kind: strings.ToLower(o.Kind)}
		if _, err := fmt.Fprintf(w, "%s/%s\n", clean(kind.String()), clean(o.Name)); err != nil {
			return err
		}
	}
	return nil
}
