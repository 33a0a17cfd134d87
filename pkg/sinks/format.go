package sinks

import (
	"bytes"
	"fmt"

	"github.com/watcherd/watcherd/pkg/event"
)

// Append appends e in the format. Of [CloudEventsBinary] it is the body; the
// attributes are the transport's business ([event.Attributes]). The empty format
// is the default one.
func (f Format) Append(dst []byte, e *event.Event) []byte {
	switch f {
	case JSON:
		return event.AppendJSON(dst, e)
	case CloudEventsBinary:
		return event.AppendData(dst, e)
	default:
		return event.AppendCloudEvent(dst, e)
	}
}

// AppendLine appends e as exactly one line with its newline: the form of files
// and of standard output. JSON strings hold no raw line break, so one can only
// stand between tokens, where a space means the same.
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
