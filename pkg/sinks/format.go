package sinks

import (
	"bytes"
	"fmt"

	"github.com/watcherd/watcherd/pkg/event"
)

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
