//! Constrained output and log probabilities through the engine: on the CPU, through workers, and through workers that die.

use super::streaming::{block_on, generator, read};
use super::text;
use magray_engine::decoder::{Constraint, ConstraintError, Sampling};
use magray_engine::engine::{Engine, EngineError, Prompt, Token};
use magray_engine::{DeviceChoice, EmbedError, GpuSelector};
use serde_json::Value;

const ON_GPUS: DeviceChoice = DeviceChoice::Cuda(GpuSelector::Any);

/// Whether a value is what its schema asks for.
type IsValid = fn(&Value) -> bool;

fn has_length(value: &Value, most: usize) -> bool {
    value.as_str().is_some_and(|text| text.chars().count() <= most)
}

fn is_in(value: &Value, least: i64, most: i64) -> bool {
    value.as_i64().is_some_and(|number| (least..=most).contains(&number))
}

/// Schemas, and the same by hand.
const SCHEMAS: [(&str, IsValid); 5] = [
    (
        r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
            "required": ["name", "age"], "additionalProperties": false}"#,
        |value| {
            value.as_object().is_some_and(|object| object.len() == 2)
                && has_length(&value["name"], 8)
                && is_in(&value["age"], 0, 130)
        },
    ),
    (r#"{"type": "array", "items": {"enum": ["red", "green", 7, null]}, "minItems": 1, "maxItems": 4}"#, |value| {
        let is_known = |one: &Value| ["red".into(), "green".into(), 7.into(), Value::Null].contains(one);
        value.as_array().is_some_and(|all| (1..=4).contains(&all.len()) && all.iter().all(is_known))
    }),
    (
        r##"{"$defs": {"flag": {"type": "boolean"}}, "type": "object", "additionalProperties": false,
            "properties": {"a": {"$ref": "#/$defs/flag"}, "b": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": -9, "maximum": 9}]}},
            "required": ["a"]}"##,
        |value| {
            let object = value.as_object().unwrap();
            let is_known = |(name, value): (&String, &Value)| match name.as_str() {
                "a" => value.is_boolean(),
                "b" => value.is_null() || is_in(value, -9, 9),
                _ => false,
            };
            object.contains_key("a") && object.iter().all(is_known)
        },
    ),
    (
        r#"{"type": "object", "properties": {"at": {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 99},
            {"const": "x"}], "minItems": 2, "maxItems": 2}, "ok": {"type": "boolean"}}, "required": ["at", "ok"], "additionalProperties": false}"#,
        |value| is_in(&value["at"][0], 0, 99) && value["at"][1] == "x" && value["ok"].is_boolean(),
    ),
    (r#"{"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}"#, |value| {
        let bytes = value.as_str().unwrap().as_bytes();
        let are = |part: &[u8], is: fn(&u8) -> bool| part.iter().all(is);
        bytes.len() == 6
            && are(&bytes[..2], u8::is_ascii_uppercase)
            && bytes[2] == b'-'
            && are(&bytes[3..], u8::is_ascii_digit)
    }),
];

fn prompt(seed: u32, constraint: Constraint) -> Prompt {
    let ids = text(seed, 5 + seed % 40).into_iter().map(|id| id % 256).collect();
    let temperature = if seed.is_multiple_of(3) { 0.0 } else { 1.0 };
    let sampling = Sampling { temperature, seed: u64::from(seed), constraint: Some(constraint), ..Sampling::default() };
    Prompt { model: 1, ids, new_tokens_max: 200, sampling, ..Prompt::default() }
}

fn schema(seed: u32) -> (Constraint, IsValid) {
    let (schema, is_valid) = SCHEMAS[seed as usize % SCHEMAS.len()];
    (Constraint::JsonSchema(schema.to_owned()), is_valid)
}

/// The answers to prompts of these seeds, side by side.
fn answers(engine: &Engine, seeds: std::ops::Range<u32>, constraint: impl Fn(u32) -> Constraint) -> Vec<String> {
    let streams: Vec<_> = seeds.map(|seed| engine.generate(prompt(seed, constraint(seed))).unwrap()).collect();
    let vocabulary = engine.vocabulary(1).unwrap();
    streams.into_iter().map(|stream| vocabulary.text(&read(stream, |_| {}))).collect()
}

fn check_schemas(engine: &Engine, seeds: std::ops::Range<u32>) -> Vec<String> {
    let texts = answers(engine, seeds.clone(), |seed| schema(seed).0);
    for (seed, text) in seeds.zip(&texts) {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("seed {seed}: {error}: {text:?}"));
        assert!((schema(seed).1)(&value), "seed {seed}: {text}");
    }
    texts
}

