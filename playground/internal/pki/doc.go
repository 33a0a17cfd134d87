// Package pki is a throw-away certificate authority for a cluster on loopback.
//
// Guarantees: it is made once per directory and reused by later starts, so that
// kubeconfigs written before a restart stay valid after it. Every file is
// readable by its owner only.
//
// Caveat: the authority's key lies next to its certificates, unencrypted. A user who
// reads the directory is the cluster's administrator.
package pki
