package main

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/status"
)

// Bounds of a completion, for which a person waits.
const (
	completeTimeout = 300 * time.Millisecond
	maxCompletions  = 500
)

// completion completes a word from what a daemon answers. Without one it has nothing to offer,
// and reports nothing.
type completion func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string, word string) []string

// completions are those of flags, by name.
var completions = map[string]completion{
	"sink": ofStatus(func(st *status.Status) []string {
		return namesOf(st.Sinks, func(s status.Sink) string { return s.Name })
	}),
	"route": ofStatus(func(st *status.Status) []string {
		return namesOf(st.Routes, func(r status.Route) string { return r.Name })
	}),
	"watch": ofStatus(func(st *status.Status) []string {
		return namesOf(st.Watches, func(w status.Watch) string { return w.Name })
	}),
	"resource":  completeResources,
	"exclude":   completeResources,
	"namespace": completeNamespaces,
}

// values are what flags take, by name.
var values = map[string][]string{
	"type":       {"added", "updated", "deleted", "sync", "gap"},
	"group":      {"owner", "none"},
	"log-format": {"text", "json"},
	"log-level":  {"debug", "info", "warn", "error"},
	"since":      someTimes, "until": someTimes, "at": someTimes, "from": someTimes, "to": someTimes,
}

var someTimes = []string{"15m", "1h", "24h", "7d"}

// addCompletions completes the flags and arguments of all commands.
func addCompletions(root *cobra.Command) {
	for _, cmd := range allCommands(root) {
		register := func(flag string, f cobra.CompletionFunc) {
			if _, done := cmd.GetFlagCompletionFunc(flag); cmd.Flag(flag) != nil && !done {
				mustMark(cmd.RegisterFlagCompletionFunc(flag, f))
			}
		}
		for flag, f := range completions {
			register(flag, f.asked)
		}
		for flag, list := range values {
			register(flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp))
		}
		register("context", completeContexts)
		switch {
		case cmd.ValidArgsFunction != nil:
		case cmd.Name() == "watch":
			cmd.ValidArgsFunction = completion(completeResources).asked
		case strings.Contains(cmd.Use, "RESOURCE"):
			cmd.ValidArgsFunction = completion(completeObjects).asked
		case strings.HasSuffix(cmd.Use, " SINK"):
			cmd.ValidArgsFunction = completions["sink"].asked
		}
	}
}

// asked is the completion as cobra calls it.
func (f completion) asked(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	text := func(flag string) string {
		if f := cmd.Flag(flag); f != nil {
			return f.Value.String()
		}
		return ""
	}
	flags := adminFlags{
		url: text("admin"), config: text("config"), tokenFile: text("token-file"),
		caFile: text("ca-file"), certFile: text("cert-file"), keyFile: text("key-file"),
	}
	c, err := flags.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	list := slices.DeleteFunc(f(ctx, c, cmd, args, word), func(s string) bool { return !strings.HasPrefix(s, word) || !isWord(s) })
	slices.Sort(list)
	list = slices.Compact(list)
	return list[:min(len(list), maxCompletions)], cobra.ShellCompDirectiveNoFileComp
}

// isWord reports whether a shell takes a text as it is, and the command takes it as no flag: names of roles may be either.
func isWord(s string) bool {
	return s == clean(s) && !strings.ContainsAny(s, " $`\"'\\|&;<>()[]{}*?!#~^") && !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, "=")
}

func namesOf[T any](list []T, name func(T) string) []string {
	var names []string
	for _, v := range list {
		names = append(names, name(v))
	}
	return names
}

// ofStatus completes from the daemon's status.
func ofStatus(names func(*status.Status) []string) completion {
	return func(ctx context.Context, c *client.Client, _ *cobra.Command, _ []string, _ string) []string {
		var st status.Status
		if err := c.Get(ctx, "/api/v1/status", nil, &st); err != nil {
			return nil
		}
		return names(&st)
	}
}

func completeResources(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string, word string) []string {
	return ofStatus(func(st *status.Status) []string {
		return namesOf(st.Caches, func(c status.Cache) string { return c.Resource })
	})(ctx, c, cmd, args, word)
}

func completeObjects(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string, word string) []string {
	switch {
	case len(args) == 0:
		return completeResources(ctx, c, cmd, args, word)
	case len(args) == 1 || strings.HasPrefix(cmd.Use, "get "):
		query := url.Values{}
		if f := cmd.Flag("namespace"); f != nil && f.Changed {
			query.Set("namespace", strings.Trim(f.Value.String(), "[]"))
		}
		return objectNames(ctx, c, args[0], query, word, func(o *metav1.PartialObjectMetadata) string { return o.Name })
	default:
		return nil
	}
}

// completeNamespaces completes with the namespaces that the resource of the command has objects
// in, or all.
func completeNamespaces(ctx context.Context, c *client.Client, _ *cobra.Command, args []string, word string) []string {
	if len(args) > 0 {
		resource, _, _ := strings.Cut(args[0], "/")
		return objectNames(ctx, c, resource, url.Values{}, word, func(o *metav1.PartialObjectMetadata) string { return o.Namespace })
	}
	return objectNames(ctx, c, "namespaces", url.Values{}, word, func(o *metav1.PartialObjectMetadata) string { return o.Name })
}

// objectNames returns names of the objects of a resource that begin with word: those that are
// found in time.
func objectNames(ctx context.Context, c *client.Client, resource string, query url.Values, word string, name func(*metav1.PartialObjectMetadata) string) (names []string) {
	query.Set("metadata", "true")
	query.Set("limit", "5000")
	for {
		var page admin.ObjectList
		if err := c.Get(ctx, "/api/v1/objects/"+url.PathEscape(resource), query, &page); err != nil {
			return names
		}
		for _, item := range page.Items {
			var o metav1.PartialObjectMetadata
			if json.Unmarshal(item, &o) == nil && name(&o) != "" && strings.HasPrefix(name(&o), word) {
				names = append(names, name(&o))
			}
		}
		if page.Metadata.Continue == "" || len(names) > maxCompletions {
			return names
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

func completeContexts(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cmd.Flag("kubeconfig").Value.String()
	config, err := rules.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range config.Contexts {
		if isWord(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}
