package sinks

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Duration is a length of time in the configuration: 500ms, 15s, 24h.
type Duration time.Duration

// Std is the duration as the standard library's.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// UnmarshalJSON reads Go's spelling of a duration.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("a duration such as 500ms, 15s or 24h is wanted, not %s", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("a duration such as 500ms, 15s or 24h is wanted, not %q", s)
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.Std().String()) }

// Bytes is an amount of bytes in the configuration, as Kubernetes spells
// quantities: 512, 100Mi, 1G.
type Bytes int64

// amount is what a quantity of bytes may look like: no exponents, as working out
// the value of 1e-2147483647 takes all the time there is.
var amount = regexp.MustCompile(`^-?[0-9]{1,15}(\.[0-9]{1,9})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`)

// UnmarshalJSON reads a number or a quantity.
func (n *Bytes) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return fmt.Errorf("read an amount of bytes: %w", err)
		}
	}
	if !amount.MatchString(text) {
		return fmt.Errorf("an amount of bytes such as 512, 100Mi or 1G is wanted, not %s", b)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("an amount of bytes such as 512, 100Mi or 1G is wanted, not %s", b)
	}
	*n = Bytes(q.Value())
	return nil
}

// MarshalJSON writes the number.
func (n Bytes) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(n), 10), nil }
