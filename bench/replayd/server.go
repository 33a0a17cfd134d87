package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/watcherd/watcherd/bench/internal/pods"
)

// updatesFrom is the resourceVersion of the first update; lists have lower ones.
const updatesFrom = 500_000_000

// stride spreads the updates over the pods; it is prime.
const stride = 7919

// server is the handler. The updates are numbered from 0; update n has the version
// updatesFrom+n and belongs to the pod (n*stride)%count.
type server struct {
	render *pods.Renderer
	count  int
	mux    *http.ServeMux

	mu      sync.Mutex // guards what is below
	updates uint64     // how many are there
	news    chan struct{}
	stats   stats
}

// stats is what /_stats answers.
type stats struct {
	Requests map[string]int `json:"requests"` // by verb and path
	Sent     uint64         `json:"sent"`     // updates, to all watchers
	Updates  uint64         `json:"updates"`
}

func newServer(r *pods.Renderer, count int) *server {
	s := &server{render: r, count: count, mux: http.NewServeMux(), news: make(chan struct{}), stats: stats{Requests: map[string]int{}}}
	for path, body := range discovery() {
		s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { reply(w, body) })
	}
	s.mux.HandleFunc("GET /api/v1/pods", s.pods)
	s.mux.HandleFunc("GET /api/v1/namespaces", s.collection("NamespaceList", "v1", namespace))
	s.mux.HandleFunc("GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions", s.collection("CustomResourceDefinitionList", "apiextensions.k8s.io/v1", ""))
	s.mux.HandleFunc("GET /apis/apiregistration.k8s.io/v1/apiservices", s.collection("APIServiceList", "apiregistration.k8s.io/v1", ""))
	s.mux.HandleFunc("POST /_start", s.start)
	s.mux.HandleFunc("GET /_stats", s.getStats)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb := "get"
	if r.URL.Query().Get("watch") == "true" {
		verb = "watch"
	}
	s.mu.Lock()
	s.stats.Requests[verb+" "+r.URL.Path]++
	s.mu.Unlock()
	s.mux.ServeHTTP(w, r)
}

func reply(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(body)) // who has hung up needs no answer
}

// version is the one that a list has now.
func (s *server) version() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return updatesFrom + s.updates - 1
}

// available returns how many updates there are, and a channel that is closed when
// there are more.
func (s *server) available() (uint64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updates, s.news
}

func (s *server) publish(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates += n
	close(s.news)
	s.news = make(chan struct{})
}

// start makes updates, at once or at a rate; it does not wait for them.
func (s *server) start(w http.ResponseWriter, r *http.Request) {
	events, err := strconv.ParseUint(r.FormValue("events"), 10, 32)
	rate, rateErr := strconv.Atoi("0" + r.FormValue("rate"))
	if err != nil || rateErr != nil {
		http.Error(w, "want events=N and, if not at full speed, rate=N", http.StatusBadRequest)
		return
	}
	if rate == 0 {
		s.publish(events)
		return
	}
	go s.pace(context.WithoutCancel(r.Context()), events, rate)
}

// pace publishes the updates at a rate; it ends with them, or with the process.
func (s *server) pace(ctx context.Context, events uint64, rate int) {
	tick := time.NewTicker(max(time.Second/time.Duration(rate), 5*time.Millisecond))
	defer tick.Stop()
	began := time.Now()
	for done := uint64(0); done < events; {
		select {
		case <-tick.C:
			due := min(uint64(time.Since(began).Seconds()*float64(rate)), events)
			if due > done {
				s.publish(due - done)
				done = due
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *server) getStats(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	s.stats.Updates = s.updates
	body, err := json.Marshal(s.stats)
	s.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	reply(w, string(body))
}

// namespace is the one that shows which cluster this is.
const namespace = `{"metadata":{"name":"kube-system","uid":"6a1f0b52-0e0c-4f5e-9d58-0f6d5c1b7a11","resourceVersion":"4","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}}`

// collection serves a resource that does not change.
func (s *server) collection(kind, apiVersion, item string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // a client that is gone shows in the context
			ctx, cancel := watchContext(r)
			defer cancel()
			<-ctx.Done()
			return
		}
		reply(w, fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d"},"items":[%s]}`, kind, apiVersion, s.version(), item))
	}
}

// watchContext ends when the client asked the watch to.
func watchContext(r *http.Request) (context.Context, context.CancelFunc) {
	timeout := 30 * time.Minute
	if n, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds")); err == nil && n > 0 {
		timeout = time.Duration(n) * time.Second
	}
	return context.WithTimeout(r.Context(), timeout)
}

// discovery is the server's discovery document, in the form that predates aggregated
// discovery; clients take either.
func discovery() map[string]string {
	group := func(name string) string {
		gv := `{"groupVersion":"` + name + `/v1","version":"v1"}`
		return `{"name":"` + name + `","versions":[` + gv + `],"preferredVersion":` + gv + `}`
	}
	resource := func(name, kind string, namespaced bool) string {
		return fmt.Sprintf(`{"name":%q,"singularName":%q,"namespaced":%t,"kind":%q,"verbs":["get","list","watch"]}`, name, strings.ToLower(kind), namespaced, kind)
	}
	list := func(gv string, resources ...string) string {
		return fmt.Sprintf(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":%q,"resources":[%s]}`, gv, strings.Join(resources, ","))
	}
	return map[string]string{
		"/version": `{"major":"1","minor":"37","gitVersion":"v1.37.0"}`,
		"/api":     `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}`,
		"/apis":    `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + group("apiextensions.k8s.io") + `,` + group("apiregistration.k8s.io") + `]}`,
		"/api/v1":  list("v1", resource("pods", "Pod", true), resource("namespaces", "Namespace", false)),

		"/apis/apiextensions.k8s.io/v1":   list("apiextensions.k8s.io/v1", resource("customresourcedefinitions", "CustomResourceDefinition", false)),
		"/apis/apiregistration.k8s.io/v1": list("apiregistration.k8s.io/v1", resource("apiservices", "APIService", false)),
	}
}
