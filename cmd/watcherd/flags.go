package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// kubeFlags choose the cluster as kubectl does: --kubeconfig, KUBECONFIG,
// ~/.kube/config, or the pod's own service account.
type kubeFlags struct {
	kubeconfig, context string
}

func (f *kubeFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig to use")
}

// load returns how to reach the cluster, and the kubeconfig's name for it.
func (f *kubeFlags) load() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
	cfg, err := loader.ClientConfig()
	if errors.Is(err, rest.ErrNotInCluster) || clientcmd.IsEmptyConfig(err) {
		return nil, "", errors.New("no cluster is configured: set --kubeconfig or KUBECONFIG, create ~/.kube/config, or run inside a cluster")
	}
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.UserAgent = "watcherd/" + version()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	name := cmp.Or(f.context, raw.CurrentContext)
	if c, ok := raw.Contexts[name]; ok && c.Cluster != "" {
		return cfg, c.Cluster, nil
	}
	return cfg, "in-cluster", nil
}

type logFlags struct{ format, level string }

func (f *logFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.format, "log-format", "text", "text or json")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
}

// logger makes the daemon's logger and sends client-go's messages through it.
func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, &usageError{fmt.Errorf("--log-level %q: use debug, info, warn or error", f.level)}
	}
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch f.format {
	case "text":
		h = slog.NewTextHandler(w, opts)
	case "json":
		h = slog.NewJSONHandler(w, opts)
	default:
		return nil, &usageError{fmt.Errorf("--log-format %q: use text or json", f.format)}
	}
	klog.SetLogger(logr.FromSlogHandler(h))
	return slog.New(h), nil
}
