package natsclient

import (
	"slices"
	"testing"
)

// TestServerName dials servers of the configuration and others, which a cluster names, one after the other.
func TestServerName(t *testing.T) {
	for _, tc := range []struct{ urls, dialed, want []string }{
		{[]string{"tls://10.0.0.1"}, []string{"10.0.0.1:4222", "10.0.0.2:4222"}, []string{"10.0.0.1", "10.0.0.2"}},
		{[]string{"tls://[fd00::1]:4222"}, []string{"[fd00::1]:4222", "[fd00::2]:4222"}, []string{"fd00::1", "fd00::2"}},
		{[]string{"tls://a.test", "tls://b.test"}, []string{"a.test:4222", "10.0.0.2:4222", "b.test:4222", "10.0.0.2:4222"}, []string{"a.test", "a.test", "b.test", "b.test"}},
		{[]string{"tls://a.test"}, []string{"a.test:4222", "other.test:4222", "10.0.0.2:4222"}, []string{"a.test", "other.test", "a.test"}},
		{[]string{"tls://a.test", "tls://10.0.0.1"}, []string{"a.test:4222", "10.0.0.1:4222", "10.0.0.2:4222"}, []string{"a.test", "10.0.0.1", "a.test"}},
	} {
		l := &Line{}
		if _, err := l.serve(tc.urls); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, address := range tc.dialed {
			got = append(got, l.serverName(address))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%v, dialed %v: verified as %v, want %v", tc.urls, tc.dialed, got, tc.want)
		}
	}
}
