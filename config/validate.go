package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watcherd/watcherd/config/internal/strict"
	"github.com/watcherd/watcherd/internal/nearest"
)

// Validate checks everything that needs no cluster and no sink. Parse and Load have done so;
// it is for a Config made by a program. An error is an *[Errors].
func (c *Config) Validate() error { return NewErrors(c.problems()...) }

// problems is every problem with the values, in no order.
func (c *Config) problems() []*Error {
	k := &checker{config: c}
	k.header()
	k.cluster()
	k.store()
	k.admin()
	k.consistencyCheck()
	k.watches()
	k.sinks()
	k.routes()
	return k.list
}

// checker collects problems, up to a limit.
type checker struct {
	config *Config
	list   []*Error
}

func (k *checker) full() bool { return len(k.list) >= strict.MaxProblems }

func (k *checker) report(path, format string, args ...any) {
	if !k.full() {
		k.list = append(k.list, k.config.ErrorAt(path, format, args...))
	}
}

// quoted is a user's text for a message.
func quoted(s string) string { return strconv.Quote(strict.Shorten(s)) }

// require reports unless ok.
func (k *checker) require(ok bool, path, format string, args ...any) {
	if !ok {
		k.report(path, format, args...)
	}
}

// oneOf reports a value that is not one of those allowed.
func (k *checker) oneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	if near := nearest.Of(value, allowed); near != "" {
		k.report(path, "%s is not known; did you mean %q?", quoted(value), near)
		return
	}
	k.report(path, "%s is not known; it is one of %s", quoted(value), strings.Join(allowed, ", "))
}

var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// names checks the names of a list of blocks.
func (k *checker) names(list string, n int, nameOf func(i int) string) {
	first := make(map[string]int, n)
	for i := range n {
		path, value := strict.Index(list, i)+".name", nameOf(i)
		before, twice := first[value]
		switch {
		case value == "":
			k.report(path, "is required")
			continue
		case !name.MatchString(value):
			k.report(path, "%s must be lower-case letters, digits and dashes, at most 63, with a letter or digit at both ends", quoted(value))
		case twice:
			k.report(path, "%s is the name of %s already", quoted(value), strict.Index(list, before))
		}
		if !twice {
			first[value] = i
		}
	}
}

// references checks that each of refs is one of names, once.
func (k *checker) references(path, list, what string, refs, names []string) {
	k.distinct(path, refs)
	if len(names) == 0 && k.config.source.lost[list] {
		return // the list is reported itself
	}
	known := make(map[string]bool, len(names))
	for _, n := range names {
		known[n] = true
	}
	for i, ref := range refs {
		if known[ref] || k.full() {
			continue
		}
		hint := ""
		if near := nearest.Of(ref, names); near != "" {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		k.report(strict.Index(path, i), "no %s is named %s%s", what, quoted(ref), hint)
	}
}

// distinct reports values that stand twice in a list.
func (k *checker) distinct(path string, values []string) {
	seen := make(map[string]bool, len(values))
	for i, v := range values {
		if v != "" && seen[v] {
			k.report(strict.Index(path, i), "%s is listed twice", quoted(v))
		}
		seen[v] = true
	}
}

func (k *checker) header() {
	switch c := k.config; {
	case c.APIVersion == "":
		k.report("apiVersion", "is required: apiVersion: %s", APIVersion)
	case c.APIVersion != APIVersion:
		k.report("apiVersion", "%s is not known to this watcherd; it reads %s", quoted(c.APIVersion), APIVersion)
	}
	switch c := k.config; {
	case c.Kind == "":
		k.report("kind", "is required: kind: %s", Kind)
	case c.Kind != Kind:
		k.report("kind", "%s is not a watcherd configuration; its kind is %s", quoted(c.Kind), Kind)
	}
}

func (k *checker) cluster() {
	c := k.config
	if n := c.Cluster.Name; strings.ContainsFunc(n, func(r rune) bool { return r <= ' ' || r >= 0x7f }) || len(n) > 253 {
		k.report("cluster.name", "must be at most 253 characters of ASCII without spaces, since it becomes part of event sources")
	}
	if n := c.Feed.Name; n != "" && !name.MatchString(n) {
		k.report("feed.name", "%s must be lower-case letters, digits and dashes, at most 63, with a letter or digit at both ends", quoted(n))
	}
	k.require(c.KubeAPI.QPS > 0, "kubeAPI.qps", "must be above 0")
	k.require(c.KubeAPI.Burst > 0, "kubeAPI.burst", "must be above 0")
}

func (k *checker) store() {
	s := k.config.Store
	k.require(s.Path != "", "store.path", "must not be empty")
	k.require(s.MaxBytes.Value() >= minStore, "store.maxBytes", "must be at least 16Mi")
	if key := s.RedactionKey; key != nil {
		k.secret(key, "store.redactionKey")
	}
	k.require(s.Retention.MaxAge >= 0, "store.retention.maxAge", "must not be negative; 0 keeps nothing that every sink has taken")
	k.require(s.DeadLetters.MaxAge >= 0, "store.deadLetters.maxAge", "must not be negative; 0s keeps dead letters until they are retried or dropped")
	if s.Journal != nil {
		k.journal(s.Journal)
	}
	k.require(s.DeadLetters.MaxBytes.Value() > 0, "store.deadLetters.maxBytes", "must be above 0")
	k.require(s.DeadLetters.MaxBytes.Value() <= s.MaxBytes.Value()/2, "store.deadLetters.maxBytes", "must not be above half of store.maxBytes (%s), which holds the backlog too", s.MaxBytes.String())
	k.require(s.Retention.MaxBytes.Value() <= s.MaxBytes.Value(), "store.retention.maxBytes", "must not be above store.maxBytes (%s), which holds the backlog too", s.MaxBytes.String())
}

func (k *checker) journal(j *Journal) {
	const path = "store.journal."
	k.require(len(j.NATS.URLs) > 0, path+"nats.urls", "required, for example [nats://nats-0.nats:4222, nats://nats-1.nats:4222]")
	k.require(streamName.MatchString(j.Stream), path+"stream", "required: letters, digits, - and _")
	k.require(j.Replicas == 0 || j.Replicas == 3 || j.Replicas == 5, path+"replicas", "must be 3 or 5: fewer lose entries with a server")
	k.require(j.MaxBytes.IsZero() || j.MaxBytes.Value() >= minJournal, path+"maxBytes", "must be at least 256Mi")
	k.require(j.TakeOverAfter == 0 || j.TakeOverAfter >= 3*time.Second, path+"takeOverAfter", "must be at least 3s: a leader writes each second")
	k.require(j.NATS.Timeout >= 0, path+"nats.timeout", "must not be negative")
	secrets := map[string]*Secret{"encryptionKey": &j.EncryptionKey, "nats.password": j.NATS.Password, "nats.token": j.NATS.Token}
	for i := range j.OldEncryptionKeys {
		secrets[fmt.Sprintf("oldEncryptionKeys[%d]", i)] = &j.OldEncryptionKeys[i]
	}
	for _, key := range slices.Sorted(maps.Keys(secrets)) {
		if s := secrets[key]; s != nil {
			k.secret(s, path+key)
		}
	}
}

func (k *checker) secret(s *Secret, path string) {
	k.require((s.Env == "") != (s.File == ""), path, "name exactly one source: {env: NAME} or {file: PATH}")
	k.require(!strings.HasPrefix(s.Env, "$"), path+".env", "name the variable without $: the file is not expanded")
}

// streamName is what the server takes and a file name can hold.
var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)

