//! Whatever bytes come: the readers of texts take what the slow and plain ones take, and the same of it.
//! They never panic.
#![no_main]

#[expect(dead_code, reason = "only what reads texts is used")]
mod server;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use server::{
    inputs::{Documents, Input, Sequences, Texts},
    plain::{plain_documents, plain_input, plain_sequences},
};

fuzz_target!(|body: &[u8]| {
    let tree: Option<Value> = serde_json::from_slice(body).ok();
    let tree = tree.as_ref();
    let input: Option<Input<'_>> = serde_json::from_slice(body).ok();
    assert_eq!(input, tree.and_then(plain_input));
    let sequences: Option<Sequences<'_>> = serde_json::from_slice(body).ok();
    assert_eq!(sequences, tree.and_then(plain_sequences));
    let texts: Option<Texts<'_>> = serde_json::from_slice(body).ok();
    let plain = match tree.and_then(plain_input) {
        Some(Input::Texts { texts, is_single }) => Some(Texts { texts, is_single }),
        _ => None,
    };
    assert_eq!(texts, plain);
    // What is passed over in an object is not looked at as closely as by the tree, and a name that comes twice is refused.
    let documents: Option<Documents<'_>> = serde_json::from_slice(body).ok();
    if let (Some(documents), Some(tree)) = (documents, tree) {
        assert_eq!(Some(documents), plain_documents(tree));
    }
});
