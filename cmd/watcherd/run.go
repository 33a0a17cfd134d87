package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/heap"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/jetstream"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

func newRunCommand() *cobra.Command {
	var (
		configFile string
		kube       kubeFlags
		logs       logFlags
		first      string
		shutdown   time.Duration
		interval   time.Duration
		policy     config.Policy
	)
	cmd := &cobra.Command{
		Use:     "run [FILE | --config FILE]",
		Short:   "Run the daemon",
		Long:    "Run watches the configured resources and delivers their changes until SIGTERM or SIGINT.\nIt reloads the configuration when the file changes and on SIGHUP.\nThe file is ./watcherd.yaml, unless another one is given.",
		Example: "  watcherd run\n  watcherd run --config watcherd.yaml --context prod --log-format json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			// An invalid configuration is reported before a missing kubeconfig.
			state, err := watcherd.LoadWithin(configFile, kinds.Builtin(), policy)
			if err != nil {
				return err
			}
			rest, cluster, err := kube.load()
			if err != nil {
				return err
			}
			heap.Limit(log)
			stopCare := heap.Start(cmd.Context())
			defer stopCare()
			metrics := prometheus.NewRegistry()
			if err := watcherd.ExportClientGo(metrics); err != nil {
				return err
			}
			catchBrokenPipes()
			reload, stopReload := hangups(cmd.Context())
			defer stopReload()
			return watcherd.Run(cmd.Context(), watcherd.Options{
				ConfigFile: configFile, Kinds: kinds.Builtin(), State: state, Policy: policy, REST: rest, ClusterName: cluster, Logger: log,
				Journal: jetstream.Journal, FirstReplica: first,
				Stdout: cmd.OutOrStdout(), ShutdownTimeout: shutdown, Reload: reload, ReloadInterval: interval,
				Registerer: metrics, InformerName: "watcherd", Version: version(),
			})
		},
	}
	addConfigFlag(cmd, &configFile)
	bindPolicy(cmd.Flags(), &policy)
	kube.bind(cmd.Flags())
	logs.bind(cmd.Flags())
	cmd.Flags().DurationVar(&shutdown, "shutdown-timeout", 20*time.Second, "time to end after SIGTERM; deliveries in flight have half of it to finish")
	cmd.Flags().StringVar(&first, "first-replica", "", "host of the replica that begins store.journal with an empty store (default: any)")
	cmd.Flags().DurationVar(&interval, "reload-interval", 5*time.Second, "minimum time between two reloads of the configuration")
	mustMark(cmd.Flags().MarkHidden("reload-interval"))
	return cmd
}

// bindPolicy adds the flags that bound the configuration.
func bindPolicy(flags *pflag.FlagSet, p *config.Policy) {
	flags.StringSliceVar(&p.SecretDirs, "secret-dirs", nil, "folders of the files that the configuration may name for secrets, keys and certificates (default: all); rejects programs of plugin sinks")
	flags.BoolVar(&p.ForbidExposeSecrets, "forbid-expose-secrets", false, "reject a configuration with exposeSecrets, or with programs of plugin sinks")
}

