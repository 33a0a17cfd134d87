// Package object writes events to object storage that speaks the API of S3: a line of JSON for each event, compressed
// with zstd, an object for each batch and folder.
//
// Guarantees:
//
//   - Accepted means that the storage has answered the PUT of the object that holds the event, with the object's ETag.
//   - An event is in one object, once. The object's name is the sequence of its first event, and it is only created
//     (If-None-Match: *). Where an attempt has no answer, the next Write settles it first, with the same bytes under
//     the same name. A sink that was just opened reads what is there already before it adds to a folder, and so does a
//     Write that returns to earlier sequences. Batches may be cut in any way.
//   - The events of an object are in the order of their sequence, and the objects of a folder by their names.
//   - Writes take turns.
//
// Caveats: what a sink with a `body` has written cannot be read back. After the death of the process, a batch of it that
// is cut in another way is there twice; so is one whose folder or cluster was renamed between the attempts. A request
// that a server keeps for longer than the process lives, and executes after the next process has looked, is not seen.
package object
