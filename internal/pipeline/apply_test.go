package pipeline

import (
	"testing"

	"github.com/watcherd/watcherd/internal/route"
)

func TestRouteFailuresAreLoggedOnce(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	router, err := route.Compile([]route.Spec{{Name: "bad", When: `int(metadata.name) > 1`, Sinks: []string{"sink"}}})
	if err != nil {
		t.Fatal(err)
	}
	logs := &countingHandler{}
	r.m.log = logs.logger()
	r.m.logFailures(router)
	r.adoptRouter(router)
	s := r.source(pods)
	r.commit(addedTo(s, r.object("a", "u1", "1")), addedTo(s, r.object("b", "u2", "2")))
	if n := logs.count.Load(); n != 1 {
		t.Errorf("%d messages for two failures, want 1", n)
	}
	if stats := router.Stats()[0]; stats.Errors != 2 {
		t.Errorf("stats are %+v", stats)
	}
}
