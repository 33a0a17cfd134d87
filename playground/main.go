// Command playground is a real Kubernetes API server and its etcd in one process,
// on loopback, for watcherd's demo and tests. See README.md.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/watcherd/watcherd/playground/internal/churn"
	"github.com/watcherd/watcherd/playground/internal/command"
)

const usage = `usage: playground COMMAND [flags]

  serve       run an API server with its etcd until SIGTERM or SIGINT
  kubeconfig  print a kubeconfig for any user and groups
  compact     remove the history from a running server's etcd
  snapshot    save or restore a stopped server's etcd
  churn       make sample objects in a cluster and keep changing them

"playground COMMAND -h" lists the flags.
`

func main() { os.Exit(command.Main("playground", run)) }

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return command.Usagef("no command\n%s", usage)
	}
	name, args := args[0], args[1:]
	switch name {
	case "serve":
		return serve(ctx, args)
	case "kubeconfig":
		return kubeconfig(args)
	case "compact":
		return compact(ctx, args)
	case "snapshot":
		return snapshot(args)
	case "churn":
		return churn.Command(ctx, args)
	case "help", "-h", "-help", "--help":
		fmt.Print(usage)
		return nil
	default:
		return command.Usagef("unknown command %q\n%s", name, usage)
	}
}
