package main

import (
	"cmp"
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
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/event"
)

// historyOptions are the flags of history, diff and changes.
type historyOptions struct {
	admin     adminFlags
	store     storeFlag
	namespace string
	from, to  string
	ends      [2]string // the flags of from and to
	manager   string
	path      string
	when      string
	group     string
	types     []string
	limit     int
	output    string
}

const timesHelp = "A time is how long ago (15m, 2h, 3d) or when (2026-01-31T12:00:00Z)."

func newHistoryCommand() *cobra.Command {
	o := historyOptions{ends: [2]string{"--since", "--until"}}
	cmd := &cobra.Command{
		Use:   "history RESOURCE [NAME]",
		Short: "Show recorded changes of a resource or an object",
		Long: "History prints the changes that a running daemon has recorded, the newest first: when, what, by which field\n" +
			"manager. Standard error has a warning if changes may be missing. " + timesHelp,
		Example: "  watcherd history deploy web -n prod\n  watcherd history deploy --since 2h --by kubectl-edit\n  watcherd history deploy web -n prod --path spec.replicas -o json\n" +
			"  watcherd history pods --when 'object.status.phase == \"Failed\"'",
		Args: cobra.RangeArgs(1, 2),
		RunE: o.store.reading(&o.admin, o.history),
	}
	o.bind(cmd, "only objects of this namespace")
	flags := cmd.Flags()
	flags.StringVar(&o.from, "since", "", "only changes since this time")
	flags.StringVar(&o.to, "until", "", "only changes until this time")
	flags.StringVar(&o.manager, "by", "", "only changes by this field manager")
	flags.StringVar(&o.path, "path", "", "only changes of the value at this path, such as spec.replicas")
	flags.StringVar(&o.when, "when", "", "only changes on which this expression (CEL) is true, as in a route's when")
	flags.StringSliceVar(&o.types, "type", nil, "only changes of this type: added, updated, deleted, sync or gap")
	flags.IntVar(&o.limit, "limit", 100, "show at most this number of changes; 0: all")
	addOutputFlag(cmd, &o.output, "table, json or yaml", "table", "json", "yaml")
	return cmd
}

func newDiffCommand() *cobra.Command {
	o := historyOptions{ends: [2]string{"--from", "--to"}}
	cmd := &cobra.Command{
		Use:   "diff RESOURCE NAME",
		Short: "Compare the states of an object at two times",
		Long: "Diff prints the unified diff, as YAML, of an object's states at two times: by default that of its last recorded\n" +
			"change. Items of lists are matched by name. " + timesHelp,
		Example: "  watcherd diff deploy web -n prod\n  watcherd diff deploy web -n prod --from 2h\n  watcherd diff cm app -n prod --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z",
		Args:    cobra.RangeArgs(1, 2),
		RunE:    o.store.reading(&o.admin, o.diff),
	}
	o.bind(cmd, "namespace of the object; may be left out if only one has an object of the name")
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "time of the first state (default: before the last change)")
	flags.StringVar(&o.to, "to", "", "time of the second state (default: now)")
	flags.SetNormalizeFunc(sinceIsFrom)
	return cmd
}

func newChangesCommand() *cobra.Command {
	o := historyOptions{ends: [2]string{"--from", "--to"}}
	cmd := &cobra.Command{
		Use:   "changes (--from TIME | --store DIR) [--to TIME]",
		Short: "Show what a period changed",
		Long: "Changes prints the net change of every object from one time to another: created, changed or deleted. Objects\n" +
			"that ended as they began are counted. Standard error has the verdict: complete, or the gaps. " + timesHelp,
		Example: "  watcherd changes --from 1h\n  watcherd changes --from 10m --group owner\n  watcherd changes --store recording\n  watcherd changes --from 2026-01-31T12:00:00Z --to 2026-01-31T12:10:00Z -n prod -o json",
		RunE:    o.store.reading(&o.admin, o.changes),
	}
	o.bind(cmd, "only objects of this namespace")
	flags := cmd.Flags()
	flags.StringVar(&o.group, "group", "none", "owner: fold the consequences below the objects that they follow from, with counts; none: a flat list")
	flags.StringVar(&o.from, "from", "", "the beginning; required, except for a recording (default: its beginning)")
	flags.StringVar(&o.to, "to", "", "the end (default: now; without --from, the end of the recording)")
	flags.SetNormalizeFunc(sinceIsFrom)
	addOutputFlag(cmd, &o.output, "table, json or yaml", "table", "json", "yaml")
	return cmd
}

