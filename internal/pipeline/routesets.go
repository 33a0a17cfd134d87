package pipeline

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
)

// routeSetMeta and the number of a set of routes are the key of their names.
const routeSetMeta = "routeset/"

// routeSets numbers the sets of routes by which sinks were given records of the log that name other
// routes: queue entries have the number in their flags. A number is durable before it is used, and
// is not used again. It is safe for concurrent use.
type routeSets struct {
	store  *store.Store
	mu     sync.RWMutex
	routes map[uint32]string // guarded by mu; by number
	saved  map[uint32]bool   // guarded by mu
}

var _ record.RouteSets = (*routeSets)(nil)

// loadRouteSets returns the sets that the store has.
func loadRouteSets(st *store.Store) (*routeSets, error) {
	s := &routeSets{store: st, routes: map[uint32]string{}, saved: map[uint32]bool{}}
	err := st.ScanMeta(routeSetMeta, func(key string, routes []byte) error {
		n, err := strconv.ParseUint(strings.TrimPrefix(key, routeSetMeta), 10, 32)
		if err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
		s.routes[uint32(n)], s.saved[uint32(n)] = string(routes), true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load sets of routes: %w", err)
	}
	return s, nil
}

// Routes implements record.RouteSets.
func (s *routeSets) Routes(n uint32) (routes string, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	routes, ok = s.routes[n]
	return routes, ok
}

// Number implements record.RouteSets.
func (s *routeSets) Number(routes string) (uint32, error) {
	n, saved := s.number(routes)
	if n == 0 || saved {
		return n, nil
	}
	if err := ledger.PutMeta(s.store, routeSetKey(n), []byte(routes)); err != nil {
		return 0, fmt.Errorf("%w: note the routes %s: %w", ledger.ErrStore, routes, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved[n] = true
	return n, nil
}

func routeSetKey(n uint32) string { return routeSetMeta + strconv.FormatUint(uint64(n), 10) }

// number returns the number of a set and whether the store has it. It follows from the names, so that
// a set whose note was lost to damage gets the same again.
func (s *routeSets) number(routes string) (n uint32, saved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.routes) >= record.MaxRouteSet/2 {
		return 0, false
	}
	for n = 1 + uint32(xxhash.Sum64String(routes)%record.MaxRouteSet); ; n = 1 + n%record.MaxRouteSet {
		switch known, ok := s.routes[n]; {
		case !ok:
			s.routes[n] = routes
			return n, false
		case known == routes:
			return n, s.saved[n]
		}
	}
}
