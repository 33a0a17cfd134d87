package simulation

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/event"
)

// backup is a state of the cluster to go back to.
type backup struct {
	server  apitest.Saved
	version uint64
	objects map[string]write // by path
	labels  map[string]string
	uids    map[string]string
	passed  int
}

// backUp makes a backup, in place of the one before.
func (w *world) backUp() {
	c := w.cluster
	if !w.widgets || w.apart.Load() || w.other.Load() {
		return
	}
	version, _ := strconv.ParseUint(c.Version(), 10, 64)
	w.backup = &backup{c.Save(), version, map[string]write{}, maps.Clone(c.labels), maps.Clone(c.uids), c.passed}
	for path := range c.history {
		if last, exists := c.exists(path); exists {
			w.backup.objects[path] = last
		}
	}
}

// restore has the cluster go back to the backup, beside a daemon that runs or not, once everything is
// delivered: what is delivered later is of the time after it.
func (w *world) restore(r *rand.Rand) error {
	to := w.backup
	if to == nil || !w.widgets || w.apart.Load() || w.other.Load() || w.resolver.now.away || w.config.idle || w.disk.counting() || w.cluster.since(to) < 20 {
		return nil
	}
	w.refuse.Store(0)
	w.pages.Store(0)
	w.blind.Store(false)
	w.disk.full.Store(false)
	for _, receiver := range w.receivers {
		receiver.set(well)
	}
	if !w.settles() {
		return nil
	}
	w.say("the backup is restored")
	w.backup = nil
	w.check()
	if w.t.Failed() {
		return errOver
	}
	down := r.IntN(3)
	switch down {
	case 1:
		if err := w.stop(); err != nil {
			return err
		}
	case 2:
		w.life.kill(r)
	}
	w.lossy, w.wentBack = true, true
	w.cluster.goBack(to)
	away := map[string]bool{"chosen": !w.config.chosen, "red": !w.config.red, "pinned": !w.config.pinned}
	for _, receiver := range w.receivers {
		receiver.goBack(w.cluster.history, away[receiver.name])
	}
	if down != 0 {
		for range r.IntN(8) {
			w.cluster.write(r, w.widgets)
		}
		if err := w.restart(); err != nil {
			return err
		}
	}
	w.settles() // a watch whose version the cluster has passed is recognized by the consistency check behind the rollback of another
	return nil
}

// settles reports whether everything is delivered within two minutes.
func (w *world) settles() bool {
	for range 12 {
		time.Sleep(10 * time.Second)
		w.cluster.Bookmark()
		synctest.Wait()
		if w.isKilled() {
			return false
		}
		if w.waits() == "" {
			return true
		}
	}
	return false
}

// since is by how many versions the cluster is ahead of a backup.
func (c *cluster) since(of *backup) uint64 {
	now, _ := strconv.ParseUint(c.Version(), 10, 64)
	return now - of.version
}

// goBack restores a backup. Of the histories it leaves the last state and the way back from it.
func (c *cluster) goBack(to *backup) {
	c.Restore(to.server)
	c.Compact() // a restored storage has no history of use
	c.Cut()
	for path := range c.history {
		now, exists := c.exists(path)
		then, existed := to.objects[path]
		now.verb, now.ready, now.chosen, now.at, then.at = "added", false, false, time.Now(), time.Now()
		then.ready, then.chosen = false, false
		var history []write
		if exists {
			history = append(history, now)
		}
		if exists && (!existed || now.life != then.life) {
			gone := now
			gone.verb = "deleted"
			history = append(history, gone)
		}
		switch {
		case !existed || exists && now.version == then.version:
		case exists && now.life == then.life:
			then.verb = "updated"
			history = append(history, then)
		default:
			then.verb = "added"
			history = append(history, then)
		}
		if c.history[path] = history; history == nil {
			delete(c.history, path)
		}
	}
	c.labels, c.uids = to.labels, to.uids
	if c.passed != to.passed {
		c.passed++
	}
}

func (r *receiver) set(mode string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode = mode
}

// goBack leaves of the events the last one of each object that exists, and remembers the ids of the others,
// which may arrive again. One whose watch is away sees no way back: it may have the state of the backup.
func (r *receiver) goBack(histories map[string][]write, away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.former == nil {
		r.former = map[string]received{}
	}
	last := map[string]received{}
	for _, e := range r.events {
		r.former[e.ID] = e
		if e.Type != event.Gap {
			last[e.Path] = e
		}
	}
	r.events, r.had = nil, map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(last)) {
		history, e := histories[path], last[path]
		is := func(h write) bool { return h.uid == e.UID && h.version == e.Version }
		r.had[e.UID] = away && e.Type != event.Deleted
		if e.Type != event.Deleted && len(history) > 0 && (is(history[0]) || away && is(history[len(history)-1])) {
			e.Earlier = !is(history[0]) || len(history) == 1
			r.events = append(r.events, e)
		}
	}
}
