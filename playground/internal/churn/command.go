package churn

import (
	"context"
	"errors"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/playground/internal/command"
)

// Command is the command line of this package.
func Command(ctx context.Context, args []string) error {
	fs := command.Flags("churn", "[--kubeconfig FILE] [flags]")
	kubeconfig := fs.String("kubeconfig", "", "cluster to write to (default: as kubectl, KUBECONFIG or ~/.kube/config)")
	kubeContext := fs.String("context", "", "context of the kubeconfig (default: the current one)")
	o := Options{Report: os.Stdout}
	fs.StringVar(&o.Namespace, "namespace", "watcherd-demo", "namespace to write to; made if it is missing")
	fs.Float64Var(&o.Rate, "rate", 2, "changes per second")
	fs.BoolVar(&o.Cleanup, "cleanup", false, "at the end, delete what was made")
	if err := command.Parse(fs, args, 0); err != nil {
		return err
	}
	if o.Rate <= 0 {
		return command.Usagef("--rate %g: must be positive", o.Rate)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		rules, &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no cluster to write to: there is no kubeconfig, or it names none")
	}
	if err != nil {
		return err
	}
	cfg.QPS = -1 // the rate is ours to keep
	cfg.Timeout = time.Minute
	return Run(ctx, cfg, o)
}
