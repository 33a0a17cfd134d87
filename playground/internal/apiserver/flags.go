package apiserver

import (
	"net"
	"strconv"
)

// flags are the command-line flags the server is run with. Later ones win, so
// the user's come last.
func (c Config) flags() []string {
	port := c.Listener.Addr().(*net.TCPAddr).Port
	return append([]string{
		"--etcd-servers=" + c.EtcdURL,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		// Only used for the endpoints of the "kubernetes" service, which are not
		// published here. Loopback is refused, and finding another address would
		// take a default route: this is one reserved for documentation.
		"--advertise-address=192.0.2.1",
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		// By default a stop waits a minute for open watches.
		"--shutdown-watch-termination-grace-period=1s",
		"--tls-cert-file=" + c.PKI.ServerCert,
		"--tls-private-key-file=" + c.PKI.ServerKey,
		"--client-ca-file=" + c.PKI.CACert,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.PKI.ServiceAccountKey,
		"--service-account-signing-key-file=" + c.PKI.ServiceAccountKey,
		"--authorization-mode=RBAC",
		// No controller makes the "default" service accounts that this plugin
		// asks for in every pod.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
		"--v=0",
	}, c.Flags...)
}
