//! Vector stores of OpenAI's API over collections: what is kept of stores and files, filters, and the JSON of both sides.
//! Computes nothing and knows no HTTP. A store is a collection whose name is the store's id.

pub(crate) mod answers;
pub(crate) mod attached;
pub(crate) mod filters;
pub(crate) mod ids;
pub(crate) mod page;
pub(crate) mod requests;
pub(crate) mod settings;
pub(crate) mod uploaded;
