// Package apiserver runs a real kube-apiserver, and the one controller without
// which it is awkward to use, inside this process.
//
// Guarantees: it listens on loopback only. [Run] returns, also after a failed
// start, when the controller and the server's listener are gone.
//
// Caveats: kube-apiserver keeps process-wide state (feature gates, loggers, its
// metrics), so a process can run one server, once. No scheduler and no controller
// but the namespace one runs: pods, deployments and nodes are plain objects.
package apiserver
