package admin

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Access states which clients read and which also run commands. Where tokens are
// configured a client needs one, where names are it needs a certificate with one of
// them, and where both are it needs both. The zero Access lets every client run commands.
type Access struct {
	ReadTokenFile, CommandTokenFile string   // hold bearer tokens; "": there is no such token
	ReadNames, CommandNames         []string // see namesOf
}

func (a *Access) tokens() bool { return a.ReadTokenFile+a.CommandTokenFile != "" }

// check reports a token file that cannot be used, so that it is an error of the start.
func (a *Access) check() error {
	for _, f := range []struct{ key, file string }{
		{"admin.auth.readTokenFile", a.ReadTokenFile}, {"admin.auth.commandTokenFile", a.CommandTokenFile},
	} {
		if f.file == "" {
			continue
		}
		if _, err := readToken(f.file); err != nil {
			return fmt.Errorf("%s: %w", f.key, err)
		}
	}
	return nil
}

// caller is an authenticated client.
type caller struct {
	name     string // for the log: the kind of the credential
	names    names  // of the certificate
	commands bool   // whether it may run commands
}

// names are those of a certificate. A client may have chosen some of them, so they are a list, each in quotes in a text.
type names []string

func (n names) String() string { return fmt.Sprintf("%q", []string(n)) }

// authenticate finds out whose request it is. The files of tokens and of authorities are read each time:
// they may have been replaced since the connection was made.
func (s *Server) authenticate(r *http.Request) (caller, *Problem) {
	access := &s.cfg.Access
	who := caller{name: "local client", commands: true}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who.name, who.names = "certificate", namesOf(r.TLS.PeerCertificates[0])
		if err := s.certs.verify(r.TLS.PeerCertificates); err != nil {
			return who, problemf(http.StatusForbidden, "the certificate is valid no longer: %v", err)
		}
		if len(access.ReadNames)+len(access.CommandNames) > 0 {
			in := func(list []string) bool {
				return slices.ContainsFunc(who.names, func(name string) bool { return slices.Contains(list, name) })
			}
			who.commands = in(access.CommandNames)
			if !who.commands && !in(access.ReadNames) {
				return who, problemf(http.StatusForbidden, "the certificate has none of the names in admin.auth.readNames and admin.auth.commandNames; it has %s", who.names)
			}
		}
	}
	if !access.tokens() {
		return who, nil
	}
	scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || got == "" {
		return who, problemf(http.StatusUnauthorized, "send a token of admin.auth as 'Authorization: Bearer TOKEN' (--token-file)")
	}
	for _, known := range []struct {
		name, file string
		commands   bool
	}{{"command token", access.CommandTokenFile, true}, {"read token", access.ReadTokenFile, false}} {
		if known.file == "" {
			continue
		}
		want, err := readToken(known.file)
		s.noteToken(known.name, err)
		if err != nil {
			continue
		}
		// Hashes have one length, so that the comparison does not reveal the token's.
		a, b := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(got))
		if subtle.ConstantTimeCompare(a[:], b[:]) == 1 {
			return caller{name: known.name, names: who.names, commands: who.commands && known.commands}, nil
		}
	}
	return who, problemf(http.StatusUnauthorized, "the token is not in admin.auth; if it should be, the log of the daemon has the reason")
}

// noteToken logs that a token file is not readable, and that it is again: not each request.
func (s *Server) noteToken(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	before := s.unreadable[name]
	s.unreadable[name] = text
	s.mu.Unlock()
	switch {
	case text == before:
	case err != nil:
		s.log.Error("token file not readable; the admin listener rejects its token", "for", name, "error", err)
	default:
		s.log.Info("token file readable again", "for", name)
	}
}

// namesOf are the names that a certificate states, sorted: its alternative names, and its common name as
// CN=NAME. An authority may verify one kind of names and sign any text of another, so each has to
// have its kind's form, in which no other kind's name passes for it.
func namesOf(c *x509.Certificate) names {
	names := names{}
	if c.Subject.CommonName != "" {
		names = append(names, "CN="+c.Subject.CommonName)
	}
	for _, name := range c.DNSNames {
		if !strings.ContainsAny(name, "=@:") {
			names = append(names, name)
		}
	}
	for _, address := range c.EmailAddresses {
		if strings.Contains(address, "@") && !strings.ContainsAny(address, "=:") {
			names = append(names, address)
		}
	}
	for _, u := range c.URIs {
		if u.Scheme != "" {
			names = append(names, u.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// reads reports whether a request changes nothing.
func reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// maxLogged is how much of a command's request is logged.
const maxLogged = 512

// shownInLog are the commands whose requests are logged, by the ends of their paths.
var shownInLog = map[string]bool{"replay": true, "snapshot": true, "backup": true, "skip": true, "retry": true, "drop": true}

// accept lets a client run a command and logs who asked for what before it begins, so
// that the log has it even if the daemon dies of it. A request has no secrets, unless it is a
// configuration, which may also be sent as YAML, or to a path that is misspelt.
func (s *Server) accept(who caller, r *http.Request) *Problem {
	if !who.commands {
		s.log.Warn("command refused", s.trail(who, r)...)
		return problemf(http.StatusForbidden, "the %s is for reading; commands need the token of admin.auth.commandTokenFile or a name of admin.auth.commandNames", who.name)
	}
	if !shownInLog[path.Base(r.URL.Path)] || r.Header.Get("Content-Type") != "application/json" {
		s.log.Info("command accepted", s.trail(who, r)...)
		return nil
	}
	body := bufio.NewReaderSize(r.Body, maxLogged)
	head, _ := body.Peek(maxLogged) // the handler's own read has the error
	r.Body = struct {
		io.Reader
		io.Closer
	}{body, r.Body}
	s.log.Info("command accepted", append(s.trail(who, r), "request", string(bytes.TrimSpace(head)))...)
	return nil
}

func (s *Server) ended(who caller, r *http.Request, answer *recorder, begin time.Time) {
	s.log.Info("command ended", append(s.trail(who, r), "status", answer.code, "took", time.Since(begin))...)
}

func (s *Server) trail(who caller, r *http.Request) []any {
	path := r.URL.Path
	if len(path) > maxLogged {
		path = path[:maxLogged]
	}
	trail := []any{"command", r.Method + " " + path, "client", who.name, "remote", r.RemoteAddr}
	if who.names != nil {
		trail = append(trail, "names", who.names)
	}
	return trail
}

func readToken(file string) (string, error) {
	token, err := sinks.Secret{File: file}.Value()
	return strings.TrimSpace(token), err
}
