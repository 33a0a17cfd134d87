// Command profiled is `watcherd run` with net/http/pprof beside it, for finding out
// where the time goes: bench/run -profile uses it in place of watcherd.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	_ "net/http/pprof"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/jetstream"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "profiled:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config := flag.String("config", "watcherd.yaml", "configuration file")
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	listen := flag.String("pprof", "127.0.0.1:6060", "where to serve profiles")
	flag.Parse()
	rest, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	profiles := &http.Server{Addr: *listen, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := profiles.ListenAndServe(); ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "profiled:", err)
		}
	}()
	defer profiles.Close()
	return watcherd.Run(ctx, watcherd.Options{
		ConfigFile: *config, Kinds: kinds.Builtin(), Journal: jetstream.Journal, REST: rest, ClusterName: "bench", Stdout: os.Stdout,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}
