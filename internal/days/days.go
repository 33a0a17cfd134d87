// Package days parses durations that may begin with days.
package days

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// ParseDuration parses what [time.ParseDuration] does, and a whole number of days in front of it: 7d, 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	number, rest, found := strings.Cut(text, "d")
	n, err := strconv.ParseUint(number, 10, 16)
	if !found || err != nil {
		return time.ParseDuration(text)
	}
	whole := time.Duration(n) * day
	if rest == "" {
		return whole, nil
	}
	d, err := time.ParseDuration(rest)
	if err == nil && (d < 0 || rest[0] == '+' || d > math.MaxInt64-whole) {
		err = fmt.Errorf("not a duration: %q", text)
	}
	return whole + d, err
}
