//! Configs of decoders, whole ones and ones that are refused by name.

use serde_json::{Value, json};

use super::*;

fn read(config: &Value) -> Result<DecoderSpec, SpecError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    read_config(dir.path())
}

/// A config with some settings changed; null removes one.
fn with(changes: Value) -> Value {
    let mut config = json!({"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null, "tie_word_embeddings": false});
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

#[test]
fn a_config_of_the_older_form_is_read() {
    let spec = read(&with(json!({"rope_scaling": {"type": "linear", "factor": 2.0}}))).unwrap();
    assert_eq!((spec.heads, spec.kv_heads, spec.head_size, spec.layers.len()), (32, 4, 64, 22));
    assert_eq!(spec.ropes[0].scaling, Scaling::Linear { factor: 2.0 });
    assert_eq!((spec.ropes[0].theta, spec.ropes[0].rotated), (10000.0, 64));
    assert!(spec.layers.iter().all(|layer| layer.window.is_none()));
    let spec = read(&with(json!({"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 10000,
        "sliding_window": 512, "sliding_window_pattern": 6, "head_dim": 256})))
    .unwrap();
    let windows: Vec<bool> = spec.layers.iter().take(7).map(|layer| layer.window == Some(512)).collect();
    assert_eq!(windows, [true, true, true, true, true, false, true]);
    assert_eq!((spec.ropes[0].theta, spec.ropes[1].theta, spec.layers[5].rope, spec.layers[0].rope), (1e6, 1e4, 0, 1));
}

#[test]
fn an_explicit_null_is_no_window_and_no_cap() {
    let mistral = read(&with(json!({"model_type": "mistral"}))).unwrap();
    assert_eq!(mistral.layers[0].window, Some(4096));
    let mistral = read(&with(json!({"model_type": "mistral", "sliding_window": null}))).unwrap();
    assert_eq!(mistral.layers[0].window, None);
    let gemma = read(&with(json!({"model_type": "gemma2", "final_logit_softcapping": null}))).unwrap();
    assert_eq!((gemma.logit_cap, gemma.attention_cap), (None, Some(50.0)));
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let check = |changes: Value, word: &str| {
        let message = read(&with(changes)).unwrap_err().to_string();
        assert!(message.contains(word), "no '{word}' in: {message}");
    };
    check(json!({"model_type": "mamba"}), "'mamba'");
    check(json!({"model_type": null}), "model_type");
    check(json!({"quantization_config": {}}), "quantization_config");
    check(json!({"hidden_act": "relu"}), "hidden_act");
    check(json!({"rope_scaling": {"rope_type": "spiral"}}), "'spiral'");
    check(json!({"rope_scaling": {"rope_type": "linear"}}), "factor");
    check(
        json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}}),
        "1 and 1 factors",
    );
    check(json!({"layer_types": ["linear_attention"], "num_hidden_layers": 1}), "linear_attention");
    check(json!({"num_key_value_heads": 5}), "32 heads of queries cannot share 5");
    check(json!({"vocab_size": 1u64 << 40}), "vocab_size");
    check(json!({"rms_norm_eps": 0}), "rms_norm_eps");
}

#[test]
fn frequencies_follow_the_context() {
    let rope =
        |scaling| Rope { theta: 10000.0, rotated: 8, layout: RopeLayout::Halves, original_context: 100, scaling };
    let plain = rope(Scaling::None).frequencies(100);
    assert_eq!(plain.radians, [1.0, 0.1, 0.01, 0.001]);
    let dynamic = rope(Scaling::Dynamic { factor: 2.0 });
    assert_eq!(dynamic.frequencies(100), plain);
    assert!(dynamic.frequencies(200).radians[3] < 0.001);
    let long = rope(Scaling::LongRope { short: vec![1.0; 4], long: vec![2.0; 4], attention_factor: 1.5 });
    assert_eq!(long.frequencies(100).radians, plain.radians);
    assert_eq!((long.frequencies(101).radians[0], long.frequencies(101).scale), (0.5, 1.5));
}
