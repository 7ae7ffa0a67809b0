//! Names of those who hold memory of a device.
//! Knows nothing of what they hold.

/// A model's place in the list that the machine was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u32);

/// Names a collection of vectors; the caller chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CollectionId(pub u32);

/// Who holds memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The driver, for the worker's process: its context, kernels and handles.
    Context,
    /// Passes of models: activations and recordings.
    Workspace,
    /// A model's weights.
    Weights(ModelId),
    /// The state of sequences of a model.
    Kv(ModelId),
    /// The vectors of a collection.
    Vectors(CollectionId),
}
