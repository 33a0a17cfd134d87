package natsclient

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
)

const (
	maxLine    = 1 << 20  // bytes of a line of the protocol; INFO, which names the servers of a cluster, is the longest
	maxMessage = 64 << 20 // bytes of a message, as of the server
)

var errProtocol = errors.New("the server sent a line or a message that is too long")

// guarded is a connection to a server that is not trusted. The client makes room for a message of the size that the
// server announces, and ends the process where there cannot be that much. Behind the beginning of TLS, which
// verifies the server, nothing is checked.
type guarded struct {
	net.Conn
	encrypted atomic.Bool

	// Of the goroutine that reads.
	head    []byte // of a line
	length  int    // of the line
	payload int    // bytes of a message that are to come
}

func (g *guarded) Write(p []byte) (int, error) {
	const handshake = 0x16 // a record of TLS; no line begins with it
	if len(p) > 0 && p[0] == handshake {
		g.encrypted.Store(true)
	}
	return g.Conn.Write(p)
}

func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if !g.encrypted.Load() && !g.accepts(p[:n]) {
		return 0, errProtocol
	}
	return n, err
}

// accepts takes in what is read next.
func (g *guarded) accepts(b []byte) bool {
	const longest = 8 << 10 // of a line that announces a message
	for len(b) > 0 {
		if g.payload > 0 {
			n := min(g.payload, len(b))
			g.payload -= n
			b = b[n:]
			continue
		}
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		g.length += len(part)
		g.head = append(g.head, part[:min(len(part), longest+1-len(g.head))]...)
		announces := len(g.head) > 0 && (g.head[0]|' ' == 'm' || g.head[0]|' ' == 'h')
		if g.length > maxLine || announces && g.length > longest {
			return false
		}
		if b = rest; !ended {
			return true
		}
		if announces {
			fields := bytes.Fields(g.head)
			size, err := strconv.ParseUint(string(fields[len(fields)-1]), 10, 64)
			if err != nil || size > maxMessage {
				return false
			}
			g.payload = int(size)
		}
		g.head, g.length = g.head[:0], 0
	}
	return true
}
