package config

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
)

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
