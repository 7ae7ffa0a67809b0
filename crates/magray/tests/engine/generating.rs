//! Tokens of a language model on the CPU: the same alone and beside others, and beside texts that are embedded.

use super::streaming::{block_on, read};
use super::{options, start, text};
use magray_engine::decoder::{DecoderFiles, KvFormat, Sampling};
use magray_engine::engine::{Engine, EngineError, EngineOptions, ModelSource, Prompt, Work};
use magray_engine::spec::decoder::DecoderSource;
use magray_engine::testing::tiny_decoder;
use magray_engine::{CpuPath, DeviceName, EmbedError};

const WARM: f32 = 0.9;

/// An engine with a model that embeds and one that generates. Portable code computes a row the same whatever is beside it;
/// faster paths round otherwise where there are more rows.
fn both() -> (tempfile::TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write(folder.path(), 3).unwrap();
    let mut how: EngineOptions = options(0, "");
    how.encoder.cpu_path = Some(CpuPath::Portable);
    how.models.push(ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned())).into());
    (folder, start(how))
}

fn prompt(seed: u32, tokens: u32) -> Prompt {
    let ids = text(seed, tokens).into_iter().map(|id| id % 256).collect();
    let sampling = Sampling { temperature: WARM, ignores_end: true, seed: u64::from(seed), ..Sampling::default() };
    Prompt { model: 1, ids, new_tokens_max: 40, sampling, ..Prompt::default() }
}

#[test]
fn tokens_are_the_same_alone_and_among_others() {
    let (_folder, engine) = both();
    let lengths = [1, 7, 33, 90, 200, 450];
    let prompts = || lengths.iter().zip(1..).map(|(tokens, seed)| prompt(seed, *tokens));
    let alone: Vec<Vec<u32>> = prompts().map(|one| read(engine.generate(one).unwrap(), |_| {})).collect();
    assert!(alone.iter().all(|tokens| tokens.len() == 40), "{alone:?}");
    let streams: Vec<_> = prompts().map(|one| engine.generate(one).unwrap()).collect();
    let work = Work::from_ids(0, (0..20).map(|seed| text(seed, 30)).collect());
    let embedded = engine.process(work.clone()).unwrap();
    let together: Vec<Vec<u32>> = streams.into_iter().map(|stream| read(stream, |_| {})).collect();
    assert_eq!(together, alone);
    assert_eq!(engine.process(work).unwrap().values, embedded.values);
    let kept: u64 = engine.status().devices[0].schedule.kv_bytes();
    assert_eq!(kept, 0, "the state of sequences that ended is gone");
}

#[test]
fn keys_and_values_of_8_bits_take_less_memory() {
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write(folder.path(), 3).unwrap();
    let kept = |kv: KvFormat| {
        let mut how: EngineOptions = options(0, "");
        how.encoder.kv = kv;
        how.models.push(ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned())).into());
        let engine = start(how);
        let mut stream = engine.generate(Prompt { new_tokens_max: 400, ..prompt(4, 60) }).unwrap();
        block_on(stream.next()).unwrap().unwrap();
        // It goes on until its reader has too much to read.
        let kept = engine.status().devices[0].schedule.kv_bytes();
        assert!(kept > 0);
        kept
    };
    let (whole, half) = (kept(KvFormat::Halves), kept(KvFormat::Bytes));
    let of = |kv| DecoderFiles::open(folder.path()).unwrap().kv_token_bytes(kv);
    let (halves, bytes) = (of(KvFormat::Halves), of(KvFormat::Bytes));
    assert!(whole.is_multiple_of(halves) && half.is_multiple_of(bytes), "{whole} of {halves}, {half} of {bytes}");
    assert!(bytes < halves);
}

#[test]
fn a_stream_says_where_it_was_computed_and_ends_with_the_end_token() {
    let (_folder, engine) = both();
    let certain = Sampling { logit_bias: vec![(tiny_decoder::END, 100.0)], ..Sampling::default() };
    let mut stream = engine.generate(Prompt { sampling: certain, ..prompt(1, 5) }).unwrap();
    assert_eq!(block_on(stream.next()).unwrap().unwrap().id, tiny_decoder::END);
    assert!(block_on(stream.next()).is_none());
    assert_eq!(stream.answer().map(|answer| answer.device), Some(DeviceName::Cpu));
}

#[test]
fn a_rendered_prompt_has_the_special_tokens_of_its_template_once() {
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write(folder.path(), 3).unwrap();
    let config = r#"{"bos_token": "<end>", "chat_template": "{{ bos_token }}hi"}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    // A tokenizer that puts a token before every text.
    let file = folder.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let begin = serde_json::json!({"SpecialToken": {"id": "<end>", "type_id": 0}});
    let text = |id: &str| serde_json::json!({"Sequence": {"id": id, "type_id": 0}});
    tokenizer["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing", "single": [begin, text("A")], "pair": [begin, text("A"), text("B")],
        "special_tokens": {"<end>": {"id": "<end>", "ids": [tiny_decoder::END], "tokens": ["<end>"]}},
    });
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let mut how: EngineOptions = options(0, "");
    how.models.push(ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned())).into());
    let engine = start(how);
    let templates = engine.chat_templates(1).unwrap();
    assert_eq!((templates.default.as_deref(), templates.bos.as_deref()), (Some("{{ bos_token }}hi"), Some("<end>")));
    assert!(engine.chat_templates(0).is_none());
    let (end, bare) = (tiny_decoder::END, engine.read_rendered(1, "hi").unwrap());
    assert_eq!(bare.len(), 2);
    assert_eq!(engine.read_prompt(1, "hi").unwrap(), [&[end], &bare[..]].concat());
    assert_eq!(engine.read_rendered(1, "<end>hi<end>").unwrap(), [&[end], &bare[..], &[end]].concat());
    let long = "x".repeat(tiny_decoder::CONTEXT + 1);
    let error = engine.read_rendered(1, &long).unwrap_err();
    assert!(error.to_string().contains("512"), "{error}");
}

#[test]
fn what_a_model_cannot_go_on_with_is_refused() {
    let (_folder, engine) = both();
    let refused = |prompt: Prompt| match engine.generate(prompt) {
        Err(EngineError::Text(error)) => error,
        other => panic!("{}", other.err().map_or_else(|| "taken".to_owned(), |error| error.to_string())),
    };
    let most = tiny_decoder::CONTEXT as u32;
    assert!(matches!(
        refused(Prompt { new_tokens_max: 1_000_000_000, ..prompt(1, 5) }),
        EmbedError::Context { prompt: 5, new: 1_000_000_000, max_tokens: tiny_decoder::CONTEXT }
    ));
    assert!(matches!(refused(Prompt { new_tokens_max: most - 4, ..prompt(1, 5) }), EmbedError::Context { .. }));
    assert!(matches!(refused(prompt(1, most + 1)), EmbedError::TokenCount { .. }));
    assert!(matches!(refused(Prompt { ids: Vec::new(), ..prompt(1, 1) }), EmbedError::TokenCount { .. }));
    assert!(matches!(refused(Prompt { ids: vec![257], ..prompt(1, 1) }), EmbedError::UnknownId { .. }));
    assert!(matches!(refused(Prompt { model: 0, ..prompt(1, 5) }), EmbedError::WrongTask { .. }));
    let cold = Sampling { temperature: -1.0, ..Sampling::default() };
    assert!(matches!(refused(Prompt { sampling: cold, ..prompt(1, 5) }), EmbedError::Sampling(_)));
    assert!(engine.read(1, &["a text"], None).is_err(), "it embeds nothing");
}
