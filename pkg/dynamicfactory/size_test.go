package dynamicfactory

import (
	"testing"
	"testing/synctest"
	"time"
)

// slowCache is a cache that takes time to list.
type slowCache struct {
	objects int
	takes   time.Duration
	lists   int
}

func (c *slowCache) List() []any {
	c.lists++
	time.Sleep(c.takes)
	return make([]any, c.objects)
}

// A large cache is counted for a hundredth of the time, however often its size is asked for;
// a small one is counted each time.
func TestSizeOfALargeCache(t *testing.T) {
	for _, tc := range []struct {
		objects int
		takes   time.Duration
		lists   int // in 100 seconds
	}{
		{sizeLarge - 1, 10 * time.Millisecond, 1000},
		{sizeLarge, 10 * time.Millisecond, 100},
		{1_000_000, time.Second, 7},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, s := &slowCache{objects: tc.objects, takes: tc.takes}, &size{}
			for began := time.Now(); time.Since(began) < 100*time.Second; time.Sleep(90 * time.Millisecond) {
				if n, _ := s.of(c); n != tc.objects {
					t.Fatalf("%d objects, want %d", n, tc.objects)
				}
			}
			if c.lists > tc.lists {
				t.Errorf("%d objects were counted %d times", tc.objects, c.lists)
			}
			c.objects++
			time.Sleep(sizeAge)
			if n, _ := s.of(c); n != c.objects {
				t.Errorf("%d objects %v later, want %d", n, sizeAge, c.objects)
			}
		})
	}
}
