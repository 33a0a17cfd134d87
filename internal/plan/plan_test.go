package plan_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/object"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// post and console are kinds with and without delivery settings of their own.
type post struct {
	URL   string        `json:"url"`
	Token *sinks.Secret `json:"token,omitempty"`
}

func (*post) Validate() error { return nil }
func (*post) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 50, MaxBytes: 2 << 20, MaxWait: time.Second, Concurrency: 3}
}

func (*post) Open(context.Context, sinks.Options) (sinks.Sink, error) {
	return nil, errors.New("compiling opens nothing")
}

type console struct{ post }

func (*console) Defaults() sinks.Delivery { return sinks.Delivery{} }

func kinds() config.Kinds {
	return config.Kinds{
		"post":    func() any { return &post{} },
		"console": func() any { return &console{} },
		"object":  func() any { return object.NewConfig() },
		"broken":  func() any { return &struct{}{} },
	}
}

const header = "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\n"

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("w.yaml", []byte(header+text), kinds())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func compile(t *testing.T, text string) *plan.State {
	t.Helper()
	s, err := plan.Compile(load(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// messages compiles what must not compile.
func messages(t *testing.T, text string) string {
	t.Helper()
	s, err := plan.Compile(load(t, text))
	if err == nil || s != nil {
		t.Fatalf("compiled:\n%s", text)
	}
	if _, ok := errors.AsType[*config.Errors](err); !ok {
		t.Fatalf("error of type %T", err)
	}
	return strings.ReplaceAll(err.Error(), "w.yaml:", "")
}
