package admin

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// guarded lets only those through who may use the listener.
func (s *Server) guarded(bound net.Addr, next http.Handler) http.Handler {
	open := !s.cfg.Access.tokens() && s.cfg.ClientCAFile == ""
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
			p.write(w)
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
