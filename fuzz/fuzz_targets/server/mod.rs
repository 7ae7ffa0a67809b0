//! The part of the server that reads bodies, as it stands in its crate and nothing else of it.
//! Has no code of its own.

#[path = "../../../crates/magray/src/server/inputs.rs"]
pub(crate) mod inputs;
#[path = "../../../crates/magray/src/server/inputs/plain.rs"]
pub(crate) mod plain;
#[path = "../../../crates/magray/src/server/requests/mod.rs"]
pub(crate) mod requests;