// sinceIsFrom takes --since and --until, which commands about events have, for --from and --to.
func sinceIsFrom(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "since":
		name = "from"
	case "until":
		name = "to"
	}
	return pflag.NormalizedName(name)
}

func (o *historyOptions) bind(cmd *cobra.Command, namespaceHelp string) {
	o.admin.bind(cmd)
	o.store.bind(cmd)
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "", namespaceHelp)
}

func (o *historyOptions) query(ctx context.Context, more map[string]string) (url.Values, error) {
	q := url.Values{}
	now := o.admin.now(ctx)
	for _, end := range []struct{ key, flag, text string }{{"from", o.ends[0], o.from}, {"to", o.ends[1], o.to}} {
		at, err := timeFlag(end.flag, end.text, now)
		if err != nil {
			return nil, err
		}
		if !at.IsZero() {
			q.Set(end.key, at.UTC().Format(time.RFC3339Nano))
		}
	}
	setGiven(q, map[string]string{"namespace": o.namespace, "manager": o.manager, "path": o.path, "when": o.when, "type": strings.Join(o.types, ",")})
	setGiven(q, more)
	return q, nil
}

// named are the resource and the name of RESOURCE NAME or RESOURCE/NAME.
func named(args []string) (resource, name string, err error) {
	resource, name, slash := strings.Cut(args[0], "/")
	if len(args) == 2 {
		if slash {
			return "", "", &usageError{errors.New("give the name once: RESOURCE NAME or RESOURCE/NAME")}
		}
		name = args[1]
	}
	return resource, name, nil
}

func (o *historyOptions) history(cmd *cobra.Command, args []string) error {
	if o.limit < 0 {
		return &usageError{errors.New("--limit is a number of changes")}
	}
	resource, name, err := named(args)
	if err != nil {
		return err
	}
	client, err := o.admin.client()
	if err != nil {
		return err
	}
	query, err := o.query(cmd.Context(), map[string]string{"resource": resource, "name": name})
	if err != nil {
		return err
	}
	notes := cmd.ErrOrStderr()
	p := newProgress(notes)
	page, err := listChanges(cmd.Context(), client, query, o.limit, func(page *history.Page) {
		p.show(fmt.Sprintf("%d found, back to %s", len(page.Items), stamp(page.Reached)))
	})
	p.clear()
	if err != nil {
		return err
	}
	if page.Failed > 0 {
		fmt.Fprintf(notes, "watcherd: --when fails on %s, the first: %s\n", plural(page.Failed, "change"), clean(page.FirstError))
	}
	if page.Continue != "" {
		are := "are"
		if o.path != "" || o.when != "" { // which the older ones were not tested for
			are = "may be"
		}
		fmt.Fprintf(notes, "watcherd: there %s older changes; --limit shows more than %d\n", are, o.limit)
	}
	printVerdict(notes, &page.Span)
	if o.output != "table" {
		return printStructured(cmd.OutOrStdout(), o.output, page)
	}
	if len(page.Items) == 0 {
		text := "No changes found."
		if page.Absent > 0 { // the field may be misspelt
			text = fmt.Sprintf("No changes found; a field that --when reads is missing in %s.", plural(page.Absent, "change"))
		}
		_, err := fmt.Fprintln(notes, text)
		return err
	}
	t := newTable(cmd.OutOrStdout(), "TIME", "TYPE", "NAMESPACE", "NAME", "MANAGER", "SUMMARY")
	for i := range page.Items {
		c := &page.Items[i]
		text := c.Summary
		if c.Gap != nil {
			text = gapWords(c.Gap.Cause) + " since " + stamp(c.Gap.From) + ": " + c.Gap.Cause
		}
		t.row(stamp(c.Time), string(c.Type), c.Namespace, c.Name, c.Manager, text)
	}
	return t.flush()
}

// stamp is a time as flags take it, rounded up: the state at the time of a change has that.
func stamp(t time.Time) string {
	return roundedUp(t, time.Millisecond).Format("2006-01-02T15:04:05.000Z")
}

func roundedUp(t time.Time, to time.Duration) time.Time { return t.Add(to - 1).Truncate(to).UTC() }

