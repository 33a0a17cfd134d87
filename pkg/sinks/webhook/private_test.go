package webhook

import "testing"

// TestPublicAddresses: what tests cannot dial.
func TestPublicAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"1.1.1.1:443": true, "8.8.8.8:80": true, "[2606:4700:4700::1111]:443": true, "[::ffff:1.1.1.1]:443": true,
		"[::ffff:10.0.0.1]:443": false, "[2002:7f00:1::]:443": false, "[::127.0.0.1]:443": false, "[64:ff9b::1.1.1.1]:443": false,
		"255.255.255.255:1": false, "198.18.0.1:1": false, "172.31.255.255:1": false, "172.32.0.1:1": true,
		"[fe80::1%eth0]:1": false, "[ff02::1]:1": false, "[::]:1": false, "not an address": false,
	} {
		if got := refusePrivate("tcp", address, nil) == nil; got != want {
			t.Errorf("%s: allowed is %v, want %v", address, got, want)
		}
	}
}
