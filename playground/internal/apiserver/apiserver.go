package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/watcherd/watcherd/playground/internal/pki"
)

// Config is the configuration of a server.
type Config struct {
	Listener net.Listener // TCP on loopback; the server closes it
	EtcdURL  string
	PKI      pki.Files
	Flags    []string     // kube-apiserver's own, e.g. --watch-cache=false
	Log      io.Writer    // what the server logs
	Admin    *rest.Config // cluster administrator
	Ready    func()       // called once, when /readyz is ok and the controller runs
}

// startGrace is how long an order to stop waits for a server that is starting.
// One that is stopped before its start-up hooks are through exits the process.
const startGrace = 10 * time.Second

// Run runs the server until ctx is done, which it takes for the order to stop,
// or until it fails to start or to become ready.
func Run(ctx context.Context, c Config) error {
	opts, err := c.complete(ctx)
	if err != nil {
		return err
	}
	told := ctx
	g, ctx := errgroup.WithContext(told)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ready, gone := make(chan struct{}), make(chan struct{})
	g.Go(func() error {
		defer close(gone)
		if err := app.Run(serving, opts); err != nil {
			return err
		}
		return errStopped
	})
	g.Go(func() error {
		if err := waitReady(serving, c.Admin); err != nil {
			return err
		}
		close(ready)
		return runNamespaceController(ctx, c.Admin, c.Ready)
	})
	g.Go(func() error {
		<-ctx.Done()
		grace := time.NewTimer(startGrace)
		defer grace.Stop()
		select {
		case <-ready:
		case <-gone:
		case <-grace.C:
		}
		stop()
		return nil
	})
	err = g.Wait()
	if errors.Is(err, errStopped) || errors.Is(err, context.Canceled) {
		return nil
	}
	select {
	case <-ready:
		return err
	default:
	}
	if told.Err() != nil {
		return nil // it complains of what stopping it in its start has cut short
	}
	return err
}

// errStopped ends the group when the server has ended without an error.
var errStopped = errors.New("the API server stopped")

// complete does what kube-apiserver's own command does between parsing its flags
// and running, except for taking over the signals of the process.
func (c Config) complete(ctx context.Context) (options.CompletedOptions, error) {
	s := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for _, set := range s.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(c.flags()); err != nil {
		return options.CompletedOptions{}, err
	}
	if rest := flags.Args(); len(rest) > 0 {
		return options.CompletedOptions{}, fmt.Errorf("kube-apiserver takes flags only, got %q", rest)
	}
	s.SecureServing.Listener = c.Listener

	registry := s.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := registry.Set(); err != nil {
		return options.CompletedOptions{}, err
	}
	gates := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	logs.InitLogs()
	klog.LogToStderr(false)
	klog.SetOutput(c.Log)
	streams := &logsapi.LoggingOptions{ErrorStream: c.Log, InfoStream: c.Log}
	if err := logsapi.ValidateAndApplyWithOptions(s.Logs, streams, gates); err != nil {
		return options.CompletedOptions{}, err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	completed, err := s.Complete(ctx)
	if err != nil {
		return options.CompletedOptions{}, err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return options.CompletedOptions{}, utilerrors.NewAggregate(errs)
	}
	if mutable, ok := gates.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	}
	registry.AddMetrics()
	return completed, nil
}
