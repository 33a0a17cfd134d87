package watcherd

import (
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/file"
	"github.com/watcherd/watcherd/pkg/sinks/nats"
	"github.com/watcherd/watcherd/pkg/sinks/stdout"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// Kinds returns the built-in kinds of sinks, a new map at each call.
func Kinds() sinks.Kinds {
	return sinks.Kinds{
		"file":    func() sinks.Config { return file.NewConfig() },
		"nats":    func() sinks.Config { return nats.NewConfig() },
		"stdout":  func() sinks.Config { return stdout.NewConfig() },
		"webhook": func() sinks.Config { return webhook.NewConfig() },
	}
}
