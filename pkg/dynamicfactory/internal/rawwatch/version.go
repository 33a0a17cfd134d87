package rawwatch

import (
	"strconv"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// version is a resourceVersion. Nearly all are decimal numbers, which are kept as
// such so that remembering one takes no memory of its own.
type version struct {
	number uint64 // 0: not a number, or none
	text   string // only if it is not a number
}

func parseVersion(s string) version {
	if len(s) > 0 && s[0] != '0' {
		if n, err := strconv.ParseUint(s, 10, 64); err == nil && s[0] != '+' {
			return version{number: n}
		}
	}
	return version{text: s}
}

// versionOf is parseVersion for text that the caller goes on to use.
func versionOf(b []byte) version {
	var n uint64
	for i, c := range b {
		if c < '0' || c > '9' || i == 0 && c == '0' || i >= 19 {
			return version{text: string(b)}
		}
		n = n*10 + uint64(c-'0')
	}
	return version{number: n}
}

func (v version) none() bool { return v == version{} }

func (v version) String() string {
	if v.number == 0 {
		return v.text
	}
	return strconv.FormatUint(v.number, 10)
}

// older tells whether a is certainly older than b. Versions that are not numbers
// can only be equal or different.
func older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}
