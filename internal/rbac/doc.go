// Package rbac works out the permissions that a configuration needs: the least
// Roles and ClusterRoles, and which of their rules a server does not grant.
//
// The rules are those of the requests that the factory makes, no more:
//
//   - list and watch for every resource of a watch: in its namespaces, if the watch
//     names them plainly, and in the whole cluster otherwise.
//   - list and watch for namespaces, if a watch selects them by label.
//   - list for the one namespace kube-system, by which the daemon identifies clusters
//     apart and finds out that one was set back, and watch for the definitions of
//     resources, if the configuration names any that may come and go, as well as get
//     for them, and list for each one namespace that a watch names. The daemon does
//     without these, less well; they are marked as optional.
//
// Discovery needs no rule: the server's role system:discovery grants it to every
// authenticated user.
//
// Without a server, names of resources are read as well as they can be: those of
// Kubernetes itself are known, others need their group, and wildcards stay
// wildcards, regardless of a watch's excludes. With one, a wildcard becomes what is served at
// present and not excluded.
package rbac
