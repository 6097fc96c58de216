"""The bindings between store, object store, bucket and home: each recognises the others."""
