package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/rbac"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// askTimeout bounds each round of questions to the API server.
const askTimeout = 30 * time.Second

func newRBACCommand() *cobra.Command {
	var (
		file     string
		server   bool
		optional bool
		kube     kubeFlags
		to       rbac.ServiceAccount
	)
	cmd := &cobra.Command{
		Use:   "rbac [FILE | --config FILE]",
		Short: "Print the permissions that a configuration needs",
		Long: "Rbac prints, as YAML, the least Roles and ClusterRoles with which the daemon can run a configuration, and\n" +
			"their bindings to a service account. A watch that names its namespaces plainly needs Roles there; any other\n" +
			"needs a ClusterRole.\n\n" +
			"It asks no cluster unless --server, --kubeconfig or --context is given. Then short names are resolved, and a\n" +
			"wildcard becomes the resources that are served at present: for kinds that come later, run it again.",
		Example: "  watcherd rbac --config watcherd.yaml --namespace monitoring | kubectl apply -f -\n" +
			"  watcherd rbac --config watcherd.yaml --optional=false",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := watcherd.Load(file, kinds.Builtin())
			if err != nil {
				return err
			}
			var find rbac.Finder = rbac.Offline{}
			if server || kube.given() {
				cfg, _, err := kube.load()
				if err != nil {
					return err
				}
				cfg.QPS, cfg.Burst = st.KubeAPI.QPS, st.KubeAPI.Burst
				resolver, err := servedBy(cmd.Context(), cfg)
				if err != nil {
					return err
				}
				find = rbac.Served{Resolver: resolver}
			}
			needs, err := rbac.Needs(st, find)
			if err != nil {
				return fmt.Errorf("no rule can be made for some resources:\n%w", err)
			}
			if !optional {
				needs = rbac.Required(needs)
			}
			if cmd.Flags().Changed("namespace") {
				if err := rbac.WriteAccount(cmd.OutOrStdout(), to); err != nil {
					return err
				}
			}
			return rbac.WriteManifest(cmd.OutOrStdout(), needs, to)
		},
	}
	addConfigFlag(cmd, &file)
	flags := cmd.Flags()
	flags.BoolVar(&server, "server", false, "resolve names and wildcards with the cluster")
	flags.BoolVar(&optional, "optional", true, "include optional rules")
	flags.StringVar(&to.Name, "service-account", "watcherd", "name of the daemon's service account, and part of the roles' names")
	flags.StringVarP(&to.Namespace, "namespace", "n", "watcherd", "namespace of the service account; given, the manifest has it and the service account, too")
	kube.bind(flags)
	return cmd
}

// given reports whether the command line names a cluster.
func (f *kubeFlags) given() bool { return f.kubeconfig != "" || f.context != "" }

// unserved returns an error for each of the resources that the cluster does not serve for a watch.
func unserved(ctx context.Context, cfg *rest.Config, resources []string) (list []error, err error) {
	resolver, err := servedBy(ctx, cfg)
	if err != nil {
		return nil, err
	}
	served, err := resolver.Resolve("*")
	if err != nil {
		return nil, err
	}
	for _, name := range resources {
		switch _, err := resolver.Resolve(name); {
		case errors.Is(err, dynamicfactory.ErrNotServed):
			text := fmt.Sprintf("the cluster does not serve %q", name)
			if hint := resourceHint(name, served); hint != "" {
				text += "; " + hint
			}
			list = append(list, errors.New(text))
		case errors.Is(err, dynamicfactory.ErrNotWatchable):
			list = append(list, fmt.Errorf("%q cannot be listed and watched", name))
		}
	}
	return list, nil
}

// servedBy asks a cluster what it serves.
func servedBy(ctx context.Context, cfg *rest.Config) (*dynamicfactory.Resolver, error) {
	resolver, err := dynamicfactory.NewResolver(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("no answer in time"))
	defer cancel()
	if err := resolver.Refresh(ctx); err != nil {
		return nil, err
	}
	return resolver, nil
}
