package webhook

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// privateError means that denyPrivate prevented a connection.
type privateError struct{ addr netip.Addr }

func (e *privateError) Error() string {
	return fmt.Sprintf("the host resolves to %s, which is not a public address (denyPrivate)", e.addr)
}

// special are ranges that are not public and that netip has no method for.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),       // "this network"
	netip.MustParsePrefix("100.64.0.0/10"),   // carrier-grade NAT
	netip.MustParsePrefix("192.0.0.0/24"),    // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, broadcast
	netip.MustParsePrefix("::/96"),           // IPv4-compatible, deprecated
	netip.MustParsePrefix("64:ff9b::/96"),    // NAT64: leads to any IPv4 address
	netip.MustParsePrefix("64:ff9b:1::/48"),  // NAT64, local
	netip.MustParsePrefix("2001::/32"),       // Teredo: holds an IPv4 address
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // 6to4: holds an IPv4 address
	netip.MustParsePrefix("fec0::/10"),       // site-local, deprecated
}

// refusePrivate is a net.Dialer's Control: it sees the address that is dialled,
// after DNS, so that no name and no second answer gets around it.
func refusePrivate(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("denyPrivate: %w", err)
	}
	if addr := ap.Addr().WithZone("").Unmap(); !public(addr) {
		return &privateError{addr: addr}
	}
	return nil
}

func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() &&
		!slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}
