package testkit

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Ports of tests lie below those that the kernel gives to listeners and connections that ask for any, so
// that a server that stops finds its port free when it comes back.
const (
	firstPort  = 10_000
	afterPorts = 20_000
	portTries  = 100
)

// Listen listens on loopback, at an address that may be listened on again after the listener is closed.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	var err error
	for range portTries {
		var l net.Listener
		if l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(afterPorts-firstPort)))); err == nil {
			return l
		}
	}
	t.Fatalf("no free port between %d and %d: %v", firstPort, afterPorts-1, err)
	return nil
}

// Address returns an address of loopback for a server that starts later. Nothing listens there.
func Address(t testing.TB) string {
	t.Helper()
	l := Listen(t)
	defer l.Close()
	return l.Addr().String()
}

// Port returns the port of such an address.
func Port(t testing.TB) int {
	t.Helper()
	return PortOf(t, Address(t))
}

// PortOf returns the port of an address.
func PortOf(t testing.TB, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
