package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/nearest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/rbac"
	"github.com/watcherd/watcherd/internal/schemas"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

func newValidateCommand() *cobra.Command {
	var (
		file   string
		server bool
		strict bool
		diff   bool
		daemon adminFlags
		as     string
		kube   kubeFlags
		policy config.Policy
	)
	cmd := &cobra.Command{
		Use:   "validate [FILE | --config FILE]",
		Short: "Check a configuration",
		Long: "Validate reports every error in a configuration with its file, line and column.\n\n" +
			"With --server it also checks with the cluster that the resources are served and watchable, and that this user\n" +
			"(or the one given with --as) may watch them. It warns of fields that the schemas of the resources do not have.\n" +
			"It starts nothing, contacts no sink, and warns of environment variables and files that are missing where it\n" +
			"runs. Exit code 1: a watch would not run. A resource that is not served is an error only with onMissing: fail.\n" +
			"With --strict a warning is exit code 2.\n\n" +
			"With --diff it asks the running daemon which watches and sinks a reload to the file would start, stop and replace.",
		Example: "  watcherd validate\n  watcherd validate team.yaml\n  kubectl get configmap watcherd -o jsonpath='{.data.watcherd\\.yaml}' | watcherd validate -c -\n" +
			"  watcherd validate --config watcherd.yaml --server --as system:serviceaccount:watcherd:watcherd",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := watcherd.LoadWithin(file, kinds.Builtin(), policy)
			if err != nil {
				return err
			}
			c, err := config.Load(file, watcherd.Blocks(kinds.Builtin()))
			if err != nil {
				return err
			}
			found := slices.Concat(st.Warnings, st.Unavailable)
			warnings := len(found)
			for _, w := range found {
				fmt.Fprintf(cmd.OutOrStdout(), "warning: %v\n", w)
			}
			parts := []string{plural(len(st.Watches), "watch"), plural(len(st.Sinks), "sink")}
			if n := len(c.Routes); n > 0 {
				parts = slices.Insert(parts, 1, plural(n, "route"))
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s\n", display(file), strings.Join(parts, ", ")); err != nil {
				return err
			}
			if diff {
				if err := daemon.plan(cmd, file); err != nil {
					return err
				}
			}
			if !server {
				return strictly(strict, warnings)
			}
			cfg, _, err := kube.load()
			if err != nil {
				return err
			}
			cfg.QPS, cfg.Burst = st.KubeAPI.QPS, st.KubeAPI.Burst
			if as != "" {
				cfg.Impersonate = rest.ImpersonationConfig{UserName: as}
			}
			unknown, err := validateServer(cmd.Context(), cmd.OutOrStdout(), cfg, c, st)
			if err != nil {
				return err
			}
			return strictly(strict, warnings+unknown)
		},
	}
	addConfigFlag(cmd, &file)
	flags := cmd.Flags()
	flags.BoolVar(&server, "server", false, "also check against the cluster")
	flags.BoolVar(&diff, "diff", false, "also print what a reload of the running daemon to the file would do")
	daemon.bindAccess(cmd)
	flags.BoolVar(&strict, "strict", false, "exit with code 2 if there are warnings")
	flags.StringVar(&as, "as", "", "user to check for, such as the daemon's service account; requires the impersonate permission")
	bindPolicy(flags, &policy)
	kube.bind(flags)
	return cmd
}

// plan prints what a reload to a configuration would do.
func (f *adminFlags) plan(cmd *cobra.Command, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	f.config = file
	var out admin.Planned
	if err := f.post(cmd.Context(), "/api/v1/plan", admin.PlanRequest{Configuration: string(text)}, &out); err != nil {
		return err
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), out.Plan)
	return err
}

// strictly is the error of a configuration that has warnings.
func strictly(strict bool, warnings int) error {
	if !strict || warnings == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("%s, with --strict", plural(warnings, "warning"))}
}

