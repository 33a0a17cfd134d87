// Package nearest finds the name that a misspelt one was meant to be.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// Bounds of the work for one suggestion.
const (
	maxName       = 80
	maxCandidates = 256
)

// Of is the candidate that s was most likely meant to be, or "" when none
// is near or too many are. Letter case is ignored, and so is the ending of a plural.
func Of(s string, candidates []string) string {
	if len(s) > maxName || len(candidates) > maxCandidates {
		return ""
	}
	best, least := "", 1+max(1, len(s)/3)
	for _, c := range candidates {
		if strings.EqualFold(s+"es", c) || strings.EqualFold(s, c+"es") {
			return c
		}
		if d := distance(strings.ToLower(s), strings.ToLower(c), least); d < least {
			best, least = c, d
		}
	}
	return best
}

// First returns the candidates in alphabetical order, behind the one that Of returns.
func First(s string, candidates []string) []string {
	near := Of(s, candidates)
	return slices.SortedFunc(slices.Values(candidates), func(a, b string) int {
		switch near {
		case a:
			return -1
		case b:
			return 1
		}
		return cmp.Compare(a, b)
	})
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b; it may stop at limit.
func distance(a, b string, limit int) int {
	if abs(len(a)-len(b)) >= limit {
		return limit
	}
	before, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
		before, previous, current = previous, current, before
	}
	return previous[len(b)]
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}
