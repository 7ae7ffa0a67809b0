//! How urgent requests are, and how much models count.
//! An order, and nothing else.

/// How urgent a request is. One that waits long enough overtakes every other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// After the others.
    Low,
    /// In turn.
    #[default]
    Normal,
    /// Before the others.
    High,
}
