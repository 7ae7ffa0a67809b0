//! Whatever bytes come as the body of a request of any API: they are read or refused, and never end the server.
//! What is read was an object of JSON, or a form.
#![no_main]

#[expect(dead_code, reason = "what is done with the fields is not fuzzed")]
mod server;

use libfuzzer_sys::fuzz_target;
use serde::{Deserialize, de::IgnoredAny};
use server::requests::{cohere, gpu, ollama, openai, read, tei};

fuzz_target!(|body: &[u8]| {
    // The most lenient reader that there is: what it does not take is no JSON.
    let is_object = serde_json::from_slice::<IgnoredAny>(body).is_ok() && body.trim_ascii_start().starts_with(b"{");
    let check = Check { body, is_object };
    check.json::<openai::EmbeddingsRequest<'_>>();
    check.json::<openai::RerankRequest<'_>>();
    check.json::<tei::EmbedRequest<'_>>();
    check.json::<tei::EmbedAllRequest<'_>>();
    check.json::<tei::RerankRequest<'_>>();
    check.json::<tei::PredictRequest<'_>>();
    check.json::<tei::SimilarityRequest<'_>>();
    check.json::<tei::TokenizeRequest<'_>>();
    check.json::<tei::DecodeRequest<'_>>();
    check.json::<ollama::EmbedRequest<'_>>();
    check.json::<ollama::EmbeddingsRequest<'_>>();
    check.json::<ollama::ShowRequest>();
    if let Some(any) = check.json::<tei::AnyRequest<'_>>() {
        // It must not be found to be sentences where another reader finds texts.
        assert!(!any.has_sentences() || check.json::<tei::EmbedRequest<'_>>().is_none());
    }
    for input in check.json::<cohere::EmbedRequest<'_>>().and_then(|request| request.inputs).into_iter().flatten() {
        let plain = input.content.iter().map(plain_text).collect::<Option<Vec<&str>>>().filter(|texts| !texts.is_empty());
        let plain = plain.map(|texts| texts.join("\n"));
        assert_eq!(input.join().ok().as_deref(), plain.as_deref());
    }
    for kind in ["", "application/json", "application/x-www-form-urlencoded"] {
        let moved = gpu::form_or_json::<gpu::MoveRequest>(kind, body);
        assert!(!body.trim_ascii_start().starts_with(b"{") || moved.is_err() || is_object);
        if let Ok(request) = gpu::form_or_json::<gpu::TimeoutRequest>(kind, body) {
            // A time that is taken is one that clocks can add.
            let time = request.timeout.read().ok().flatten();
            assert!(time.is_none_or(|time| std::time::Instant::now().checked_add(time).is_some()));
        }
    }
});

/// The text of a part, if it is one of text.
fn plain_text<'a>(part: &'a cohere::Part<'_>) -> Option<&'a str> {
    part.text.as_deref().filter(|_| part.r#type.as_deref().is_none_or(|kind| kind == "text"))
}

struct Check<'a> {
    body: &'a [u8],
    is_object: bool,
}

impl<'a> Check<'a> {
    fn json<T: Deserialize<'a>>(&self) -> Option<T> {
        let request = read(self.body).ok();
        assert!(request.is_none() || self.is_object);
        request
    }
}
