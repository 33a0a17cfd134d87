package rawwatch

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// A request ends while the reflector is busy, so that an event of it waits to be taken.
// The event counts as received: the next request does not repeat it.
func TestEventOfAnEndedRequest(t *testing.T) {
	for _, cause := range []error{errSilent, errProbe, errOverdue} {
		t.Run(cause.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const path = "/api/v1/configmaps"
				api := apitest.New(t)
				api.Serve(path, "v1", "ConfigMap")
				client, err := apiclient.NewClient(api.Config(), 1)
				if err != nil {
					t.Fatal(err)
				}
				s := NewSource(Config{
					Client: client, Prober: apiclient.NewProber(client, nil), GVR: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
					Make: func(raw []byte, _ *rawjson.Meta, _ uint64) (runtime.Object, error) {
						o := &unstructured.Unstructured{}
						return o, o.UnmarshalJSON(raw)
					},
					Bookmark: func(string) (runtime.Object, error) { return &unstructured.Unstructured{}, nil },
				})
				if _, err := s.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
				w, err := s.WatchWithContext(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					w.Stop()
					s.Wait()
				}()
				for _, name := range []string{"a", "b", "c"} {
					api.Put(path, "ns", name, nil)
				}
				synctest.Wait() // the first event waits for the reflector
				s.mu.Lock()
				s.interrupt(cause)
				s.mu.Unlock()
				synctest.Wait()
				for _, name := range []string{"a", "b", "c"} {
					select {
					case e := <-w.ResultChan():
						if o, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != watch.Added || o.GetName() != name {
							t.Errorf("%s: received %v", name, e)
						}
					case <-time.After(time.Hour):
						t.Errorf("%s: not received", name)
					}
				}
			})
		})
	}
}
