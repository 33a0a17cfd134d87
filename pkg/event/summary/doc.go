// Package summary describes a change of a Kubernetes object in one line that a person
// reads: "image of container web 1.4 -> 1.5, replicas 3 -> 5". A Kubernetes Event is described
// by its reason and message: "Warning BackOff: Back-off restarting failed container".
//
// Guarantees:
//
//   - A line is short, valid UTF-8 and printable: a few changes are spelled out, long
//     names and values are cut, the other changes are counted ("+2 more"), and no text of
//     an object contains a line break or another control character.
//   - Equal states give equal lines.
//   - A line shows nothing but parts of the states or of the patch it is made from. A
//     value that is redacted there is shown as "(redacted)".
//   - The cost grows with the length of the states and of what differs, not with the
//     number of changes in the line.
//
// Items of a list are matched by their merge key (name, type, port and the like), where every
// item has one and no two items share it, otherwise by index. What matters is first: images,
// then the spec and data, labels and annotations, the status, and at last timestamps and other
// fields that controllers write with every change. The resourceVersion, the generation
// and managedFields are not part of a summary.
//
// Caveats: the form is for eyes, not for programs, and may change in any release.
package summary
