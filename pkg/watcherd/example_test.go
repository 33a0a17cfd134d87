package watcherd_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// A program that runs the daemon with the built-in kinds of sinks until a signal
// stops it.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	rest, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Error("no cluster", "error", err)
		return
	}
	err = watcherd.Run(ctx, watcherd.Options{
		ConfigFile: "watcherd.yaml",
		REST:       rest,
		Kinds:      kinds.Builtin(),
		Logger:     log,
		Stdout:     os.Stdout,
	})
	switch {
	case errors.Is(err, watcherd.ErrConfig):
		log.Error("correct the configuration", "error", err)
	case errors.Is(err, watcherd.ErrStoreOpen):
		log.Error("another process may have the store", "error", err)
	case err != nil:
		log.Error("watcherd ended", "error", err)
	}
}
