package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

const (
	readyLimit = 2 * time.Minute
	readyPoll  = 50 * time.Millisecond
)

// waitReady returns when /readyz is ok, or ctx's error, or the last answer
// when that takes too long.
func waitReady(ctx context.Context, admin *rest.Config) error {
	limited, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	client, err := rest.HTTPClientFor(admin)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		last := probe(limited, client, admin.Host+"/readyz")
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limited.Done():
			return fmt.Errorf("not ready after %s: %w", readyLimit, last)
		case <-poll.C:
		}
	}
}

func probe(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return nil
}