// validateServer checks a configuration against a cluster. It returns an error if a
// watch would not run, otherwise how many fields and namespaces do not exist, and how many resources are misspelt.
func validateServer(ctx context.Context, out io.Writer, cfg *rest.Config, c *config.Config, st *plan.State) (warnings int, err error) {
	out = cleaner{out} // the servers choose names and messages
	resolver, err := servedBy(ctx, cfg)
	if err != nil {
		return 0, err
	}
	reviews, err := authorizationclient.NewForConfig(cfg)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("no answer in time"))
	defer cancel()
	misspelt, err := misspeltResources(out, resolver, c)
	if err != nil {
		return 0, err
	}
	unknown, err := unknownFields(out, cfg, resolver, c, st)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(out, "%s%s:\n", cfg.Host, identity(ctx, cfg)); err != nil {
		return 0, err
	}
	r := &serverReport{problems: map[string][]string{}}
	r.resources(st, resolver)
	absent, err := r.namespaces(ctx, cfg, st)
	if err != nil {
		return 0, err
	}
	// Resources without a rule are among the problems already.
	needs, _ := rbac.Needs(st, rbac.Served{Resolver: resolver})
	missing, err := rbac.Missing(ctx, reviews.SelfSubjectAccessReviews(), needs)
	if err != nil {
		return 0, err
	}
	r.refused(missing)
	return misspelt + unknown + absent, r.write(out, st, missing)
}

// identity describes the user of the requests, if the cluster reports it.
func identity(ctx context.Context, cfg *rest.Config) string {
	client, err := authenticationclient.NewForConfig(cfg)
	if err != nil {
		return ""
	}
	review, err := client.SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "" // a server older than this question
	}
	return ", as " + review.Status.UserInfo.Username
}

// serverReport is what is to be said of each watch.
type serverReport struct {
	problems map[string][]string // by watch
	notes    []string
	failing  int // problems that keep a watch from running
}

// resources looks for the resources of every watch.
func (r *serverReport) resources(st *plan.State, resolver *dynamicfactory.Resolver) {
	var claims plan.Claims
	for i := range st.Watches {
		w := &st.Watches[i]
		excluded := w.Excluder(func(name string) (schema.GroupResource, bool) {
			found, err := resolver.Resolve(name)
			if err != nil {
				return schema.GroupResource{}, false
			}
			return found[0].GVR.GroupResource(), true
		})
		for _, pattern := range w.Resources {
			found, err := resolver.Resolve(pattern)
			switch {
			case errors.Is(err, dynamicfactory.ErrNotServed) && !w.FailOnMissing:
				r.add(w.Name, "%s is not served: the watch waits until it is", pattern)
			case errors.Is(err, dynamicfactory.ErrNotServed):
				r.fail(w.Name, "%s is not served, and the watch has onMissing: fail", pattern)
			case errors.Is(err, dynamicfactory.ErrNotWatchable):
				r.fail(w.Name, "%s cannot be listed and watched", pattern)
			case err != nil:
				r.fail(w.Name, "%s: %v", pattern, err)
			}
			for _, f := range found {
				if excluded(f.GVR.GroupResource()) {
					continue
				}
				if len(w.Namespaces) > 0 && !f.Namespaced && !strings.HasPrefix(pattern, "*") {
					r.add(w.Name, "%s are in no namespace: a watch of namespaces leaves them out", f.GVR.Resource)
				}
				if len(w.Namespaces) > 0 && !f.Namespaced {
					continue
				}
				if err := claims.Add(w, f.GVR.GroupResource()); err != nil {
					r.fail(w.Name, "%v", err)
				}
				if len(f.Also) > 0 && f.GVR.Group != "" {
					r.add(w.Name, "%s means %s.%s, but other groups have the name too: write it with its group", pattern, f.GVR.Resource, f.GVR.Group)
				}
			}
		}
	}
}