// listChanges reads pages of changes, at most limit if that is not 0.
func listChanges(ctx context.Context, c *client.Client, query url.Values, limit int, progress func(*history.Page)) (*history.Page, error) {
	var all *history.Page
	for {
		size := 1000
		if limit > 0 {
			size = min(size, limit)
			if all != nil {
				size = min(size, limit-len(all.Items))
			}
		}
		query.Set("limit", strconv.Itoa(size))
		var page history.Page
		if err := c.Get(ctx, "/api/v1/history", query, &page); err != nil {
			return nil, err
		}
		if all == nil {
			all = &page
		} else {
			join(all, &page)
		}
		if !all.Reached.IsZero() {
			progress(all)
		}
		if all.Continue == "" || limit > 0 && len(all.Items) >= limit {
			return all, nil
		}
		query.Set("continue", all.Continue)
	}
}

// join adds the page that follows.
func join(all, page *history.Page) {
	all.Items, all.Continue, all.Scanned = append(all.Items, page.Items...), page.Continue, all.Scanned+page.Scanned
	all.Reached, all.Failed, all.FirstError = page.Reached, all.Failed+page.Failed, cmp.Or(all.FirstError, page.FirstError)
	all.Absent += page.Absent
	all.Complete = all.Complete && page.Complete
	if page.From.After(all.From) { // retention has deleted what was before it
		all.From = page.From
	}
	if len(all.Unread) == 0 {
		all.Unread = page.Unread
	}
	for _, g := range page.Gaps { // those found since
		if !slices.Contains(all.Gaps, g) {
			all.Gaps = append(all.Gaps, g)
		}
	}
}

// beginning is the first whole second since which every change is in the history.
func beginning(s *history.Span) string {
	return roundedUp(s.Since, time.Second).Format(time.RFC3339)
}

// missing reports whether changes of a period are not recorded, as far as it shows where.
func missing(s *history.Span) bool { return len(s.Gaps)+len(s.Unread) > 0 || !s.Since.IsZero() }

// gapWords is what is not known because of a gap.
func gapWords(cause string) string {
	if cause == record.CauseQuiet {
		return "no change was missed, except of objects that came and went,"
	}
	return "changes may be missing"
}

// outages puts gaps in which nothing was missed together if they have a time in common, as those of all resources after an
// outage of the API server; any other is alone.
func outages(gaps []event.GapData) (list [][]event.GapData) {
	open := -1 // the last of quiet gaps
	for i := range gaps {
		g := gaps[i]
		if open >= 0 && g.Cause == record.CauseQuiet && g.From.Before(list[open][0].To) && list[open][0].From.Before(g.To) {
			list[open] = append(list[open], g)
			continue
		}
		if list = append(list, []event.GapData{g}); g.Cause == record.CauseQuiet {
			open = len(list) - 1
		}
	}
	return list
}

