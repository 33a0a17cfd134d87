package redis

import (
	"bytes"
	"errors"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
)

var errProtocol = errors.New("the server sent an answer without a request, or one that is too long or that the protocol does not have")

// guarded is a connection to a server that is not trusted. The client makes room for as much as a server announces, calls itself
// for arrays within arrays, and panics on an answer without a request, in goroutines of its own: each would end the process.
// It is for one goroutine that reads and one that writes.
type guarded struct {
	net.Conn
	requests scanner // of the goroutine that writes
	answers  scanner // of the goroutine that reads

	mu     sync.Mutex // guards what follows
	queue  []request  // without an answer, as the client has them
	more   int        // confirmations of a subscription that are to come
	pong   bool       // an answer to the PING behind UNSUBSCRIBE is to come
	pings  int        // PINGs of the client that the queue does not have
	resp3  bool       // the client has asked for version 3 of the protocol, in which messages are not arrays
	listen bool       // the client has subscribed, or ended that
}

// request is what the answer to a command depends on.
type request struct {
	kind     requestKind
	channels int
}

type requestKind int

const (
	ordinary requestKind = iota
	subscribe
	unsubscribe
	master // the answer is an address
)

func newGuarded(conn net.Conn) *guarded {
	return &guarded{
		Conn:     conn,
		requests: scanner{limits: limits{bytes: math.MaxInt, elements: math.MaxInt, depth: 1}},
		answers:  scanner{limits: limits{bytes: maxAnswer, elements: maxElements, depth: maxDepth}},
	}
}

func (g *guarded) Write(p []byte) (int, error) {
	if !g.requests.take(p, g.sent) {
		return 0, errors.Join(errProtocol, g.Close()) // the client writes what it always does
	}
	return g.Conn.Write(p)
}

func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if !g.answers.take(p[:n], g.received) {
		return 0, errors.Join(errProtocol, g.Close())
	}
	return n, err
}

// sent takes in a command.
func (g *guarded) sent(m *message) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := request{}
	switch m.words[0] {
	case "HELLO":
		g.resp3 = g.resp3 || m.words[1] == "3"
	case "SENTINEL":
		if m.words[1] == "GET-MASTER-ADDR-BY-NAME" {
			r.kind = master
		}
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE":
		g.listen = true
		r = request{subscribe, m.count - 1}
	case "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		g.listen = true
		g.pings++
		r.kind = unsubscribe
	case "PING":
		if g.pings > 0 {
			g.pings--
			return true
		}
	}
	g.queue = append(g.queue, r)
	return true
}

// received takes in an answer or a message of a subscription, as the client does. It is false for what the client does not
// expect.
func (g *guarded) received(m *message) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.kind == '>' || !g.resp3 && g.listen && m.count > 0 && m.words[0] != "pong" {
		return g.pushedLocked(m)
	}
	pong := m.pong()
	if g.pong {
		g.pong = false
		return pong
	}
	if len(g.queue) == 0 {
		return false
	}
	r := g.queue[0]
	g.queue = g.queue[1:]
	switch r.kind {
	case master:
		return m.kind != '*' && m.kind != '~' || m.count >= 2
	case unsubscribe:
		g.pong = !pong
		return m.text != "QUEUED"
	case subscribe:
		return m.text != "QUEUED"
	}
	return true
}

func (g *guarded) pushedLocked(m *message) bool {
	if m.count < 2 {
		return true // the client drops it
	}
	kind := m.words[0]
	begins := slices.Contains([]string{"subscribe", "psubscribe", "ssubscribe"}, kind)
	switch ends := slices.Contains([]string{"unsubscribe", "punsubscribe", "sunsubscribe"}, kind); {
	case (begins || ends) && g.more > 0:
		g.more--
	case begins:
		if len(g.queue) == 0 || g.queue[0].kind != subscribe {
			return false
		}
		g.more = g.queue[0].channels - 1
		g.queue = g.queue[1:]
	case kind == "message" && m.count > 2: // of a sentinel, whose words the client counts on
		words := strings.Count(m.words[2], " ") + 1
		return words >= map[string]int{"+sentinel": 4, "+reboot": 4, "+switch-master": 5}[m.words[1]]
	}
	return true
}

// Bounds of an answer. The longest are those about a cluster, and the texts of a server's settings.
const (
	maxAnswer   = 4 << 20 // bytes
	maxElements = 1 << 17 // of which the client makes room for as many as are announced
	maxDepth    = 8       // of arrays in arrays
	maxLine     = 64 << 10
	maxWord     = 1 << 10 // bytes of an element that are looked at
)

type limits struct{ bytes, elements, depth int }

// message is what a scanner finds of a message: its kind as on the wire, where a null of version 2 is that of version 3, the text
// of one that is a text, and of one with elements their number and the beginnings of the first; they are empty for what is no text.
type message struct {
	kind  byte
	text  string
	count int
	words [3]string
}

