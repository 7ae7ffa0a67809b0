//! Tokenizers as GGUF files list them, against the ids of their makers' libraries, and lists that are refused.

use serde::Deserialize;

use super::*;
use crate::tokenize::Tokenizer;

#[derive(Deserialize)]
struct Case {
    model: String,
    pre: String,
    tokens: Vec<String>,
    kinds: Vec<i64>,
    scores: Vec<f32>,
    merges: Vec<String>,
    begin: Option<u64>,
    end: Option<u64>,
    unknown: Option<u64>,
    add_begin: Option<bool>,
    add_space: Option<bool>,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
}

impl Case {
    fn tokenizer(&self) -> GgufTokenizer<'_> {
        GgufTokenizer {
            file: Path::new("model.gguf"),
            model: &self.model,
            pre: Some(&self.pre),
            tokens: self.tokens.iter().map(String::as_str).collect(),
            kinds: self.kinds.clone(),
            scores: self.scores.clone(),
            merges: self.merges.iter().map(String::as_str).collect(),
            begin: self.begin,
            end: self.end,
            unknown: self.unknown,
            add_begin: self.add_begin,
            add_end: None,
            add_space: self.add_space,
        }
    }
}

fn cases() -> Vec<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf_tokenizers.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn texts_have_the_ids_that_the_makers_libraries_give_them() {
    for case in cases() {
        let (tokenizer, _) = Tokenizer::from_gguf(&case.tokenizer(), 1000).unwrap();
        for Text { text, ids } in &case.texts {
            assert_eq!(&tokenizer.encode(text).unwrap().ids, ids, "{} {}: {text:?}", case.model, case.pre);
        }
    }
}

#[test]
fn every_way_to_split_words_that_is_known_works() {
    let case = &cases()[0];
    for pre in splits::names() {
        let source = GgufTokenizer { pre: Some(pre), ..case.tokenizer() };
        let (tokenizer, vocabulary) = Tokenizer::from_gguf(&source, 100).unwrap();
        let ids = tokenizer.encode("It's 1234 words; WE'LL see.\n\n  end").unwrap().ids;
        assert_eq!(vocabulary.text(&ids), "It's 1234 words; WE'LL see.\n\n  end", "{pre}");
    }
}

#[test]
fn a_byte_without_a_token_is_left_out() {
    let case = &cases()[0];
    let mut source = case.tokenizer();
    let missing = source.tokens.iter().position(|token| *token == "\u{104}").unwrap();
    source.tokens[missing] = "no byte";
    let (tokenizer, _) = Tokenizer::from_gguf(&source, 100).unwrap();
    let ids = |text: &str| tokenizer.encode(text).unwrap().ids;
    assert_eq!(ids("The\u{4}dog"), [ids("The"), ids("dog")].concat());
}

#[test]
fn tokens_become_their_text_again() {
    for case in cases() {
        let (_, vocabulary) = Tokenizer::from_gguf(&case.tokenizer(), 1000).unwrap();
        for Text { text, ids } in case.texts.iter().filter(|text| !text.text.contains("<|")) {
            let found = vocabulary.text(ids);
            let found = if case.add_space == Some(true) { found.strip_prefix(' ').unwrap_or(&found) } else { &found };
            // Qwen composes characters.
            assert_eq!(found.replace("e\u{301}", "\u{e9}"), text.replace("e\u{301}", "\u{e9}"), "{}", case.pre);
        }
    }
}

#[test]
fn a_text_begins_and_ends_as_the_file_says() {
    let case = &cases()[1];
    let ids = |add_begin, add_end| {
        let source = GgufTokenizer { add_begin, add_end, ..case.tokenizer() };
        let (tokenizer, _) = Tokenizer::from_gguf(&source, 100).unwrap();
        tokenizer.encode("The").unwrap().ids
    };
    let plain = ids(Some(false), None);
    assert_eq!(ids(None, None), [&[0], &plain[..]].concat(), "llama-bpe begins texts where the file does not say");
    assert_eq!(ids(Some(true), Some(true)), [&[0], &plain[..], &[1]].concat());
}

#[test]
fn what_is_not_known_or_cannot_be_is_refused_by_name() {
    let (bytes, scores) = (&cases()[0], &cases()[4]);
    let refused = |source: GgufTokenizer<'_>, words: &str| {
        let message = Tokenizer::from_gguf(&source, 100).unwrap_err().to_string();
        assert!(message.contains(words), "no '{words}' in: {message}");
    };
    let (bytes, scores) = (bytes.tokenizer(), scores.tokenizer());
    refused(GgufTokenizer { model: "rwkv", ..bytes.clone() }, "'rwkv'");
    refused(GgufTokenizer { pre: Some("poro-chat"), ..bytes.clone() }, "'poro-chat'");
    refused(GgufTokenizer { pre: None, ..bytes.clone() }, "'default'");
    refused(GgufTokenizer { merges: Vec::new(), ..bytes.clone() }, "no merges");
    refused(GgufTokenizer { merges: vec!["ab"], ..bytes.clone() }, "a merge is not");
    refused(GgufTokenizer { kinds: vec![1], ..bytes.clone() }, "1 kinds");
    refused(GgufTokenizer { tokens: Vec::new(), ..bytes.clone() }, "0 tokens");
    refused(GgufTokenizer { add_begin: Some(true), begin: None, ..bytes.clone() }, "which token begins a text");
    refused(GgufTokenizer { add_begin: Some(true), begin: Some(9999), ..bytes.clone() }, "token 9999");
    refused(GgufTokenizer { scores: vec![1.0], ..scores.clone() }, "1 scores");
    let lost = GgufTokenizer { scores: vec![f32::NAN; scores.tokens.len()], ..scores.clone() };
    refused(lost, "not a number");
    refused(GgufTokenizer { unknown: Some(9999), ..scores.clone() }, "token 9999");
}