#[test]
fn a_hundred_answers_are_json_of_their_schemas() {
    let (_folder, engine) = generator(1, ON_GPUS, "");
    let texts = check_schemas(&engine, 0..100);
    let different: std::collections::HashSet<&String> = texts.iter().collect();
    assert!(different.len() > 60, "{different:?}");
    engine.shut_down();
}

#[test]
fn answers_match_regular_expressions_and_are_one_of_the_choices() {
    let (_folder, engine) = generator(0, DeviceChoice::Cpu, "");
    let dates = answers(&engine, 0..12, |_| Constraint::Regex("[0-9]{4}-(0[1-9]|1[0-2])".to_owned()));
    for date in dates {
        let (year, month) = date.split_once('-').unwrap();
        assert!(year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit()), "{date}");
        assert!(month.len() == 2 && (1..=12).contains(&month.parse::<u32>().unwrap()), "{date}");
    }
    let choices = ["yes", "yes, of course", "no / never", "\u{4f60}\u{597d}\n"].map(str::to_owned);
    let chosen = answers(&engine, 0..24, |_| Constraint::Choices(choices.to_vec()));
    assert!(chosen.iter().all(|text| choices.contains(text)), "{chosen:?}");
    assert!(choices[1..].iter().any(|choice| chosen.contains(choice)), "{chosen:?}");
}

#[test]
fn workers_that_die_in_the_middle_change_no_constrained_answer() {
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected = check_schemas(&calm, 0..10);
    calm.shut_down();
    for device in [ON_GPUS, DeviceChoice::Auto] {
        let (_folder, engine) = generator(1, device.clone(), "crash@every=7");
        assert_eq!(check_schemas(&engine, 0..10), expected, "{device:?}");
        assert!(engine.status().devices.iter().any(|device| device.schedule.restarts > 0), "{device:?}");
        engine.shut_down();
    }
}

#[test]
fn a_constraint_that_cannot_be_followed_is_refused_before_anything_is_computed() {
    let (_folder, engine) = generator(1, ON_GPUS, "");
    let refused = |constraint| match engine.generate(prompt(1, constraint)) {
        Err(EngineError::Text(EmbedError::Constraint(error))) => error,
        other => panic!("{:?}", other.err()),
    };
    let wrong = Constraint::JsonSchema(r#"{"type": "obj"}"#.to_owned());
    assert!(matches!(refused(wrong), ConstraintError::Refused { kind: "JSON schema", .. }));
    assert!(matches!(refused(Constraint::Regex("[a".to_owned())), ConstraintError::Refused { .. }));
    assert!(matches!(refused(Constraint::Choices(Vec::new())), ConstraintError::Empty(_)));
    let endless = Constraint::Regex("a".repeat(1 << 20));
    assert!(matches!(refused(endless), ConstraintError::Long { .. }));
    engine.shut_down();
}

#[test]
fn log_probabilities_come_with_their_tokens_also_after_a_worker_died() {
    let ask = |engine: &Engine, logprobs| {
        let sampling = Sampling { temperature: 0.8, ignores_end: true, logprobs, ..Sampling::default() };
        let prompt = Prompt { model: 1, ids: (0..50).collect(), new_tokens_max: 40, sampling, ..Prompt::default() };
        let mut stream = engine.generate(prompt).unwrap();
        let mut tokens: Vec<Token> = Vec::new();
        while let Some(token) = block_on(stream.next()) {
            tokens.push(token.unwrap());
        }
        tokens
    };
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected = ask(&calm, Some(20));
    assert_eq!(expected.len(), 40);
    for token in &expected {
        let told = token.logprobs.as_ref().unwrap();
        assert_eq!(told.top.len(), 20);
        assert!(told.chosen <= 0.0 && told.top.is_sorted_by(|a, b| a.1 >= b.1), "{told:?}");
        let sum: f64 = told.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        assert!(sum <= 1.0 + 1e-5, "{sum}");
        assert!(told.top.iter().all(|(id, logprob)| *id != token.id || *logprob == told.chosen), "{told:?}");
    }
    let plain: Vec<u32> = ask(&calm, None).iter().map(|token| token.id).collect();
    assert_eq!(expected.iter().map(|token| token.id).collect::<Vec<_>>(), plain);
    assert!(ask(&calm, Some(0)).iter().all(|token| token.logprobs.as_ref().is_some_and(|told| told.top.is_empty())));
    calm.shut_down();
    let (_folder, engine) = generator(1, ON_GPUS, "crash@every=7");
    let said = |tokens: Vec<Token>| -> Vec<_> { tokens.into_iter().map(|token| (token.id, token.logprobs)).collect() };
    assert_eq!(said(ask(&engine, Some(20))), said(expected));
    engine.shut_down();
}
