package webhook

import "testing"

// TestAddresses: what tests cannot dial.
func TestAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"1.1.1.1:443": true, "8.8.8.8:80": true, "[2606:4700:4700::1111]:443": true, "[::ffff:1.1.1.1]:443": true,
		"[::ffff:10.0.0.1]:443": false, "[2002:7f00:1::]:443": false, "[::127.0.0.1]:443": false, "[64:ff9b::1.1.1.1]:443": false,
		"255.255.255.255:1": false, "198.18.0.1:1": false, "172.31.255.255:1": false, "172.32.0.1:1": true,
		"[fe80::1%eth0]:1": false, "[5f00::1]:1": false, "[100::1]:1": false, "[3fff::1]:1": false, "[2001:2::1]:1": false, "[::ffff:0:a00:1]:1": false,
		"[2001:10::1]:1": false, "[2001:4860:4860::8888]:1": true, "192.88.99.1:1": false, "[ff02::1]:1": false, "[::]:1": false, "not an address": false,
	} {
		if got := refuse(true)("tcp", address, nil) == nil; got != want {
			t.Errorf("%s: allowed is %v, want %v", address, got, want)
		}
	}
	for address, want := range map[string]bool{
		"10.0.0.1:80": true, "127.0.0.1:80": true, "[fd00::1]:80": true, "169.254.169.254:80": false, "[::ffff:169.254.169.254]:80": false,
		"[fe80::1%eth0]:80": false, "[fd00:ec2::254]:80": false, "[fd00:ec2::23]:80": false, "[fd20:ce::254]:80": false,
		"[64:ff9b::a9fe:a9fe]:80": false, "[64:ff9b:1::a9fe:a9fe]:80": false, "[::a9fe:a9fe]:80": false, "[2002:a9fe:a9fe::]:80": false, "[64:ff9b::101:101]:80": true,
		"[64:ff9b:1:a9fe:a9:fe00::]:80": false, "[64:ff9b:1:a9:fe:a9fe::]:80": false, "[64:ff9b:1:0:a9:fea9:fe00:0]:80": false, // with prefixes of 48, 56 and 64 bits
		"[64:ff9b:1:101:1:100::]:80": true, "[64:ff9b:1::101:101]:80": true,
		"168.63.129.16:80": false, "100.100.100.200:80": false,
	} {
		if got := refuse(false)("tcp", address, nil) == nil; got != want {
			t.Errorf("%s, without denyPrivate: allowed is %v, want %v", address, got, want)
		}
	}
}