// namespaces looks for the namespaces that watches name, and counts those that do not exist. One about
// which the user may not ask is taken to exist.
func (r *serverReport) namespaces(ctx context.Context, cfg *rest.Config, st *plan.State) (absent int, err error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return 0, err
	}
	for i := range st.Watches {
		for _, ns := range st.Watches[i].Namespaces {
			list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).
				List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + ns, Limit: 1}) // what the daemon asks
			if err == nil && len(list.Items) == 0 {
				absent++
				r.add(st.Watches[i].Name, "warning: namespace %s does not exist: nothing is read from it until it does", ns)
			}
		}
	}
	return absent, ctx.Err()
}

func (r *serverReport) refused(missing []rbac.Need) {
	for i := range missing {
		n := &missing[i]
		if n.Optional {
			r.notes = append(r.notes, fmt.Sprintf("cannot %s, which is optional: %s", n.Rule.String(), n.Reason))
		}
		for _, w := range n.Watches {
			r.fail(w, "cannot %s", n.Rule.String())
		}
	}
}

func (r *serverReport) add(watch, format string, args ...any) {
	r.problems[watch] = append(r.problems[watch], fmt.Sprintf(format, args...))
}

func (r *serverReport) fail(watch, format string, args ...any) {
	r.failing++
	r.add(watch, format, args...)
}

func (r *serverReport) write(out io.Writer, st *plan.State, missing []rbac.Need) error {
	var b strings.Builder
	for i := range st.Watches {
		name := st.Watches[i].Name
		problems := r.problems[name]
		if len(problems) == 0 {
			fmt.Fprintf(&b, "  watch %s: its resources are served and may be watched\n", name)
		}
		for _, p := range problems {
			fmt.Fprintf(&b, "  watch %s: %s\n", name, p)
		}
	}
	for _, n := range r.notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	if len(missing) > 0 {
		b.WriteString("missing rules:\n")
		if err := rbac.WriteRules(&b, missing); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return err
	}
	if r.failing > 0 {
		keep := "keep"
		if r.failing == 1 {
			keep = "keeps"
		}
		return fmt.Errorf("%s %s watches from running", plural(r.failing, "problem"), keep)
	}
	return nil
}

// misspeltResources warns of resources that are not served and have nearly the name of one that is, or that of a category.
func misspeltResources(out io.Writer, resolver *dynamicfactory.Resolver, c *config.Config) (count int, err error) {
	served, err := resolver.Resolve("*")
	if err != nil {
		return 0, err
	}
	check := func(at string, list []config.Resource) {
		for i := range list {
			name := list[i].String()
			if _, err := resolver.Resolve(name); !errors.Is(err, dynamicfactory.ErrNotServed) || errors.Is(err, dynamicfactory.ErrUncertain) {
				continue
			}
			if hint := resourceHint(name, served); hint != "" {
				count++
				fmt.Fprintf(out, "warning: %v\n", c.ErrorAt(fmt.Sprintf("%s[%d]", at, i), "%s is not served; %s", name, hint))
			}
		}
	}
	for i := range c.Watches {
		check(fmt.Sprintf("watches[%d].resources", i), c.Watches[i].Resources)
		check(fmt.Sprintf("watches[%d].excludeResources", i), c.Watches[i].ExcludeResources)
	}
	for i := range c.Routes {
		check(fmt.Sprintf("routes[%d].resources", i), c.Routes[i].Resources)
	}
	return count, nil
}

// resourceHint is what to write in place of a name that is not served; empty if it may be right, but later.
func resourceHint(name string, served []dynamicfactory.Resource) string {
	var members []string
	for i := range served {
		if slices.Contains(served[i].Categories, name) {
			members = append(members, served[i].GVR.GroupResource().String())
		}
	}
	if len(members) > 0 {
		slices.Sort(members)
		return "it is a category: name its resources, " + strings.Join(members, ", ")
	}
	if near := nearestResource(name, served); near != "" {
		return "did you mean " + near + "?"
	}
	return ""
}

