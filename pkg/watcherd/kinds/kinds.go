// Package kinds is the table of the built-in kinds of sinks. It links every one of
// them with its client library. A program that needs a few makes a table of its own:
//
//	kinds := sinks.Kinds{"file": func() sinks.Config { return file.NewConfig() }}
package kinds

import (
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/elasticsearch"
	"github.com/watcherd/watcherd/pkg/sinks/file"
	"github.com/watcherd/watcherd/pkg/sinks/kafka"
	"github.com/watcherd/watcherd/pkg/sinks/nats"
	"github.com/watcherd/watcherd/pkg/sinks/object"
	"github.com/watcherd/watcherd/pkg/sinks/otlp"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
	"github.com/watcherd/watcherd/pkg/sinks/postgres"
	"github.com/watcherd/watcherd/pkg/sinks/redis"
	"github.com/watcherd/watcherd/pkg/sinks/stdout"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// Builtin returns the built-in kinds, a new map at each call.
func Builtin() sinks.Kinds {
	return sinks.Kinds{
		"elasticsearch": func() sinks.Config { return elasticsearch.NewConfig() },
		"file":          func() sinks.Config { return file.NewConfig() },
		"kafka":         func() sinks.Config { return kafka.NewConfig() },
		"nats":          func() sinks.Config { return nats.NewConfig() },
		"object":        func() sinks.Config { return object.NewConfig() },
		"otlp":          func() sinks.Config { return otlp.NewConfig() },
		"plugin":        func() sinks.Config { return plugin.NewConfig() },
		"postgres":      func() sinks.Config { return postgres.NewConfig() },
		"redis":         func() sinks.Config { return redis.NewConfig() },
		"stdout":        func() sinks.Config { return stdout.NewConfig() },
		"webhook":       func() sinks.Config { return webhook.NewConfig() },
	}
}