func printVerdict(w io.Writer, s *history.Span) {
	for _, gaps := range outages(s.Gaps) {
		g, names := gaps[0], []string(nil)
		for i := range gaps {
			if gaps[i].From.Before(g.From) {
				g.From = gaps[i].From
			}
			if gaps[i].To.After(g.To) {
				g.To = gaps[i].To
			}
			name := strings.Join(strings.Fields(gaps[i].Resource.String()+" "+gaps[i].Namespace+" "+gaps[i].Name), " ")
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		fmt.Fprintf(w, "watcherd: %s: %s from %s to %s: %s\n", clean(strings.Join(firstNamed(names), ", ")), gapWords(g.Cause), stamp(g.From), stamp(g.To), clean(g.Cause))
	}
	printUnread(w, s.Unread)
	switch {
	case s.Complete:
	case !s.Since.IsZero():
		fmt.Fprintf(w, "watcherd: not everything since %s is recorded: the history begins at %s\n", stamp(s.From), beginning(s))
	case len(s.Gaps) > 0 || len(s.Unread) > 0:
	case s.From.Equal(s.To):
		fmt.Fprintf(w, "watcherd: nothing is recorded up to %s\n", stamp(s.To))
	default:
		fmt.Fprintf(w, "watcherd: not everything since %s is recorded\n", stamp(s.From))
	}
}

// printUnread has a line for those that are not read for one cause, with the earliest time of them.
func printUnread(w io.Writer, all []history.Unread) {
	const shown = 5
	for len(all) > 0 {
		u, later := all[0], ""
		var names []string
		all = slices.DeleteFunc(slices.Clone(all), func(other history.Unread) bool {
			if other.Cause != u.Cause {
				return false
			}
			names = append(names, strings.TrimSpace(other.Resource+" "+other.Namespace))
			if !other.Since.Equal(u.Since) {
				later = " or later"
			}
			if other.Since.Before(u.Since) {
				u.Since = other.Since
			}
			return true
		})
		more := ""
		if n := len(names) - shown; n > 0 {
			names, more = names[:shown], fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(w, "watcherd: changes of %s%s since %s%s are not read yet: %s\n", clean(strings.Join(names, ", ")), more, stamp(u.Since), later, clean(u.Cause))
	}
}

// object finds the object of RESOURCE NAME, and returns its path in the HTTP interface.
func (o *historyOptions) object(ctx context.Context, args []string) (c *client.Client, path string, err error) {
	resource, name, err := named(args)
	if err != nil {
		return nil, "", err
	}
	if name == "" {
		return nil, "", &usageError{errors.New("name an object: RESOURCE NAME or RESOURCE/NAME")}
	}
	if c, err = o.admin.client(); err != nil {
		return nil, "", err
	}
	namespace := o.namespace
	if namespace == "" {
		namespace, err = namespaceOf(ctx, c, resource, name)
	}
	return c, "/api/v1/objects/" + url.PathEscape(resource) + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name), err
}

func (o *historyOptions) diff(cmd *cobra.Command, args []string) error {
	query, err := o.query(cmd.Context(), nil)
	if err != nil {
		return err
	}
	query.Del("namespace") // the path has it
	client, path, err := o.object(cmd.Context(), args)
	if err != nil {
		return err
	}
	var d history.Difference
	if err := client.Get(cmd.Context(), path+"/diff", query, &d); err != nil {
		return err
	}
	if d.From.As == history.UnknownBefore && d.To.As == history.UnknownBefore {
		return errors.New("neither of the states is recorded: the history has nothing of these times")
	}
	for _, s := range []*history.State{&d.From, &d.To} {
		switch s.As {
		case history.UnknownBefore:
			fmt.Fprintln(cmd.ErrOrStderr(), "watcherd: one of the states is not recorded; the other is compared with nothing")
		case history.Gap:
			fmt.Fprintln(cmd.ErrOrStderr(), "watcherd: one of the times is in a gap: the last state before it is compared")
		}
	}
	printUnread(cmd.ErrOrStderr(), d.Unread)
	if d.Rekeyed {
		fmt.Fprintln(cmd.ErrOrStderr(), "watcherd: the redaction key changed between the states: whether redacted values differ is not known")
	}
	if d.Diff == "" {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "No difference.")
		return err
	}
	_, err = io.WriteString(cmd.OutOrStdout(), cleanLines(d.Diff))
	return err
}

func cleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

// cleaner is a writer of whole lines that cleans them.
type cleaner struct{ w io.Writer }

func (c cleaner) Write(b []byte) (int, error) {
	_, err := io.WriteString(c.w, cleanLines(string(b)))
	return len(b), err
}

// clusterScope stands for the namespace of an object without one in a path.
const clusterScope = "-"

// namespaceOf finds the one namespace that has, or had, an object of a name.
func namespaceOf(ctx context.Context, c *client.Client, resource, name string) (string, error) {
	page, err := listChanges(ctx, c, url.Values{"resource": {resource}, "name": {name}}, 100, nil)
	if err != nil {
		return "", err
	}
	var found []string
	add := func(namespace string) {
		if !slices.Contains(found, namespace) {
			found = append(found, namespace)
		}
	}
	for i := range page.Items {
		add(page.Items[i].Namespace)
	}
	// It may not have changed, or less lately than another of its name. Of a resource that is no longer watched the
	// history is all there is.
	query := url.Values{"name": {name}, "metadata": {"true"}}
	err = eachObject(ctx, c, "/api/v1/objects/"+url.PathEscape(resource), query, func(page *admin.ObjectList) error {
		return visitAll(page.Items, func(raw []byte) error {
			var o metav1.PartialObjectMetadata
			err := json.Unmarshal(raw, &o)
			add(o.Namespace)
			return err
		})
	})
	switch {
	case len(found) == 0 && err != nil:
		return "", err
	case len(found) == 0:
		return "", fmt.Errorf("no change of %s %q is recorded", resource, name)
	case len(found) > 1:
		slices.Sort(found)
		return "", &usageError{fmt.Errorf("several namespaces have %s %q: choose one with -n: %s", resource, name, strings.Join(found, ", "))}
	case found[0] == "":
		return clusterScope, nil
	}
	return found[0], nil
}

