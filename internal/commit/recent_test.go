package commit

import (
	"testing"

	"github.com/watcherd/watcherd/pkg/compact"
)

func TestRecentRemembersForFollowersOnly(t *testing.T) {
	var r recent
	old := &compact.Object{}
	r.put(1, old)
	if r.get(1) != nil {
		t.Error("remembered although nobody follows")
	}
	one, two := r.follow(), r.follow()
	r.put(2, old)
	r.put(2+recentSize, nil)
	r.put(3, old)
	if r.get(2) != nil || r.get(3) != old || r.get(3+recentSize) != nil {
		t.Error("a sequence answers for another, or not for itself")
	}
	one()
	if r.get(3) != old {
		t.Error("forgotten while somebody follows")
	}
	two()
	if r.get(3) != nil {
		t.Error("remembered after the last follower")
	}
}
