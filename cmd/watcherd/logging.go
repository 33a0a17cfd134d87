package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

type logFlags struct{ format, level string }

func (f *logFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.format, "log-format", "text", "text or json")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
}

// logger makes the daemon's logger and sends client-go's messages through it.
func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, &usageError{fmt.Errorf("--log-level %q: use debug, info, warn or error", f.level)}
	}
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch f.format {
	case "text":
		h = slog.NewTextHandler(w, opts)
	case "json":
		h = slog.NewJSONHandler(w, opts)
	default:
		return nil, &usageError{fmt.Errorf("--log-format %q: use text or json", f.format)}
	}
	klog.SetLogger(logr.FromSlogHandler(h))
	return slog.New(h), nil
}
