"""The harness: everything around the model that is text and small sandboxed code, as one immutable, diffable artifact."""
