package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// poster is a small sink over real HTTP.
type poster struct {
	url    string
	client *http.Client
}

func (p *poster) Write(ctx context.Context, batch []*event.Event) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(event.AppendBatch(nil, batch)))
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	err = fmt.Errorf("the receiver answered %s", resp.Status)
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusBadRequest:
		return sinks.Poison(err)
	case http.StatusUnauthorized:
		return sinks.Pause(err)
	case http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return sinks.RetryAfter(err, time.Duration(seconds)*time.Second)
	}
	return err
}

func (p *poster) Close(context.Context) error {
	p.client.CloseIdleConnections()
	return nil
}

// site is a receiver that misbehaves in the ways of real ones.
type site struct {
	mu       sync.Mutex
	requests int             // guarded by mu
	events   []change        // guarded by mu; in order of arrival
	seen     map[string]bool // guarded by mu; event ids
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var batch []struct {
		ID   string `json:"id"`
		Data struct {
			Object change `json:"object"`
		} `json:"data"`
	}
	if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	for _, e := range batch {
		if e.Data.Object.Object == 5 && e.Data.Object.N == 2 {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
	}
	switch s.requests % 9 {
	case 3:
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	case 5:
		w.Header().Set("Retry-After", "0")
		http.Error(w, "slower", http.StatusTooManyRequests)
		return
	case 7:
		panic(http.ErrAbortHandler)
	}
	for _, e := range batch {
		if !s.seen[e.ID] { // as a receiver that drops duplicates by id
			s.seen[e.ID] = true
			s.events = append(s.events, e.Data.Object)
		}
	}
	if s.requests%9 == 8 {
		panic(http.ErrAbortHandler) // processed, but the answer is lost
	}
}

func TestOverHTTP(t *testing.T) {
	receiver := &site{seen: map[string]bool{}}
	server := httptest.NewServer(receiver)
	defer server.Close()
	s := newStorage(t)
	defer s.close()
	s.add(numbered(10, upTo(20)...)...)
	w := start(t, s, newReceiver(t, accept), func(c *Config) {
		c.Open = func(context.Context) (sinks.Sink, error) {
			return &poster{url: server.URL, client: &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second}}, nil
		}
		c.Delivery.MaxEvents, c.Delivery.Concurrency = 10, 4
		c.Retry.Initial, c.Retry.Max = 2*time.Millisecond, 10*time.Millisecond
	})
	eventually(t, "the queue is empty", func() bool { return s.queue.Stats().Length == 0 })
	w.stop()
	if letters := s.letters(); len(letters) != 1 {
		t.Errorf("%d dead letters, want 1", len(letters))
	}
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	if len(receiver.events) != 199 {
		t.Errorf("%d events arrived, want 199", len(receiver.events))
	}
	last := map[int]int{}
	for _, c := range receiver.events {
		if want := last[c.Object] + 1; c.N != want && (c.Object != 5 || c.N != 3) {
			t.Errorf("%v arrived after change %d", c, last[c.Object])
		}
		last[c.Object] = c.N
	}
}
