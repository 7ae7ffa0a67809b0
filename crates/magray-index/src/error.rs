//! What can go wrong with collections. A variant is a decision of the caller; its message says what to do.
//! Never holds what a client may not read: no paths of files, no statements of the store.

/// Shorthand for the results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not happen. Nothing of a refused operation is kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The collection, alias, snapshot or point is not there.
    #[error("Not found: {what}")]
    NotFound {
        /// Kind and name.
        what: String,
    },
    /// The name is taken.
    #[error("{what} already exists: delete it first, or choose another name")]
    Exists {
        /// Kind and name.
        what: String,
    },
    /// The caller must change the request.
    #[error("wrong input: {0}")]
    BadInput(String),
    /// The disk, or the limit of the store's size, is full. What was acknowledged is kept.
    #[error(
        "the disk of the collections is full: free some space and send the request again; nothing of it was stored"
    )]
    Full,
    /// The folder or the disk cannot be written.
    #[error("the folder of the collections is read-only: reading works, writing needs a folder that can be written")]
    ReadOnly,
    /// Another process has the folder.
    #[error("the folder of the collections is used by {by}: stop it, or use another folder")]
    Locked {
        /// The process, as well as it is known.
        by: String,
    },
    /// The collection that the change was meant for is not there any more.
    #[error(
        "the collection was replaced or deleted while the change waited: send the request again; nothing of it was stored"
    )]
    Replaced,
    /// Stored bytes differ from what was written.
    #[error(
        "collection '{collection}' is damaged: {what}. Everything else is readable; restore a snapshot, or write \
         the named data again"
    )]
    Corrupt {
        /// The collection.
        collection: String,
        /// Which part of it.
        what: String,
    },
    /// The store failed in another way.
    #[error("the store of the collections failed: {0}")]
    Store(String),
}

impl Error {
    /// A refusal with words for the caller.
    pub fn bad(what: impl Into<String>) -> Self {
        Self::BadInput(what.into())
    }

    /// Says that a collection is not there.
    pub fn no_collection(name: &str) -> Self {
        Self::NotFound { what: format!("Collection '{name}'") }
    }
}
