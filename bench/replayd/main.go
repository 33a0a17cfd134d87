// Command replayd is as much of an API server as an informer of pods needs, made to
// cost little itself: it serves any number of pods and any number of updates to
// them, rendered from templates while they are sent.
//
// It prints its URL when it is ready. Updates begin with
//
//	POST /_start?events=100000&rate=200    rate 0, the default: as fast as they are read
//
// and GET /_stats counts the requests and what was sent. Nothing is authenticated;
// it listens on loopback.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/watcherd/watcherd/bench/internal/pods"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "replayd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	count := flag.Int("pods", 1000, "pods that exist")
	port := flag.Int("port", 0, "loopback port to listen on (0: a free one)")
	flag.Parse()
	if *count < 1 || *count > pods.MaxPods {
		return fmt.Errorf("-pods must be between 1 and %d", pods.MaxPods)
	}
	render, err := pods.New()
	if err != nil {
		return err
	}
	s := newServer(render, *count)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		return err
	}
	h := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	closed := context.AfterFunc(ctx, func() { _ = h.Close() }) // Serve returns; its error does not matter
	defer closed()
	fmt.Printf("ready http://%s\n", l.Addr())
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
