//! How likely tokens were, as OpenAI's APIs tell it.
//! A token that is no whole character is shown with a replacement for it; its bytes are told beside.

use magray_engine::{decoder::TokenLogprobs, engine::Engine};

use crate::server::writing::Json;

/// Looks up the bytes of tokens.
#[derive(Clone)]
pub(super) struct Spelling {
    engine: Engine,
    model: usize,
}

impl Spelling {
    pub(super) fn new(engine: &Engine, model: usize) -> Self {
        Self { engine: engine.clone(), model }
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.engine.vocabulary(self.model).map_or(&[], |known| known.bytes(id))
    }

    pub(super) fn write_chat_or_null(&self, tokens: &[(u32, TokenLogprobs)], out: &mut Json) {
        match tokens {
            [] => {
                out.raw("null");
            }
            tokens => self.write_chat(tokens, out),
        }
    }

    /// As chats have it: an object a token.
    pub(super) fn write_chat(&self, tokens: &[(u32, TokenLogprobs)], out: &mut Json) {
        out.raw(r#"{"content":"#).list(tokens, |out, (id, logprobs)| {
            self.write_token(*id, logprobs.chosen, out);
            out.raw(r#","top_logprobs":"#).list(&logprobs.top, |out, (id, logprob)| {
                self.write_token(*id, *logprob, out);
                out.raw("}");
            });
            out.raw("}");
        });
        out.raw(r#","refusal":null}"#);
    }

    /// Without its closing bracket.
    fn write_token(&self, id: u32, logprob: f32, out: &mut Json) {
        let bytes = self.bytes(id);
        out.raw(r#"{"token":"#).text(&String::from_utf8_lossy(bytes)).raw(r#","logprob":"#).number(logprob);
        out.raw(r#","bytes":"#).list(bytes, |out, byte| {
            out.whole(usize::from(*byte));
        });
    }

    /// As completions have it: an array for each kind of number. The first token stands behind this many characters.
    pub(super) fn write_completion_or_null(&self, tokens: &[(u32, TokenLogprobs)], offset: usize, out: &mut Json) {
        if tokens.is_empty() {
            out.raw("null");
            return;
        }
        let text = |id: u32| String::from_utf8_lossy(self.bytes(id));
        out.raw(r#"{"tokens":"#).list(tokens, |out, (id, _)| {
            out.text(&text(*id));
        });
        out.raw(r#","token_logprobs":"#).list(tokens, |out, (_, logprobs)| {
            out.number(logprobs.chosen);
        });
        out.raw(r#","top_logprobs":"#).list(tokens, |out, (_, logprobs)| {
            // Several tokens may look the same; an object has each name once.
            let mut shown: Vec<(String, f32)> = Vec::new();
            for (id, logprob) in &logprobs.top {
                let name = text(*id).into_owned();
                if !shown.iter().any(|(known, _)| *known == name) {
                    shown.push((name, *logprob));
                }
            }
            out.raw("{");
            for (at, (name, logprob)) in shown.iter().enumerate() {
                out.raw(if at > 0 { "," } else { "" }).text(name).raw(":").number(*logprob);
            }
            out.raw("}");
        });
        let mut at = offset;
        out.raw(r#","text_offset":"#).list(tokens, |out, (id, _)| {
            out.whole(at);
            at += text(*id).chars().count();
        });
        out.raw("}");
    }
}
