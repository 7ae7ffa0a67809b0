//! The bodies of requests, API by API, as they are read from JSON or from a form.
//! Types only: nothing here knows a model, a limit or the server, so that it can be fuzzed by itself.

pub(crate) mod anthropic;
pub(crate) mod cohere;
pub(crate) mod collection_field;
pub(crate) mod evaluate;
pub(crate) mod gpu;
pub(crate) mod llama_cpp;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod ollama_chat;
pub(crate) mod open_inference;
pub(crate) mod openai;
pub(crate) mod openai_chat;
pub(crate) mod responses;
pub(crate) mod tei;

use serde::{
    Deserialize,
    de::{Error as _, IgnoredAny},
};

pub(crate) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, serde_json::Error> {
    // Derived code would also take an array of the fields in order, which no API has.
    if body.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice::<IgnoredAny>(body)?;
        return Err(serde_json::Error::custom("expected an object and not an array"));
    }
    serde_json::from_slice(body)
}

#[cfg(test)]
mod tests {
    use super::{openai::EmbeddingsRequest, read};

    #[test]
    fn an_array_is_not_taken_for_the_fields_of_a_request() {
        assert!(read::<EmbeddingsRequest<'_>>(br#"{"input":"a"}"#).is_ok());
        let refused = |body: &[u8]| read::<EmbeddingsRequest<'_>>(body).unwrap_err();
        assert!(refused(br#" ["a"]"#).is_data());
        assert!(refused(br#"["a""#).is_eof());
    }
}
