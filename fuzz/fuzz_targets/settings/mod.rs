//! The part of the settings that reads files and values, as it stands in its crate and nothing else of it.
//! Has no code of its own.

#[path = "../../../crates/magray/src/config/tree.rs"]
pub(crate) mod tree;
#[path = "../../../crates/magray/src/config/value.rs"]
pub(crate) mod value;
