package watcherd_test

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/pkg/watcherd"
)

// A program that runs the daemon with the built-in kinds of sinks until it is told
// to stop.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rest, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Print(err)
		return
	}
	err = watcherd.Run(ctx, watcherd.Options{
		ConfigFile: "watcherd.yaml",
		REST:       rest,
		Logger:     slog.Default(),
		Stdout:     os.Stdout,
	})
	switch {
	case errors.Is(err, watcherd.ErrConfig):
		log.Print("correct the configuration: ", err)
	case errors.Is(err, watcherd.ErrStoreOpen):
		log.Print("another process may have the store: ", err)
	case err != nil:
		log.Print(err)
	}
}