// nearestResource is the resource that a name was likely meant to be, "" if none is near. A name with a group shares
// its group or its resource with that one: one that shares neither may be installed later.
func nearestResource(name string, served []dynamicfactory.Resource) string {
	p, err := selector.ParseResource(name)
	if err != nil || p.Wildcard() {
		return ""
	}
	var names []string
	for i := range served {
		switch r := served[i].GVR.GroupResource(); {
		case p.Bare():
			names = append(names, r.Resource)
		case r.Group == p.Group() || r.Resource == p.Name() || served[i].Singular == p.Name():
			names = append(names, r.String())
		}
	}
	if p.Bare() {
		return nearest.Of(p.Name(), names)
	}
	return nearest.Of(strings.TrimSuffix(p.Name()+"."+p.Group(), "."), names)
}

// unknownFields warns of the fields that a configuration names and that no resource they
// are about has.
func unknownFields(out io.Writer, cfg *rest.Config, resolver *dynamicfactory.Resolver, c *config.Config, st *plan.State) (count int, err error) {
	uses, err := schemas.Uses(c)
	if err != nil {
		return 0, err
	}
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return 0, err
	}
	server, err := schemas.NewServer(client.OpenAPIV3())
	if err != nil {
		_, err = fmt.Fprintf(out, "fields are not checked: %v\n", err)
		return 0, err
	}
	for i := range uses {
		u := &uses[i]
		lacking, err := lacking(server, resolver, st, u)
		if err != nil {
			_, err = fmt.Fprintf(out, "fields are not checked: %v\n", err)
			return count, err
		}
		if len(lacking) == 0 {
			continue
		}
		count++
		warning := c.ErrorAt(u.At, "no field %s in %s", u.Name, strings.Join(lacking, ", "))
		if u.Line > 0 {
			warning = c.ErrorWithin(u.At, u.Line, u.Column, "no field %s in %s", u.Name, strings.Join(lacking, ", "))
		}
		if _, err := fmt.Fprintf(out, "warning: %v\n", warning); err != nil {
			return 0, err
		}
	}
	return count, nil
}

// lacking returns the resources whose schemas lack a field, and none if one of them has the
// field or no schema.
func lacking(server *schemas.Server, resolver *dynamicfactory.Resolver, st *plan.State, u *schemas.Use) ([]string, error) {
	var names []string
	ofAll := u.Field[0].IsKey && u.Field[0].Key == "metadata" // what is not served has the same
	for _, s := range u.Scopes {
		limits := map[schema.GroupResource]bool{}
		fixed := len(s.Resources) > 0 // what is not served is not among them
		for _, r := range s.Resources {
			found, err := resolver.Resolve(r.String()) // what is not served has no field to check
			fixed = fixed && err == nil && !strings.Contains(r.String(), "*")
			for _, f := range found {
				limits[f.GVR.GroupResource()] = true
			}
		}
		for i := range st.Watches {
			w := &st.Watches[i]
			if len(s.Watches) > 0 && !slices.Contains(s.Watches, w.Name) {
				continue
			}
			for _, pattern := range w.Resources {
				found, err := resolver.Resolve(pattern)
				if err != nil && !fixed && !ofAll {
					return nil, nil // it is reported with the watch, and may have the field
				}
				for _, f := range found {
					if len(s.Resources) > 0 && !limits[f.GVR.GroupResource()] {
						continue
					}
					has, known, err := server.Has(f.GVR.GroupVersion().WithKind(f.Kind), u.Field)
					if err != nil || has || !known {
						return nil, err
					}
					if name := f.GVR.GroupResource().String(); !slices.Contains(names, name) {
						names = append(names, name)
					}
				}
			}
		}
	}
	return firstNamed(names), nil
}

// maxNamed is how many resources a warning names, and how many parts a problem of the status.
const maxNamed = 3

// firstNamed are the first maxNamed of names, with how many more there are.
func firstNamed(names []string) []string {
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return names
}
