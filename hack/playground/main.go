// Command playground prints the path of one of the playground's programs, which
// it builds into a cache outside the checkout if it is not there yet.
//
//	go run ./hack/playground          # the API server
//	go run ./hack/playground churn    # only what makes sample objects
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	path, err := find(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

func find(ctx context.Context, args []string) (string, error) {
	var program playground.Program
	switch {
	case len(args) == 0:
		program = playground.Server()
	case len(args) == 1 && args[0] == "churn":
		program = playground.Churn()
	default:
		return "", fmt.Errorf("unknown arguments %q: want none or churn", args)
	}
	source, err := playground.Source(".")
	if err != nil {
		return "", err
	}
	return program.Path(ctx, source, os.Stderr)
}
