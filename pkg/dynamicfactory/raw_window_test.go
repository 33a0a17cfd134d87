package dynamicfactory_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

func window(n int) dynamicfactory.DurableOptions {
	return dynamicfactory.DurableOptions{Window: n}
}

// No more events are handed on than the window allows, and every acknowledgement
// lets through as many as it makes safe.
func TestWindow(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(30)...) // a list is not bounded
		j, sub := subscribe(t, factory(t, s), configMapKey, window(10))
		is(t, "listed", len(j.take()), 30)
		for i := range 100 {
			put(s, fmt.Sprint(i))
		}
		synctest.Wait()
		is(t, "without an acknowledgement", len(j.take()), 10)
		is(t, "in flight", sub.Status().InFlight, 10)
		sub.Ack(j.seen() - 7) // three of them
		synctest.Wait()
		is(t, "after three are safe", len(j.take()), 3)
		sub.Ack(1)
		synctest.Wait()
		is(t, "after an old acknowledgement", len(j.take()), 0)
		for range 20 {
			sub.Ack(j.seen())
			synctest.Wait()
		}
		is(t, "at last", len(j.take()), 87)
		is(t, "in flight at last", sub.Status().InFlight, 0)
	})
}

// A subscriber that takes nothing in is handed one list, however often history is lost
// meanwhile.
func TestListsWaitForTheSubscriber(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(700)...)
		j, sub := subscribe(t, factory(t, s), configMapKey, window(10))
		for range 5 {
			s.Advance(1)
			s.Compact()
			s.Cut()
			time.Sleep(10 * time.Minute)
		}
		is(t, "notifications", len(j.take()), 700)
		is(t, "paused", sub.Status().PausedSince.IsZero(), false)
		s.Delete(configMapPath, "ns", numbered(1)...)
		sub.Ack(j.seen())
		time.Sleep(time.Minute)
		told := j.take()
		is(t, "the next list", len(told), 700)
		is(t, "what is gone", told[0], "delete? "+numbered(1)[0])
		is(t, "state", sub.Status().State, dynamicfactory.StateWatching)
		is(t, "paused", sub.Status().PausedSince.IsZero(), true)
	})
}

// Bookmarks take no place, however many there are.
func TestBookmarksTakeNoPlaceInTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, _ := subscribe(t, factory(t, s), configMapKey, window(2))
		for range 100 {
			s.Advance(1)
			s.Bookmark()
			synctest.Wait()
		}
		put(s, "a", "b", "c")
		synctest.Wait()
		j.expect(t, "add a", "add b")
	})
}

// A watch that waits for its subscriber is not taken for a silent one.
func TestFullWindowIsNotSilence(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey, window(1))
		s.Bookmark() // of a watch that has had one, more are expected
		put(s, "a", "b")
		time.Sleep(4 * time.Minute)
		is(t, "watches", watches(s), 1)
		j.expect(t, "add a")
		sub.Ack(j.seen())
		synctest.Wait()
		j.expect(t, "add b")
		is(t, "lists", lists(s), 1)
	})
}

// Closing does not wait for an acknowledgement.
func TestCloseWithAFullWindow(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		_, sub := subscribe(t, factory(t, s), configMapKey, window(1))
		put(s, "a", "b")
		synctest.Wait()
		sub.Close()
		sub.Close()
		synctest.Wait()
		is(t, "watches", s.Watches(configMapPath), 0)
		sub.Ack(5) // of no consequence
		is(t, "state", sub.Status().State, dynamicfactory.StateStopped)
	})
}
