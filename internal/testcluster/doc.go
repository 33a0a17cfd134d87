// Package testcluster gives tests a real Kubernetes API server: kube-apiserver
// and etcd in one process on loopback, built from the playground module when it
// isn't there yet.
//
//	func TestMain(m *testing.M) { testcluster.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		c := testcluster.Shared(t)
//		ns := c.Namespace(t)
//		...
//	}
//
// Guarantees:
//
//   - A cluster ends with the test that started it, or with the test binary if it
//     is the shared one, and also when the test binary is killed.
//   - It listens on loopback only, on a port that a restart keeps.
//   - A cluster that ends by itself fails the test.
//   - With -short, tests that ask for a cluster are skipped.
//
// Caveats: RBAC is on and namespaces are deleted for good, but nothing else runs:
// pods, deployments and nodes are plain objects. A cluster takes about two seconds
// to start, 300 MB of memory and 62 MB of disk. It survives a kill of its process
// but not of the machine.
package testcluster
