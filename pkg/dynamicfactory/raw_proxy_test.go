package dynamicfactory_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// A proxy answers 200 with a page of its own in place of the API server, for maintenance or a login.
// That is an outage: the watch resumes behind it, and its history is not given up.
func TestPageOfAProxy(t *testing.T) {
	for name, page := range map[string]struct{ contentType, body string }{
		"HTML":       {"text/html; charset=utf-8", "<!DOCTYPE html>\n<html><body>Please log in</body></html>\n"},
		"other JSON": {"application/json", `{"message":"maintenance"}` + "\n"},
		"nothing":    {"text/html", ""},
	} {
		for _, cut := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the connection breaks %t", name, cut), func(t *testing.T) {
				bubble(t, func(t *testing.T, s *apitest.Server) {
					put(s, "a")
					seconds := int64(60)
					var gaps []string
					j, sub := subscribe(t, factory(t, s, dynamicfactory.WithTweakListOptions(func(o *metav1.ListOptions) {
						o.TimeoutSeconds = &seconds
					})), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
					var away atomic.Bool
					away.Store(true)
					s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
						if away.Load() {
							w.Header().Set("Content-Type", page.contentType)
							_, _ = w.Write([]byte(page.body))
						}
						return away.Load()
					})
					if cut {
						s.Cut()
					}
					time.Sleep(10 * time.Minute)
					is(t, "state", sub.Status().State, dynamicfactory.StateBackingOff)
					put(s, "b", "b")
					away.Store(false)
					time.Sleep(time.Minute)
					j.expect(t, "initial a", "add b", "update b")
					is(t, "gaps", strings.Join(gaps, ";"), "")
					is(t, "relists", sub.Status().Relists, 0)
				})
			})
		}
	}
}

// A proxy that rejects every request with a page of its own, as without the client's certificate,
// does not reject the version of the watch.
func TestPageOfAProxyThatRejects(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		var gaps []string
		j, sub := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
		s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "<html><center>No required SSL certificate was sent</center></html>", http.StatusBadRequest)
			return true
		})
		s.Cut()
		time.Sleep(time.Minute)
		put(s, "b", "b")
		s.Intercept(nil)
		time.Sleep(time.Minute)
		j.expect(t, "initial a", "add b", "update b")
		is(t, "gaps", strings.Join(gaps, ";"), "")
		is(t, "relists", sub.Status().Relists, 0)
	})
}

// A server that does not serve the probe in its form is one that may not be asked.
func TestProbeIsNotServed(t *testing.T) {
	for _, tc := range []struct {
		code   int
		reason string
	}{{http.StatusBadRequest, "BadRequest"}, {http.StatusMethodNotAllowed, "MethodNotAllowed"}, {http.StatusUnprocessableEntity, "Invalid"}} {
		t.Run(tc.reason, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "/namespaces") {
						return false
					}
					apitest.Fail(w, tc.code, tc.reason)
					return true
				})
				j, sub := subscribe(t, factory(t, s), configMapKey)
				s.Cut()
				put(s, "a")
				time.Sleep(time.Minute)
				j.expect(t, "add a")
				is(t, "state", sub.Status().State, dynamicfactory.StateWatching)
			})
		})
	}
}

// A list whose pages repeat has no end: the server ignores the token, or its tokens lead in a circle.
// The list is refused before it takes memory.
func TestPagesThatRepeat(t *testing.T) {
	for name, next := range map[string]func(n int64) string{
		"the token is ignored": func(n int64) string { return fmt.Sprint("token-", n) },
		"tokens in a circle":   func(n int64) string { return fmt.Sprint("token-", n%3) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				var pages, begun atomic.Int64
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if !isList(r) {
						return false
					}
					if !r.URL.Query().Has("continue") && begun.Add(1) > 1 {
						return false // the second attempt succeeds
					}
					n := pages.Add(1)
					if n > 1000 {
						t.Error("the list does not end")
						panic(http.ErrAbortHandler)
					}
					page := 0
					if strings.Contains(name, "circle") {
						page = int(n % 3)
					}
					_, _ = fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"100","continue":%q},"items":[`+
						`{"metadata":{"name":"a%d","namespace":"ns","uid":"u","resourceVersion":"90"}},{"metadata":{"name":"b%[2]d","namespace":"ns","uid":"v","resourceVersion":"90"}}]}`, next(n), page)
					return true
				})
				_, sub := subscribe(t, factory(t, s), configMapKey)
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := pages.Load(); n > 10 {
					t.Errorf("%d pages", n)
				}
				is(t, "state", sub.Status().State, dynamicfactory.StateWatching)
				is(t, "objects", sub.Status().Objects, 0)
			})
		})
	}
}
