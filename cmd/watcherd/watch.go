package main

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

type watchOptions struct {
	kube                         kubeFlags
	namespaces                   []string
	labelSelector, fieldSelector string
	present                      bool
	output                       string
}

func newWatchCommand() *cobra.Command {
	var o watchOptions
	cmd := &cobra.Command{
		Use:   "watch RESOURCE[,RESOURCE]...",
		Short: "Print changes of a cluster, without a daemon",
		Long: "Watch prints what changes in objects, as it happens: which fields, and by which field manager. It needs no\n" +
			"configuration and no daemon, and keeps nothing. Values of Secrets are hashed. RESOURCE is what kubectl takes.",
		Example: "  watcherd watch pods,deployments -n prod\n  watcherd watch '*.example.com'\n  watcherd watch configmaps -o json | jq .data.name",
		Args:    usageArgs(cobra.MinimumNArgs(1)),
		RunE:    o.run,
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&o.namespaces, "namespace", "n", nil, "only objects of this namespace")
	flags.StringVarP(&o.labelSelector, "selector", "l", "", "only objects with these labels, such as tier=web,env!=dev")
	flags.StringVar(&o.fieldSelector, "field-selector", "", "only objects with these fields, such as metadata.name=web")
	flags.BoolVar(&o.present, "present", false, "print the objects that are there first")
	addOutputFlag(cmd, &o.output, "pretty or json (CloudEvents, one per line)", "pretty", "json")
	o.kube.bind(flags)
	return cmd
}

func (o *watchOptions) run(cmd *cobra.Command, args []string) (err error) {
	rest, cluster, err := o.kube.load()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "watcherd-watch-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	watch := map[string]any{
		"name": "live", "resources": strings.Split(strings.Join(args, ","), ","), "snapshot": config.SnapshotNever, "history": false,
		"onMissing": config.MissingFail, "labelSelector": o.labelSelector, "fieldSelector": o.fieldSelector,
	}
	if o.present {
		watch["snapshot"] = config.SnapshotInitial
	}
	if len(o.namespaces) > 0 {
		watch["namespaces"] = map[string]any{"include": o.namespaces}
	}
	payload := []string{config.PayloadObject}
	if o.output == "pretty" {
		payload = append(payload, config.PayloadOldObject)
	}
	file := filepath.Join(dir, recordedConfig)
	state, err := temporaryConfig(file, map[string]any{"path": filepath.Join(dir, recordedStore), "minFree": "0"}, watch, map[string]any{
		"routes": []any{map[string]any{"name": "all", "payload": payload, "sinks": []string{"out"}}},
		"sinks":  []any{map[string]any{"name": "out", "stdout": map[string]any{"pretty": o.output == "pretty"}}},
	})
	if err != nil {
		return err
	}
	log, err := (&logFlags{format: "text", level: "warn"}).logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGPIPE) // nothing reads any more
	defer stop()
	return watcherd.Run(ctx, watcherd.Options{
		ConfigFile: file, Kinds: kinds.Builtin(), State: state, REST: rest, ClusterName: cluster, Logger: log,
		Stdout: cmd.OutOrStdout(), ShutdownTimeout: time.Second, Version: version(),
	})
}
