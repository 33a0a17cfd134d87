package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

func newInitCommand() *cobra.Command {
	var kube kubeFlags
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a configuration to start with",
		Long: "Init asks the cluster for the resources that it serves, and writes a configuration with comments that watches the\n" +
			"workloads, services and custom resources among them and prints their changes. It writes ./watcherd.yaml or FILE, - for\n" +
			"standard output, and does not overwrite a file.",
		Example: "  watcherd init && watcherd validate --server && watcherd run\n  watcherd init - --context prod",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := strings.Join(append(args, defaultConfig)[:1], "")
			if _, err := os.Stat(file); file != "-" && err == nil {
				return fmt.Errorf("%s exists: name another file, or - for standard output", file)
			}
			cfg, cluster, err := kube.load()
			if err != nil {
				return err
			}
			resolver, err := servedBy(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			text, err := starter(cluster, resolver)
			if err != nil {
				return err
			}
			if file == "-" {
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
				return err
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s exists: name another file, or - for standard output", file)
			}
			if err != nil {
				return err
			}
			_, err = f.WriteString(text)
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			config := ""
			if file != defaultConfig {
				config = " --config " + file
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is written; next: watcherd validate --server%s, then watcherd run%s\n", file, config, config)
			return err
		},
	}
	kube.bind(cmd.Flags())
	return cmd
}

// starters are the watches of Kubernetes' own resources.
var starters = []struct {
	name, comment string
	resources     []string
}{
	{"workloads", "Workloads.", []string{"deployments.apps", "statefulsets.apps", "daemonsets.apps", "cronjobs.batch", "pods"}},
	{"network", "Services and routes to them.", []string{"services", "ingresses.networking.k8s.io", "httproutes.gateway.networking.k8s.io", "gateways.gateway.networking.k8s.io"}},
	{"settings", "Configuration. Values of Secrets are redacted: a hash shows that one changed.", []string{"configmaps", "secrets"}},
}

// starter is a configuration for the resources that a cluster serves.
func starter(cluster string, resolver *dynamicfactory.Resolver) (string, error) {
	all, err := resolver.Resolve("*")
	if err != nil {
		return "", err
	}
	name, err := yaml.Marshal(cluster)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# Every key: watcherd schema, or docs/configuration.md. A running watcherd follows this file.
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig

cluster:
  name: %s
watches:
`, name)
	served, custom := map[string]bool{}, map[string][]string{}
	for _, r := range all {
		served[r.GVR.GroupResource().String()] = true
		if group := r.GVR.Group; strings.Contains(group, ".") && !scheme.Scheme.IsGroupRegistered(group) && !strings.HasSuffix(group, ".k8s.io") {
			custom[group] = append(custom[group], r.GVR.Resource)
		}
	}
	for _, s := range starters {
		resources := slices.DeleteFunc(slices.Clone(s.resources), func(r string) bool { return !served[r] })
		if len(resources) > 0 {
			fmt.Fprintf(&b, "# %s\n- name: %s\n  resources: [%s]\n", s.comment, s.name, strings.Join(resources, ", "))
		}
	}
	if len(custom) > 0 {
		fmt.Fprintf(&b, "# Custom resources; a kind that the cluster serves later is watched, too.\n- name: custom\n  resources:\n")
		for _, group := range slices.Sorted(maps.Keys(custom)) {
			slices.Sort(custom[group])
			fmt.Fprintf(&b, "  - %q   # %s\n", "*."+group, strings.Join(custom[group], ", "))
		}
	}
	b.WriteString(`
# Which changes go to which sink. "meaningful" leaves out updates that controllers make by themselves.
routes:
- name: changes
  events: [added, updated, deleted]
  changed: meaningful
  payload: [object, summary]
  sinks: [console]
  # when: object.metadata.namespace.startsWith("team-")      # a filter, in CEL

sinks:
- name: console
  stdout: {pretty: true}
# - name: archive
#   file: {path: "./events/{resource}.jsonl", rotate: {maxBytes: 100Mi, keep: 14}}
# - name: ops
#   webhook:
#     url: https://ops.example.com/k8s
#     headers: {Authorization: {env: OPS_TOKEN}}
`)
	return b.String(), nil
}
