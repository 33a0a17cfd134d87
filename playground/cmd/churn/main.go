// Command churn is playground's command of that name alone, for a cluster of
// one's own: without the API server it builds in seconds.
package main

import (
	"os"

	"github.com/watcherd/watcherd/playground/internal/churn"
	"github.com/watcherd/watcherd/playground/internal/command"
)

func main() { os.Exit(command.Main("churn", churn.Command)) }