// minJournal holds the largest commit several times.
const minJournal = 256 << 20

// minStore is the least budget a store can work with.
const minStore = 16 << 20

func (k *checker) consistencyCheck() {
	if c := k.config.ConsistencyCheck; c.Enabled {
		k.require(c.Interval > 0, "consistencyCheck.interval", "must be above 0; to turn the check off set consistencyCheck.enabled: false")
	}
}

func (k *checker) admin() {
	a := k.config.Admin
	clientCA := false
	if t := a.TLS; t != nil {
		k.require(t.CertFile != "", "admin.tls.certFile", "is required")
		k.require(t.KeyFile != "", "admin.tls.keyFile", "is required")
		clientCA = t.ClientCAFile != ""
	}
	token := false
	if u := a.Auth; u != nil {
		token = u.ReadTokenFile+u.CommandTokenFile != ""
		names := len(u.ReadNames)+len(u.CommandNames) > 0
		k.require(token || names, "admin.auth", "needs readTokenFile or commandTokenFile, or names of client certificates")
		k.require(clientCA || !names, "admin.auth", "names of client certificates need admin.tls.clientCAFile")
		k.require(!slices.Contains(u.ReadNames, "") && !slices.Contains(u.CommandNames, ""), "admin.auth", "a name of a client certificate is empty")
	}
	if a.Listen != "" {
		switch host, ok := k.address("admin.listen", a.Listen); {
		case !ok || loopback(host):
		case !token && !clientCA:
			k.report("admin.listen", "%s can be reached from outside this machine; protect it with a token of admin.auth or with admin.tls.clientCAFile, or listen on 127.0.0.1", quoted(a.Listen))
		case a.TLS == nil && !a.Insecure:
			k.report("admin.listen", "%s takes its token over plain HTTP from outside this machine; add admin.tls, or set admin.insecure: true if something else encrypts the traffic", quoted(a.Listen))
		}
	}
	if a.Probes != "" {
		if _, ok := k.address("admin.probes", a.Probes); ok && a.Probes == a.Listen {
			k.report("admin.probes", "must differ from admin.listen, which serves the same paths")
		}
	}
}

func (k *checker) address(path, address string) (host string, ok bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		k.report(path, "%s is not an address; write host:port, such as 127.0.0.1:8080 or :8081", quoted(address))
		return "", false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		k.report(path, "%s is not a port number", quoted(port))
		return "", false
	} else if n == 0 && !loopback(host) {
		k.report(path, "port 0 would be a random one")
		return "", false
	}
	return host, true
}

// loopback reports whether only this machine reaches a host. The empty host is
// every address.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