// catchBrokenPipes keeps a closed standard output or standard error from ending the
// process: a write to it fails instead, which concerns one sink or the log.
// The signal is caught and not ignored, since child processes inherit what is ignored.
func catchBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// hangups delivers a value for each SIGHUP.
func hangups(ctx context.Context) (<-chan struct{}, func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	out := make(chan struct{})
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			select {
			case out <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, func() {
		signal.Stop(signals)
		cancel()
		<-done
	}
}

const defaultConfig = "watcherd.yaml"

// addConfigFlag adds the flag --config to a command that has its RunE. The file may be its
// argument, too, if it takes one. Standard input, "-", is read into a file that exists while
// the command runs.
func addConfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", defaultConfig, "configuration file; - reads standard input")
	mustMark(cmd.MarkFlagFilename("config", "yaml", "yml"))
	do := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		given := cmd.Flags().Changed("config")
		if len(args) > 0 {
			if given {
				return &usageError{fmt.Errorf("give the configuration with --config or as an argument (%s), not both", args[0])}
			}
			*file, given = args[0], true
		}
		if _, err := os.Stat(*file); !given && errors.Is(err, fs.ErrNotExist) {
			return &usageError{fmt.Errorf("there is no ./%s: name a configuration with --config, or write one with 'watcherd init'", defaultConfig)}
		}
		if *file != "-" {
			return do(cmd, nil)
		}
		dir, err := os.MkdirTemp("", "watcherd-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), config.MaxSize+1))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		*file = filepath.Join(dir, "stdin.yaml")
		if err := os.WriteFile(*file, text, 0o600); err != nil {
			return err
		}
		r := strings.NewReplacer(*file, "stdin", display(*file), "stdin")
		cmd.SetOut(&renaming{cmd.OutOrStdout(), r})
		if err := do(cmd, nil); err != nil {
			return &renamedError{err, r}
		}
		return nil
	}
}

// renaming and renamedError have the name of standard input in place of that of its copy.
type renaming struct {
	io.Writer
	names *strings.Replacer
}

func (w *renaming) Write(p []byte) (int, error) {
	if _, err := w.names.WriteString(w.Writer, string(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

type renamedError struct {
	error
	names *strings.Replacer
}

func (e *renamedError) Error() string { return e.names.Replace(e.error.Error()) }
func (e *renamedError) Unwrap() error { return e.error }

// checkArgs makes a wrong number of positional arguments a usage error. A command without
// a check of its own takes none.
func checkArgs(c *cobra.Command) {
	check := c.Args
	if check == nil {
		check = cobra.NoArgs
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			if strings.Contains(err.Error(), " arg(s), ") || !cmd.HasSubCommands() { // cobra counts, or takes what it does not expect for a command
				err = fmt.Errorf("usage: %s", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
			}
			return &usageError{fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())}
		}
		return nil
	}
}

// display shortens a path below the working directory.
func display(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}

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
		Args:    cobra.MinimumNArgs(1),
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
	resources := strings.Split(strings.Join(args, ","), ",")
	if list, err := unserved(cmd.Context(), rest, resources); err != nil || len(list) > 0 {
		return errors.Join(append(list, err)...)
	}
	dir, err := os.MkdirTemp("", "watcherd-watch-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, recordedConfig)
	state, err := o.configure(file, resources)
	if err != nil {
		return err
	}
	log, err := (&logFlags{format: "text", level: "warn"}).logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	ends := []os.Signal{syscall.SIGPIPE} // nothing reads any more
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		ends = append(ends, syscall.SIGHUP) // the terminal is closed: the folder must not stay
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), ends...)
	defer stop()
	return watcherd.Run(ctx, watcherd.Options{
		ConfigFile: file, Kinds: kinds.Builtin(), State: state, REST: rest, ClusterName: cluster, Logger: log,
		Stdout: cmd.OutOrStdout(), ShutdownTimeout: time.Second, Version: version(),
	})
}

// configure writes the configuration to a file, beside which the store will be, and loads it.
func (o *watchOptions) configure(file string, resources []string) (*watcherd.State, error) {
	watch := map[string]any{
		"name": "live", "resources": resources, "snapshot": config.SnapshotNever, "history": false,
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
	return temporaryConfig(file, map[string]any{
		"path": filepath.Join(filepath.Dir(file), recordedStore), "minFree": "0", "retention": map[string]any{"maxAge": "0s"}, // what is printed is deleted
	}, watch, map[string]any{
		"routes": []any{map[string]any{"name": "all", "payload": payload, "sinks": []string{"out"}}},
		"sinks":  []any{map[string]any{"name": "out", "stdout": map[string]any{"pretty": o.output == "pretty"}}},
	})
}
