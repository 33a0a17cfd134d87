package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
)

// guarded lets only those through who may use the listener.
func (s *Server) guarded(bound net.Addr, next http.Handler) http.Handler {
	open := s.cfg.TokenFile == "" && s.cfg.ClientCAFile == ""
	host, _, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil { // bound to it, so it is one
		host = ""
	}
	check := func(r *http.Request) *Problem {
		if s.cfg.TokenFile != "" {
			if p := s.authenticate(r); p != nil {
				return p
			}
		}
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
		if p := check(r); p != nil {
			s.metrics.denied.WithLabelValues(http.StatusText(p.Status)).Inc()
			if p.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="watcherd"`)
			}
			p.write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authenticate compares the bearer token with the file's, which is read each time:
// it may have been rotated.
func (s *Server) authenticate(r *http.Request) *Problem {
	want, err := readToken(s.cfg.TokenFile)
	if err != nil {
		s.log.Error("admin listener rejects all requests: token file is not readable", "error", err)
		return problemf(http.StatusUnauthorized, "the daemon cannot read its token file; see its log")
	}
	scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || got == "" {
		return problemf(http.StatusUnauthorized, "send the token of admin.auth.tokenFile as 'Authorization: Bearer TOKEN' (--token-file)")
	}
	// Hashes have one length, so that the comparison does not reveal the token's.
	a, b := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(got))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return problemf(http.StatusUnauthorized, "the token is not the one in admin.auth.tokenFile")
	}
	return nil
}

var errEmptyToken = errors.New("the file is empty")

func readToken(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("%s: %w", file, errEmptyToken)
	}
	return token, nil
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
