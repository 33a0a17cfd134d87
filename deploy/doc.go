// Package deploy holds what watcherd is installed and observed with: a Helm chart, a
// kustomize base, alert rules and a dashboard. Its tests render, check and apply them
// with the tools themselves, against a real API server.
package deploy
