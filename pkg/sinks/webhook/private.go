package webhook

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// privateError means that a connection was prevented.
type privateError struct {
	addr     netip.Addr
	metadata bool
}

func (e *privateError) Error() string {
	if e.metadata {
		return fmt.Sprintf("the host resolves to %s, where cloud platforms serve the credentials of a machine", e.addr)
	}
	return fmt.Sprintf("the host resolves to %s, which is not a public address (denyPrivate)", e.addr)
}

// metadata are the ranges where platforms serve credentials to any client on the
// machine. No receiver of events is there.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS, that of pods included
	netip.MustParsePrefix("fd20:ce::/64"),       // Google Cloud
	netip.MustParsePrefix("fd00:c1::/32"),       // Oracle Cloud
	netip.MustParsePrefix("fd00:42::/32"),       // Scaleway
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
}

// carriers are the ranges of IPv6 whose addresses lead to an IPv4 address, and at which
// byte they hold it.
var carriers = map[netip.Prefix]int{
	netip.MustParsePrefix("::/96"):        12,
	netip.MustParsePrefix("64:ff9b::/96"): 12, // NAT64
	netip.MustParsePrefix("2002::/16"):    2,  // 6to4
}

// carried returns the IPv4 address that addr leads to, or addr.
func carried(addr netip.Addr) netip.Addr {
	for prefix, at := range carriers {
		if prefix.Contains(addr) {
			b := addr.As16()
			return netip.AddrFrom4([4]byte(b[at : at+4]))
		}
	}
	return addr
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

// refuse returns a net.Dialer's Control: it sees the address that is dialled,
// after DNS, so that no name and no second answer gets around it. The platform's
// metadata is always refused.
func refuse(private bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("address to connect to: %w", err)
		}
		addr := ap.Addr().WithZone("").Unmap()
		if private && !public(addr) {
			return &privateError{addr: addr}
		}
		if within(addr, metadata) || within(carried(addr), metadata) {
			return &privateError{addr: addr, metadata: true}
		}
		return nil
	}
}

func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !within(a, special)
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
