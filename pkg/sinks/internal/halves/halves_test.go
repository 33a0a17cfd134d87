package halves_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// TestWrite: the events with these numbers are refused; the destination ends with the request of that
// number. Eight events are of objects 0 to 3, then again.
func TestWrite(t *testing.T) {
	end := errors.New("gone")
	for _, test := range []struct {
		refused  []int
		end      int // 0: never
		accepted []int
		failed   map[int]string
	}{
		{nil, 0, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil},
		{[]int{5}, 0, []int{0, 1, 2, 3, 4, 6, 7}, map[int]string{5: "poison"}},
		{[]int{1, 2}, 0, []int{0, 3, 4, 7}, map[int]string{1: "poison", 2: "poison", 5: "retry", 6: "retry"}},
		{[]int{0, 1, 2, 3}, 0, nil, map[int]string{0: "poison", 1: "poison", 2: "poison", 3: "poison", 4: "retry", 5: "retry", 6: "retry", 7: "retry"}},
		{nil, 1, nil, nil},
		{[]int{7}, 3, []int{0, 1, 2, 3}, map[int]string{4: "gone", 5: "gone", 6: "gone", 7: "gone"}},
		{[]int{0}, 5, nil, map[int]string{0: "poison", 1: "gone", 2: "gone", 3: "gone", 4: "gone", 5: "gone", 6: "gone", 7: "gone"}},
	} {
		events := sinktest.Events(8, 4)
		var accepted []int
		requests := 0
		err := halves.Write(events, func(part []*event.Event) error {
			requests++
			if requests == test.end {
				return end
			}
			for _, e := range part {
				if slices.Contains(test.refused, int(e.Sequence)-1) {
					return sinks.Poison(errors.New("refused"))
				}
			}
			for _, e := range part {
				accepted = append(accepted, int(e.Sequence)-1)
			}
			return nil
		})
		if !slices.Equal(accepted, test.accepted) {
			t.Errorf("%+v: accepted %v", test, accepted)
		}
		failed := map[int]string{}
		switch b, ok := errors.AsType[*sinks.BatchError](err); {
		case ok:
			for i, why := range b.Failed {
				class, _ := sinks.Classify(why)
				failed[i] = class.String()
				if errors.Is(why, end) {
					failed[i] = "gone"
				}
			}
		case test.end == 1 && !errors.Is(err, end), test.end != 1 && err != nil:
			t.Errorf("%+v: %v", test, err)
		}
		if fmt.Sprint(failed) != fmt.Sprint(test.failed) {
			t.Errorf("%+v: failed %v", test, failed)
		}
	}
}
