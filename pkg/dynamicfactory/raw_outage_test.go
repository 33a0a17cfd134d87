package dynamicfactory_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// lines is a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// take returns the lines since the last call.
func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.buf.Reset()
	if l.buf.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(l.buf.String()), "\n")
}

// failingServer answers requests with a failure.
type failingServer struct {
	*apitest.Server
	mu   sync.Mutex
	fail func(w http.ResponseWriter, r *http.Request) bool
}

func newFailingServer(s *apitest.Server) *failingServer {
	f := &failingServer{Server: s}
	d := &served{groups: []apidiscovery.APIGroupDiscovery{group("", version("v1", serves("pods", "Pod")))}}
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		f.mu.Lock()
		fail := f.fail
		f.mu.Unlock()
		return fail != nil && fail(w, r) || d.serve(w, r)
	})
	return f
}

// become changes the answers, and ends all watches. nil is a healthy server.
func (f *failingServer) become(fail func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	f.fail = fail
	f.mu.Unlock()
	if fail != nil {
		f.Cut()
	}
}

func hangUp(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

func reject(code int, reason, path string) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, path) {
			return false
		}
		apitest.Fail(w, code, reason)
		return true
	}
}

const outageResources = 6

// outageTest watches several resources of a server that fails, with discovery.
func outageTest(t *testing.T, f func(t *testing.T, s *failingServer, log *lines)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newFailingServer(apitest.New(t))
		s.Serve(crdPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
		s.Serve(apiServicePath, "apiregistration.k8s.io/v1", "APIService")
		log := &lines{}
		ctx := klog.NewContext(t.Context(), logr.FromSlogHandler(slog.NewTextHandler(log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})))
		r, err := dynamicfactory.NewResolver(s.Config())
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		t.Cleanup(running.Wait)
		factory := factory(t, s.Server, dynamicfactory.WithResolver(r))
		for i := range outageResources {
			gvr := schema.GroupVersionResource{Version: "v1", Resource: fmt.Sprintf("kind%ds", i)}
			s.Serve("/api/v1/"+gvr.Resource, "v1", fmt.Sprintf("Kind%d", i))
			if _, err := factory.SubscribeDurable(ctx, dynamicfactory.Key{GVR: gvr}, newJournal(), dynamicfactory.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if l := log.take(); l != nil {
			t.Fatalf("the log of a healthy server: %s", l)
		}
		f(t, s, log)
	})
}

// expectLines compares the log with patterns.
func expectLines(t *testing.T, log *lines, patterns ...string) {
	t.Helper()
	got := log.take()
	ok := len(got) == len(patterns)
	for i := 0; ok && i < len(got); i++ {
		ok = regexp.MustCompile("^" + patterns[i] + "$").MatchString(got[i])
	}
	if !ok {
		t.Errorf("the log is\n  %s\nit should be\n  %s", strings.Join(got, "\n  "), strings.Join(patterns, "\n  "))
	}
}

// TestOutageIsOneMessage: what concerns the server is logged once when it begins and once
// when it is over, with the number of watches and the duration.
func TestOutageIsOneMessage(t *testing.T) {
	const answers = `level=INFO msg="the API server answers again; watches resume" after=`
	for name, c := range map[string]struct {
		fail       func(http.ResponseWriter, *http.Request) bool
		begin, end string
	}{
		"no answer": {
			hangUp,
			`level=ERROR msg="the API server does not answer; retrying" watches=6 err=EOF`,
			answers + `(4[2-9]|[567]\d)(\.\d+)?s watches=6|` + answers + `1m[\d.]+s watches=6`,
		},
		"failures": {
			reject(http.StatusServiceUnavailable, "ServiceUnavailable", "/"),
			`level=ERROR msg="the API server fails; retrying" watches=6 err=.*`,
			answers + `(4[2-9]|[567]\d)(\.\d+)?s watches=6|` + answers + `1m[\d.]+s watches=6`,
		},
		"other credentials": {
			reject(http.StatusUnauthorized, "Unauthorized", "/"),
			`level=ERROR msg="the API server rejects the credentials; retrying" watches=6 err=.*`,
			`level=INFO msg="the API server accepts the credentials again; watches resume" after=\S+s watches=6`,
		},
		"failures of one resource": {
			reject(http.StatusServiceUnavailable, "ServiceUnavailable", "/api/v1/kind3s"),
			`level=ERROR msg="the API server fails; retrying" watches=1 resource=kind3s.v1 err=.*`,
			answers + `\S+s watches=1`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			outageTest(t, func(t *testing.T, s *failingServer, log *lines) {
				for range 2 {
					s.become(c.fail)
					time.Sleep(10 * time.Second)
					expectLines(t, log, c.begin)
					time.Sleep(32 * time.Second)
					expectLines(t, log)
					s.become(nil)
					time.Sleep(2 * time.Minute)
					expectLines(t, log, c.end)
				}
			})
		})
	}
}

// TestShortOutage: an outage that is over before its begin is logged is one line.
func TestShortOutage(t *testing.T) {
	outageTest(t, func(t *testing.T, s *failingServer, log *lines) {
		s.Cut()
		time.Sleep(time.Minute)
		expectLines(t, log, `level=INFO msg="watches failed and resumed" watches=6 after=\S+s err=.*`)
	})
}

// TestFailureOfOneWatch: a resource that is not allowed is logged for itself, with its
// name.
func TestFailureOfOneWatch(t *testing.T) {
	outageTest(t, func(t *testing.T, s *failingServer, log *lines) {
		s.become(reject(http.StatusForbidden, "Forbidden", "/api/v1/kind3s"))
		time.Sleep(5 * time.Second)
		expectLines(t, log, `level=ERROR msg="cannot watch the resource; retrying" resource=kind3s.v1 err=.* reason=Forbidden`,
			`level=INFO msg="watches failed and resumed" watches=5 after=\S+s err=.*`)
		s.become(nil)
		time.Sleep(time.Minute)
		expectLines(t, log, `level=INFO msg="watching the resource again" resource=kind3s.v1 after=\S+s`)
	})
}
