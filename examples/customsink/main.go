// Command customsink is watcherd with one more kind of sink: opensearch, which
// stores each event once in OpenSearch or Elasticsearch. See docs/custom-sink.md.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

type config struct {
	URL string `json:"url"` // of the index, such as http://127.0.0.1:9200/k8s
}

func (c *config) Validate() error {
	if c.URL == "" {
		return &sinks.FieldError{Path: "url", Msg: "required, such as http://127.0.0.1:9200/k8s"}
	}
	return nil
}

func (c *config) Defaults() sinks.Delivery { return sinks.Delivery{MaxEvents: 1, Concurrency: 8} }

func (c *config) Open(context.Context, sinks.Options) (sinks.Sink, error) { return &sink{c.URL}, nil }

type sink struct{ index string }

func (s *sink) Limits() sinks.Limits        { return sinks.Limits{MaxBatch: 1} }
func (s *sink) Close(context.Context) error { return nil }
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	body := bytes.NewReader(event.AppendCloudEvent(nil, batch[0]))
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, s.index+"/_create/"+batch[0].ID, body)
	if err != nil {
		return sinks.Pause(err) // no retry helps: the configuration has to change
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: 15 * time.Second}).Do(req)
	if err != nil {
		return err // tried again, for as long as it takes
	}
	defer resp.Body.Close()
	err = fmt.Errorf("not stored: %s", resp.Status)
	switch resp.StatusCode {
	case http.StatusCreated, http.StatusConflict: // stored now, or by an attempt whose answer was lost; 200 may be the page of a login
		return nil
	case http.StatusBadRequest:
		return sinks.Poison(err) // it never will be
	}
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	table := kinds.Builtin()
	table["opensearch"] = func() sinks.Config { return &config{} }
	kube, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err == nil {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		err = watcherd.Run(ctx, watcherd.Options{ConfigFile: "watcherd.yaml", REST: kube, Kinds: table, Logger: log, Stdout: os.Stdout})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
