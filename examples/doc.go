// Package examples holds configurations for real situations, each of which its
// tests load and run against a real API server.
package examples