func (o *historyOptions) changes(cmd *cobra.Command, _ []string) error {
	if o.group != "none" && o.group != "owner" {
		return &usageError{fmt.Errorf("--group %q: use owner or none", o.group)}
	}
	if o.from == "" {
		from, to, err := o.store.period()
		if err != nil {
			return err
		}
		if from.IsZero() {
			return &usageError{errors.New("--from is required: the beginning of the period")}
		}
		o.from = from.Format(time.RFC3339Nano)
		o.to = cmp.Or(o.to, to.Format(time.RFC3339Nano))
	}
	query, err := o.query(cmd.Context(), map[string]string{"group": o.group})
	if err != nil {
		return err
	}
	var c history.Changes
	if err := o.admin.get(cmd.Context(), "/api/v1/changes", query, &c); err != nil {
		return err
	}
	if o.output != "table" {
		printCompleteness(cmd.ErrOrStderr(), &c)
		return printStructured(cmd.OutOrStdout(), o.output, c)
	}
	return printChanges(cmd.OutOrStdout(), cmd.ErrOrStderr(), &c)
}

// printChanges prints net changes as a table, and the verdict to notes.
func printChanges(w, notes io.Writer, c *history.Changes) error {
	var rows [][]string
	changed, unknown := 0, 0
	count := func(n *history.NetChange) {
		if n.Change == history.ChangeUnknown {
			unknown++
		} else {
			changed++
		}
	}
	row := func(n *history.NetChange) {
		rows = append(rows, []string{n.Change, n.Namespace, n.Resource.Resource + "/" + n.Name, strconv.Itoa(n.Count), strings.Join(n.Managers, ","), n.Summary})
	}
	for i := range c.Items {
		count(&c.Items[i])
		row(&c.Items[i])
	}
	for i := range c.Groups {
		g := &c.Groups[i]
		for i := range g.Items {
			count(&g.Items[i])
		}
		if g.Change != nil {
			count(g.Change)
			row(g.Change)
		} else {
			rows = append(rows, []string{"", g.Owner.Namespace, strings.ToLower(g.Owner.Kind) + "/" + g.Owner.Name, "0"})
		}
		for _, resource := range slices.Sorted(maps.Keys(g.Counts)) {
			all, parts := 0, []string(nil)
			for _, change := range slices.Sorted(maps.Keys(g.Counts[resource])) {
				n := g.Counts[resource][change]
				all, parts = all+n, append(parts, fmt.Sprintf("%d %s", n, change))
			}
			rows = append(rows, []string{"", "", "  " + resource, strconv.Itoa(all), "", strings.Join(parts, ", ")})
		}
	}
	if len(rows) > 0 {
		t := newTable(w, "CHANGE", "NAMESPACE", "NAME", "CHANGES", "MANAGERS", "SUMMARY")
		for _, cells := range rows {
			t.row(cells...)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	maybe := ""
	if unknown > 0 {
		maybe = fmt.Sprintf(", %d may have (unknown)", unknown)
	}
	fmt.Fprintf(notes, "watcherd: %s changed%s, %d ended as they began\n", plural(changed, "object"), maybe, c.Churned)
	printCompleteness(notes, c)
	return nil
}

// printCompleteness prints the verdict on net changes.
func printCompleteness(notes io.Writer, c *history.Changes) {
	switch {
	case c.Truncated:
		fmt.Fprintln(notes, "watcherd: incomplete: more objects changed; choose a shorter period")
		if missing(&c.Span) {
			printVerdict(notes, &c.Span)
		}
	case c.Complete:
		fmt.Fprintln(notes, "watcherd: complete: every change of the period is recorded")
	default:
		printVerdict(notes, &c.Span)
		if !c.Since.IsZero() {
			fmt.Fprintf(notes, "watcherd: --from %s shows what changed since then\n", beginning(&c.Span))
		}
	}
}