// pong reports whether the client takes it for the answer to a PING.
func (m *message) pong() bool {
	if m.kind == '-' && (strings.HasPrefix(m.text, "LOADING") || strings.HasPrefix(m.text, "BUSY") || strings.Contains(m.text, "'ping'")) {
		return true
	}
	return m.text == "PONG" || m.count > 0 && m.words[0] == "pong"
}

// scanner finds the messages in a stream of the protocol, which comes in parts.
type scanner struct {
	limits

	line  []byte // what has come of a line
	kind  byte   // of the text that comes
	text  []byte // what is kept of it
	bulk  int    // bytes of it that are to come
	ends  bool   // its line end is to come
	open  []int  // elements to come, of each array that is open
	words int    // elements of the outermost array that have come

	size, elements int // of the message
	message        message
}

// take calls whole for each message that ends in b; it is valid during the call. It returns false for what is no message, is above
// a limit, or is not wanted.
func (s *scanner) take(b []byte, whole func(*message) bool) bool {
	for len(b) > 0 {
		if s.bulk > 0 {
			n := min(s.bulk, len(b))
			s.text = append(s.text, b[:min(n, maxWord-len(s.text))]...)
			s.bulk -= n
			b = b[n:]
			continue
		}
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		s.line = append(s.line, part[:min(len(part), maxLine+1-len(s.line))]...)
		if len(s.line) > maxLine {
			return false
		}
		if b = rest; !ended {
			return s.unended()
		}
		line, ok := bytes.CutSuffix(s.line, []byte("\r"))
		s.line = s.line[:0]
		if !ok || !s.next(line, whole) {
			return false
		}
	}
	return true
}

// unended reports whether what has come of a line may become one. Of texts, nulls and truth values the client skips two bytes, and does
// not look for the end.
func (s *scanner) unended() bool {
	rest := s.line
	switch {
	case s.ends || len(rest) == 0:
	case rest[0] == '_':
		rest = rest[1:]
	case rest[0] == '#':
		rest = rest[min(2, len(rest)):]
	default:
		return true
	}
	return len(rest) == 0 || string(rest) == "\r"
}

// next takes in a line.
func (s *scanner) next(line []byte, whole func(*message) bool) bool {
	if s.ends {
		s.ends = false
		return len(line) == 0 && s.element(s.kind, s.text, whole)
	}
	if len(line) == 0 {
		return false
	}
	s.size += len(line)
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', '-', ',', '(':
		return s.element(kind, rest, whole)
	case ':':
		return len(rest) < 32 && s.element(kind, nil, whole)
	case '_':
		return len(rest) == 0 && s.element(kind, nil, whole)
	case '#':
		return len(rest) == 1 && s.element(kind, nil, whole)
	case '$', '!', '=':
		n, null, ok := length(kind, rest)
		if null {
			return s.element('_', nil, whole)
		}
		if s.size += n; !ok || s.size > s.bytes {
			return false
		}
		s.kind, s.text, s.bulk, s.ends = kind, s.text[:0], n, true
		return true
	case '*', '~', '%', '>':
		n, null, ok := length(kind, rest)
		switch {
		case null:
			return s.element('_', nil, whole)
		case kind == '%':
			n *= 2
		case kind == '>' && len(s.open) > 0:
			return false
		}
		if s.elements += n; !ok || s.elements > s.limits.elements || len(s.open) == s.depth {
			return false
		}
		if n == 0 {
			return s.element(kind, nil, whole)
		}
		if len(s.open) == 0 {
			s.message = message{kind: kind, count: n}
			s.words = 0
		}
		s.open = append(s.open, n)
		return true
	}
	return false
}

// length is that of a text or an array. Those of version 2 may be null.
func length(kind byte, text []byte) (n int, null, ok bool) {
	if string(text) == "-1" && (kind == '$' || kind == '*') {
		return 0, true, true
	}
	long, err := strconv.ParseUint(string(text), 10, 31)
	return int(long), false, err == nil
}

// element takes in a message without elements, alone or in an array, and the ends of arrays with it.
func (s *scanner) element(kind byte, text []byte, whole func(*message) bool) bool {
	if s.size > s.bytes {
		return false
	}
	if len(s.open) == 0 {
		s.message = message{kind: kind, text: string(text)}
	} else if len(s.open) == 1 && s.words < len(s.message.words) {
		s.message.words[s.words] = string(text[:min(len(text), maxWord)])
	}
	for n := len(s.open) - 1; n >= 0; n-- {
		if n == 0 {
			s.words++
		}
		if s.open[n]--; s.open[n] > 0 {
			return true
		}
		s.open = s.open[:n]
	}
	s.size, s.elements = 0, 0
	return whole(&s.message)
}
