package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watcherd/watcherd/internal/days"
	"github.com/watcherd/watcherd/pkg/event"
)

// Duration is a length of time in the configuration: 500ms, 15s, 24h, 7d.
type Duration time.Duration

// Std is the duration as the standard library's.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// UnmarshalJSON reads Go's spelling of a duration, with days in front of it if necessary.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration; write it like 500ms, 30s, 24h or 7d", b)
	}
	v, err := days.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration; write it like 500ms, 30s, 24h or 7d", s)
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
		return fmt.Errorf("%s is not a quantity; write bytes like 512Mi, 10Gi or 1048576", b)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("%s is not a quantity; write bytes like 512Mi, 10Gi or 1048576", b)
	}
	*n = Bytes(q.Value())
	return nil
}

// MarshalJSON writes the number.
func (n Bytes) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(n), 10), nil }

// Append appends what is sent of e: its [event.Event.Body] if it has one, otherwise its
// encoding in the format. Of [CloudEventsBinary] that is the data; the attributes are the
// transport's responsibility ([event.Attributes]). The empty format is the default one.
func (f Format) Append(dst []byte, e *event.Event) []byte {
	if e.Body != nil {
		return append(dst, e.Body...)
	}
	switch f {
	case JSON:
		return event.AppendJSON(dst, e)
	case CloudEventsBinary:
		return event.AppendData(dst, e)
	default:
		return event.AppendCloudEvent(dst, e)
	}
}

// ContentType is the media type of what Append appends.
func (f Format) ContentType(e *event.Event) string {
	switch {
	case e.Body != nil:
		return e.ContentType
	case f == JSON, f == CloudEventsBinary:
		return event.ContentTypeJSON
	default:
		return event.ContentTypeCloudEvent
	}
}

// AppendLine appends e as exactly one line with its newline: the form of files
// and of standard output. A line break becomes a space. In JSON it is always between
// tokens, where a space means the same.
func (f Format) AppendLine(dst []byte, e *event.Event) []byte {
	start := len(dst)
	dst = f.Append(dst, e)
	for line := dst[start:]; ; {
		i := bytes.IndexByte(line, '\n')
		if i < 0 {
			return append(dst, '\n')
		}
		line[i] = ' '
		line = line[i+1:]
	}
}

// RequireText reports an error unless the format stands on its own, without
// headers beside it: what kinds that write text ask for in Open.
func (f Format) RequireText() error {
	switch f {
	case "", CloudEvents, JSON:
		return nil
	default:
		return fmt.Errorf("format %s needs headers, which this kind of sink has not: use %s or %s", f, CloudEvents, JSON)
	}
}
