// Package atapi is a Kubernetes API server that can only be read, and has the cluster as it was
// at a time: kubectl and programs ask it as they ask any API server, for
// /at/TIME/api/v1/namespaces/prod/pods and its like.
//
// Guarantees:
//
//   - An answer is the exact state of its time, as far as watches with a history select it. Where
//     that is not known it is an error with the reason: 410 for a time that is not recorded or
//     lies in a gap, 404 for what no watch reads.
//   - A watch that leaves out objects, and a gap near the time, show as warnings of the answer.
//   - A list is sent object by object, and is cut off where it turns out to be wrong: by the
//     end of the retention that passes its time, or by damage.
//   - Nothing can be changed or watched (405). The API server is never asked.
//
// Caveats: discovery has the resources that are read now, by the names that they have now. An
// object has the version of its group in which it was recorded.
package atapi
