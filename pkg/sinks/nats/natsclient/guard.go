package natsclient

import (
	"bytes"
	"errors"
	"net"
	"strconv"
)

const (
	maxLine    = 1 << 20  // bytes of a line of the protocol; INFO, which names the servers of a cluster, is the longest
	maxMessage = 64 << 20 // bytes of a message, as of the server
)

var errProtocol = errors.New("the server sent what the protocol does not have, or a line or a message that is too long")

// guarded is a connection to a server that is not trusted. The client makes room for a message of the size that the
// server announces, and ends the process where there cannot be that much. It is for one goroutine that reads and one that
// writes, and until TLS has begun for one that does both.
type guarded struct {
	net.Conn  // with TLS once that has begun
	handshake func(net.Conn) (net.Conn, error)
	upgrade   bool    // TLS begins before the next write
	written   bool    // by the client
	early     []byte  // read behind the first line, which is all that a server sends before TLS
	frames    *frames // nil: it is no WebSocket

	// Of the goroutine that reads.
	head    []byte // of a line
	length  int    // of the line
	cr      bool   // the line has a CR, which LF has to follow
	payload int    // bytes of a message that are to come
	behind  bool   // the line is what follows a message: it is empty
}

// begin begins TLS. Where that fails, it closes the connection: nothing is written without.
func (g *guarded) begin() error {
	g.upgrade = false
	if len(g.early) > 0 {
		return errors.Join(errProtocol, g.Conn.Close()) // it would pass for what the verified server sends
	}
	secured, err := g.handshake(g.Conn)
	if err != nil {
		return errors.Join(err, g.Conn.Close())
	}
	g.Conn = secured
	return nil
}

func (g *guarded) Write(p []byte) (int, error) {
	if !g.written {
		if g.upgrade {
			if err := g.begin(); err != nil {
				return 0, err
			}
		}
		g.written = true
	}
	return g.Conn.Write(p)
}

func (g *guarded) Read(p []byte) (n int, err error) {
	if g.written && len(g.early) > 0 {
		n = copy(p, g.early)
		g.early = g.early[n:]
	} else if n, err = g.Conn.Read(p); !g.written {
		if first := bytes.IndexByte(p[:n], '\n') + 1; first > 0 {
			g.early = append(g.early, p[first:n]...)
			n = first
		}
	}
	if !g.passes(p[:n]) {
		return 0, errors.Join(errProtocol, g.Close()) // the client does not close what it has not connected yet
	}
	return n, err
}

// passes takes in what is read next.
func (g *guarded) passes(b []byte) bool {
	if g.frames == nil {
		return g.accepts(b)
	}
	return g.frames.take(b, g.accepts)
}

// accepts takes in what follows in the protocol of NATS. Lines end with CRLF, and a message does: where they do not, the
// client and the guard would not agree where the next line begins.
func (g *guarded) accepts(b []byte) bool {
	const longest = 8 << 10 // of a line that announces a message, or reports an error
	for len(b) > 0 {
		if g.payload > 0 {
			n := min(g.payload, len(b))
			g.payload -= n
			b = b[n:]
			continue
		}
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		cr := bytes.IndexByte(part, '\r')
		if g.cr && len(part) > 0 || cr >= 0 && cr < len(part)-1 {
			return false
		}
		g.cr = g.cr || cr >= 0
		if ended && !g.cr {
			return false
		}
		g.length += len(part)
		if g.behind && g.length > len("\r") {
			return false
		}
		g.head = append(g.head, part[:min(len(part), longest+1-len(g.head))]...)
		announces := len(g.head) > 0 && (g.head[0]|' ' == 'm' || g.head[0]|' ' == 'h')
		if g.length > maxLine || g.length > longest && (announces || g.head[0] == '-') {
			return false
		}
		if b = rest; !ended {
			return true
		}
		if g.behind = announces; announces {
			fields := bytes.Fields(g.head)
			size, err := strconv.ParseUint(string(fields[len(fields)-1]), 10, 64)
			if err != nil || size > maxMessage {
				return false
			}
			g.payload = int(size)
		}
		g.head, g.length, g.cr = g.head[:0], 0, false
	}
	return true
}

// frames takes a WebSocket apart: the answer to the request for it, and the frames behind that.
type frames struct {
	answered bool
	head     []byte // of the answer, or of a frame
	left     uint64 // bytes of the frame's payload that are to come
	data     bool   // it is a part of a message, not of a control frame
}

// take passes on the payload of messages. It is false for what the client did not agree to.
func (f *frames) take(b []byte, accepts func([]byte) bool) bool {
	for len(b) > 0 {
		if f.left > 0 {
			n := int(min(f.left, uint64(len(b))))
			if f.data && !accepts(b[:n]) {
				return false
			}
			f.left -= uint64(n)
			b = b[n:]
			continue
		}
		f.head = append(f.head, b[0])
		b = b[1:]
		if ok := f.answered && f.frame() || !f.answered && f.answer(); !ok {
			return false
		}
	}
	return true
}

// answer looks at the next byte of the answer, whose end must be one for every reader.
func (f *frames) answer() bool {
	const most = 16 << 10
	switch n := len(f.head); {
	case f.head[n-1] == '\n':
		line := bytes.HasSuffix(f.head, []byte("\r\n"))
		if f.answered = bytes.HasSuffix(f.head, []byte("\r\n\r\n")); f.answered {
			f.head = f.head[:0]
		}
		return line
	case n > 1 && f.head[n-2] == '\n' && (f.head[n-1] == ' ' || f.head[n-1] == '\t'): // it continues the line before
		return false
	}
	return len(f.head) < most
}

// frame looks at the next byte of a frame's head.
func (f *frames) frame() bool {
	const extensions, control, masked = 0x70, 0x08, 0x80
	if len(f.head) == 1 {
		f.data = f.head[0]&control == 0
		return f.head[0]&extensions == 0 // such as compression
	}
	length, more := uint64(f.head[1]&^masked), 0
	switch length {
	case 126:
		more = 2
	case 127:
		more = 8
	}
	if f.head[1]&masked != 0 || !f.data && more > 0 {
		return false
	}
	if len(f.head) < 2+more {
		return true
	}
	if more > 0 {
		length = 0
		for _, digit := range f.head[2:] {
			length = length<<8 | uint64(digit)
		}
	}
	f.head, f.left = f.head[:0], length
	return length <= maxMessage
}
