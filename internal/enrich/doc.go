// Package enrich adds to recorded events what routes ask for about other objects: the
// chain of controllers of an object, and the object that a Kubernetes Event is about.
//
// Guarantees:
//
//   - It reads caches in memory and waits for nothing. What is not cached at that moment is
//     left out, and the record marked as incomplete.
//   - An object is only taken for the one that is referred to if its uid is the same, or the
//     reference has none and is from its namespace. An involvedObject of another namespace than its Event's
//     is ignored: who may write Events in one namespace reads nothing of others.
//   - Work and size are bounded: in the length of a chain and the bytes of references, labels and annotations.
//   - It shows what the caches hold, whose objects their watches' edits have been applied to.
package enrich
