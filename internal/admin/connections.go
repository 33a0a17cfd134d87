package admin

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"
)

// connections bounds the connections of one http.Server. A new one that is too many takes
// the place of the one without a request for the longest time, so a client that holds
// connections open does not block other clients. Connections on which a counted handler
// answers stay, unless brief.
type connections struct {
	limit int
	brief bool // answers are: the oldest gives way where all connections have a request

	mu    sync.Mutex
	open  map[net.Conn]*connection // guarded by mu
	ended bool                     // guarded by mu; see end
}

// connection is what is known of an open connection. It is guarded by connections.mu.
type connection struct {
	of       *connections
	requests int       // that counted handlers answer
	open     int       // answers to clients that are not authenticated
	used     bool      // it has had a request
	idle     time.Time // since when there is none, or since when there is one
}

func newConnections(limit int, brief bool) *connections {
	return &connections{limit: limit, brief: brief, open: map[net.Conn]*connection{}}
}

type connectionKey struct{}

// attach makes the server report its connections. Its handler has to call counted for the requests
// that keep a connection.
func (c *connections) attach(srv *http.Server) {
	srv.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c.add(conn))
	}
	srv.ConnState = func(conn net.Conn, state http.ConnState) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch state {
		case http.StateActive:
			if known, ok := c.open[conn]; ok {
				known.used = true
			}
		case http.StateClosed, http.StateHijacked:
			delete(c.open, conn)
		default:
		}
	}
}

// end closes the connections that have had no request, and those that are still made: browsers open some in advance, and
// http.Server.Shutdown would wait for them for seconds. Call it before that.
func (c *connections) end() {
	var silent []net.Conn
	c.mu.Lock()
	c.ended = true
	for conn, known := range c.open {
		if !known.used {
			silent = append(silent, conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range silent {
		hangUp(conn)
	}
}

// hangUp closes a connection without a farewell of TLS, which would wait until that is sent.
func hangUp(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close() // its error has no reader
}

// counted returns a handler whose connections are not idle while it answers. It is for the requests
// of clients that are authenticated, so that others cannot hold all connections by reading slowly.
func counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if known, ok := r.Context().Value(connectionKey{}).(*connection); ok {
			known.of.count(known, 1)
			defer known.of.count(known, -1)
		}
		next.ServeHTTP(w, r)
	})
}

// maxOpen is how many answers to clients that are not authenticated a connection has at a time: files of the page, which has
// three, and refusals. What HTTP/2 answers at a time and the client does not read is in memory, its request included.
const maxOpen = 8

// takeOpen takes a place for such an answer, until it is written. Without a place the request is aborted.
func takeOpen(r *http.Request) (release func()) {
	known, ok := r.Context().Value(connectionKey{}).(*connection)
	if !ok {
		return func() {}
	}
	known.of.mu.Lock()
	defer known.of.mu.Unlock()
	if known.open == maxOpen {
		panic(http.ErrAbortHandler)
	}
	known.open++
	return func() {
		known.of.mu.Lock()
		defer known.of.mu.Unlock()
		known.open--
	}
}

// add counts a new connection, and closes another one, or itself, if it is too many, or late.
func (c *connections) add(conn net.Conn) *connection {
	added := &connection{of: c, idle: time.Now()}
	var victim net.Conn
	c.mu.Lock()
	switch {
	case c.ended:
		victim = conn
	case len(c.open) >= c.limit:
		if victim = c.oldest(false); victim == nil && c.brief {
			victim = c.oldest(true)
		}
		if victim == nil {
			victim = conn
		}
		delete(c.open, victim)
	}
	if victim != conn {
		c.open[conn] = added
	}
	c.mu.Unlock()
	if victim != nil {
		hangUp(victim)
	}
	return added
}

// oldest returns the connection that has been idle for the longest time, or busy; nil if there
// is none. c.mu is held.
func (c *connections) oldest(busy bool) (found net.Conn) {
	for conn, known := range c.open {
		if known.requests > 0 == busy && (found == nil || known.idle.Before(c.open[found].idle)) {
			found = conn
		}
	}
	return found
}

// count notes that a request begins or ends.
func (c *connections) count(known *connection, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known.requests += n
	known.idle = time.Now()
}

// guarded lets only those through who may use the listener.
func (s *Server) guarded(bound net.Addr, next http.Handler) http.Handler {
	next = counted(next)
	open := s.open()
	host, _, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil { // bound to it, so it is one
		host = ""
	}
	check := func(r *http.Request) *Problem {
		if open && isLoopback(bound) && !localHost(r.Host, host) {
			// A foreign name resolves to this host: DNS rebinding by a web page.
			return problemf(http.StatusForbidden, "this listener is for this machine: ask it as localhost or 127.0.0.1, not as %q", r.Host)
		}
		if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) {
			return problemf(http.StatusForbidden, "requests from web pages of other sites are not answered (Origin %q)", origin)
		}
		if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
			return problemf(http.StatusForbidden, "requests from web pages of other sites are not answered")
		}
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, p := s.authenticate(r)
		if p == nil {
			p = check(r)
		}
		reading := reads(r) || strings.HasPrefix(r.URL.Path, past)
		if p == nil && !reading {
			p = s.accept(who, r)
		}
		if p != nil {
			s.metrics.denied.WithLabelValues(http.StatusText(p.Status)).Inc()
			if p.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="watcherd"`)
			}
			if r.TLS != nil && p.Status == http.StatusForbidden {
				w.Header().Set("Connection", "close") // on the next one the client may have another certificate
			}
			release := takeOpen(r)
			defer release()
			p.write(w)
			if r.ProtoMajor > 1 {
				_ = http.NewResponseController(w).Flush() // returns when the client has it; an error is its end
			}
			return
		}
		if reading {
			next.ServeHTTP(w, r)
			return
		}
		rec := &recorder{ResponseWriter: w, code: http.StatusOK}
		defer s.ended(who, r, rec, time.Now())
		next.ServeHTTP(rec, r)
	})
}

// open reports whether the admin listener answers every client that reaches it.
func (s *Server) open() bool { return !s.cfg.Access.tokens() && s.cfg.ClientCAFile == "" }

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// localHost reports whether a Host header can only mean this machine. configured is
// the host that the listener was given, which its user knows to be.
func localHost(header, configured string) bool {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") || configured != "" && strings.EqualFold(host, configured) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
