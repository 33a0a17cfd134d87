package apiclient

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
)

// The source whose probe others wait for ends its request for a reason of its own. The others send
// another one, and do not take that reason for theirs.
func TestProbeEndsWithTheRequestOfOneSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := apitest.New(t)
		var hang atomic.Bool
		hang.Store(true)
		api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if !hang.Swap(false) {
				return false
			}
			<-r.Context().Done()
			return true
		})
		client, err := NewClient(api.Config(), 1)
		if err != nil {
			t.Fatal(err)
		}
		p, notBefore := NewProber(client, nil), time.Now().Add(-time.Second)
		ctx, cancel := context.WithCancelCause(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		ask := func(ctx context.Context, result chan<- error) {
			_, err := p.Version(ctx, notBefore)
			result <- err
		}
		go ask(ctx, first)
		synctest.Wait()
		go ask(t.Context(), second)
		synctest.Wait()
		cancel(errors.New("a relist was requested"))
		if err := <-first; err == nil {
			t.Error("the source whose request ended has an answer")
		}
		if err := <-second; err != nil {
			t.Errorf("the other source: %v", err)
		}
		client.http.CloseIdleConnections()
	})
}

// Rollbacks of a server that is set back all the time do not fill the memory, and a source that has not asked since the
// first of them still learns that there were some.
func TestRollbacksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := NewProber(nil, nil), time.Now()
		var middle time.Time
		for i := range 1000 {
			time.Sleep(time.Minute)
			p.SetBack(strconv.Itoa(i))
			if i == 500 {
				middle = time.Now()
			}
		}
		for _, since := range []time.Time{began, middle} {
			if all := p.BackSince(since); len(all) != maxBacks || all[0] != "" || all[1] != strconv.Itoa(1000-maxBacks+1) {
				t.Errorf("%d versions since %v, the first are %q", len(all), since, all[:2])
			}
		}
		if all := p.BackSince(time.Now().Add(-90 * time.Second)); !slices.Equal(all, []string{"998", "999"}) {
			t.Errorf("the last are %q", all)
		}
	})
}
