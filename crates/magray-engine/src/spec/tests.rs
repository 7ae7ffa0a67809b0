//! Reads the fixture models, and copies of them with one setting changed.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn embed(spec: &ModelSpec) -> &EmbedSpec {
    match &spec.task {
        Task::Embed(embed) => embed,
        _ => panic!("it embeds"),
    }
}

/// The small files of a fixture, in a folder of their own, to be changed.
fn copy_of(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_json(&fixture(name), dir.path());
    dir
}

fn copy_json(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, target) = (entry.unwrap().path(), to);
        let target = target.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy_json(&entry, &target);
        } else if entry.extension().is_some_and(|e| e == "json") {
            fs::copy(&entry, &target).unwrap();
        }
    }
}

/// Sets one setting of one file; `Value::Null` takes it away.
fn set(dir: &TempDir, file: &str, field: &str, value: Value) {
    let path = dir.path().join(file);
    let mut settings: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    settings[field] = value;
    fs::write(path, settings.to_string()).unwrap();
}

/// With one setting changed, reading fails and the message holds the file, the setting and these words.
fn check_refused(fixture: &str, file: &str, field: &str, value: Value, words: &[&str]) {
    let dir = copy_of(fixture);
    set(&dir, file, field, value.clone());
    let message = ModelSpec::read(dir.path()).expect_err(&format!("{field} = {value}")).to_string();
    for word in words.iter().chain(&[file, field]) {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

/// With one setting changed, reading works.
fn read_with(fixture: &str, file: &str, field: &str, value: Value) -> ModelSpec {
    let dir = copy_of(fixture);
    set(&dir, file, field, value);
    ModelSpec::read(dir.path()).unwrap()
}

#[test]
fn bert_is_read_whole() {
    let spec = ModelSpec::read(&fixture("bert")).unwrap();
    assert_eq!(spec.architecture, Architecture::Bert);
    assert_eq!((spec.shape.hidden, spec.shape.heads, spec.shape.ffn), (48, 3, 70));
    assert_eq!((spec.shape.layers, spec.shape.positions, spec.max_tokens), (2, 40, 32));
    assert_eq!((spec.activation, spec.norm_eps, spec.pad_id), (Activation::Gelu, 1e-12, 0));
    assert_eq!((spec.type_vocab, spec.relative_attention_buckets, spec.lowercase), (2, 0, false));
    assert_eq!(spec.prompts["query"], "query: ");
    assert_eq!(spec.default_prompt, None);
    let embed = embed(&spec);
    assert_eq!((&embed.pooling[..], embed.normalize), (&[Pooling::Mean][..], true));
    assert!(embed.include_prompt && !embed.assumed && embed.dense.is_empty());
    assert_eq!(embed.dimensions(48), 48);
}

#[test]
fn the_others_differ_where_they_should() {
    let spec = ModelSpec::read(&fixture("roberta")).unwrap();
    assert_eq!((spec.architecture, spec.pad_id, spec.type_vocab), (Architecture::Roberta, 1, 1));
    assert_eq!((spec.max_tokens, spec.shape.positions, spec.norm_eps), (40, 42, 1e-5));
    assert_eq!(embed(&spec).pooling, [Pooling::Cls]);

    let spec = ModelSpec::read(&fixture("xlm-roberta")).unwrap();
    assert_eq!(spec.architecture, Architecture::Roberta);
    assert_eq!(spec.default_prompt.as_deref(), Some("search"));
    assert!(!embed(&spec).include_prompt && !embed(&spec).normalize);
    assert_eq!(embed(&spec).pooling, [Pooling::WeightedMean]);

    let spec = ModelSpec::read(&fixture("mpnet")).unwrap();
    assert_eq!((spec.architecture, spec.relative_attention_buckets, spec.type_vocab), (Architecture::MpNet, 32, 0));
    assert_eq!(embed(&spec).pooling, [Pooling::Last]);

    let spec = ModelSpec::read(&fixture("distilbert")).unwrap();
    assert_eq!((spec.architecture, spec.shape.ffn, spec.shape.heads), (Architecture::DistilBert, 100, 3));
    let embed = embed(&spec);
    assert_eq!(embed.pooling, [Pooling::Cls, Pooling::Max]);
    let dense = DenseSpec {
        folder: fixture("distilbert").join("2_Dense"),
        in_features: 72,
        out_features: 20,
        bias: true,
        activation: Activation::Tanh,
    };
    assert_eq!((&embed.dense[..], embed.dimensions(36)), (&[dense][..], 20));
}

#[test]
fn classifiers_have_their_labels_and_heads() {
    for (name, labels, head, activation) in [
        ("bert-classify", &["entails", "neutral", "contradicts"][..], ClassifyHead::Pooler, Activation::Relu),
        ("roberta-classify", &["LABEL_0"], ClassifyHead::DenseTanh, Activation::GeluTanh),
        ("xlm-roberta-classify", &["relevance"], ClassifyHead::DenseTanh, Activation::Silu),
        ("distilbert-classify", &["NEGATIVE", "POSITIVE"], ClassifyHead::PreClassifierRelu, Activation::Relu),
        ("mpnet-classify", &["no", "yes"], ClassifyHead::DenseTanh, Activation::Gelu),
    ] {
        let spec = ModelSpec::read(&fixture(name)).unwrap();
        let Task::Classify(classify) = &spec.task else { panic!("{name} classifies") };
        assert!(classify.labels == labels && classify.head == head, "{name}: {classify:?}");
        assert_eq!(spec.activation, activation, "{name}");
    }
}

#[test]
fn a_plain_encoder_is_pooled_by_the_mean_and_says_that_this_was_assumed() {
    let dir = copy_of("bert");
    for file in ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let spec = ModelSpec::read(dir.path()).unwrap();
    let embed = embed(&spec);
    assert!(embed.assumed && embed.normalize && embed.pooling == [Pooling::Mean]);
    // The tokenizer's file says 32, the positions are 40.
    assert_eq!(spec.max_tokens, 32);
    set(&dir, "tokenizer_config.json", "model_max_length", json!(1e30));
    assert_eq!(ModelSpec::read(dir.path()).unwrap().max_tokens, 40);
}

#[test]
fn a_folder_without_config_says_what_a_model_folder_holds() {
    let message = ModelSpec::read(tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
    assert!(message.contains("config.json' does not exist") && message.contains("tokenizer.json"), "{message}");
    let dir = copy_of("bert");
    fs::write(dir.path().join("config.json"), "{\"hidden_size\": 48,").unwrap();
    assert!(matches!(ModelSpec::read(dir.path()), Err(SpecError::Malformed { .. })));
    fs::write(dir.path().join("config.json"), "[1]").unwrap();
    assert!(matches!(ModelSpec::read(dir.path()), Err(SpecError::Invalid { .. })));
    fs::write(dir.path().join("config.json"), [0xff, 0xfe, 0]).unwrap();
    assert!(matches!(ModelSpec::read(dir.path()), Err(SpecError::Malformed { .. })));
}

#[test]
fn sizes_that_cannot_be_true_are_refused() {
    for field in ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"] {
        for value in [json!(0), json!(-1), json!(1e18), json!(u64::MAX), json!("48"), json!(1.5), Value::Null] {
            check_refused("bert", "config.json", field, value, &["whole number"]);
        }
    }
    check_refused("bert", "config.json", "hidden_size", json!(47), &["multiple", "num_attention_heads = 3"]);
    check_refused("distilbert", "config.json", "dim", json!(37), &["multiple", "n_heads = 3"]);
    check_refused("bert", "config.json", "max_position_embeddings", json!(0), &["whole number"]);
    check_refused("roberta", "config.json", "max_position_embeddings", json!(2), &["pad_token_id + 1 = 2"]);
    check_refused("bert", "config.json", "pad_token_id", json!(99999), &["below vocab_size"]);
    check_refused("bert", "config.json", "layer_norm_eps", json!(0), &["between 0 and 1"]);
    check_refused("mpnet", "config.json", "relative_attention_num_buckets", json!(0), &["whole number"]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let check = |field: &str, value: Value, words: &[&str]| check_refused("bert", "config.json", field, value, words);
    check("model_type", json!("llama"), &["'llama'", "xlm-roberta", "mpnet"]);
    check("model_type", Value::Null, &["null", "distilbert"]);
    check("hidden_act", json!("mish"), &["'mish'", "gelu_new"]);
    check("hidden_act", json!({"name": "gelu"}), &["string"]);
    check("position_embedding_type", json!("relative_key"), &["'relative_key'", "absolute"]);
    check("is_decoder", json!(true), &["both ways"]);
    check("add_cross_attention", json!(true), &["both ways"]);
    check("auto_map", json!({"AutoModel": "modeling.Model"}), &["code of its own"]);
    check("quantization_config", json!({"bits": 4}), &["quantized"]);
    check("pruned_heads", json!({"0": [1]}), &["same heads"]);
    check("architectures", json!("BertModel"), &["list"]);
    assert!(ModelSpec::read(copy_of("bert").path()).is_ok());
    read_with("bert", "config.json", "pruned_heads", json!({}));
}

#[test]
fn lengths_must_fit_the_positions() {
    let file = "sentence_bert_config.json";
    check_refused("bert", file, "max_seq_length", json!(0), &["whole number"]);
    check_refused("bert", file, "max_seq_length", json!(41), &["positions for 40"]);
    check_refused("roberta", file, "max_seq_length", json!(41), &["positions for 40"]);
    assert_eq!(read_with("bert", file, "max_seq_length", json!(40)).max_tokens, 40);
    assert_eq!(read_with("bert", file, "max_seq_length", Value::Null).max_tokens, 32);
    assert!(read_with("bert", file, "do_lower_case", json!(true)).lowercase);
    check_refused("bert-classify", "tokenizer_config.json", "model_max_length", json!(0), &["1 or more"]);
}

#[test]
fn modules_and_their_order_are_checked() {
    let with = |modules: &[(&str, &str)]| {
        let dir = copy_of("distilbert");
        let listed: Vec<Value> = modules.iter().map(|(class, path)| json!({"type": class, "path": path})).collect();
        fs::write(dir.path().join("modules.json"), Value::from(listed).to_string()).unwrap();
        ModelSpec::read(dir.path()).map_err(|e| e.to_string())
    };
    let transformer = ("sentence_transformers.models.Transformer", "");
    let pooling = ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling");
    let dense = ("sentence_transformers.models.Dense", "2_Dense");
    let dropout = ("sentence_transformers.models.Dropout", "3_Dropout");
    let normalize = ("sentence_transformers.models.Normalize", "4_Normalize");
    assert!(with(&[transformer, pooling, dense, dropout, normalize]).is_ok());
    assert!(!embed(&with(&[transformer, pooling]).unwrap()).normalize);

    for (modules, word) in [
        (&[][..], "no module at all"),
        (&[pooling], "'Pooling' as first"),
        (&[transformer], "no Pooling"),
        (&[transformer, pooling, pooling], "'Pooling' at this place"),
        (&[transformer, normalize, pooling], "'Normalize' at this place"),
        (&[transformer, pooling, normalize, dense], "'Dense' at this place"),
        (&[transformer, pooling, ("sentence_transformers.models.LSTM", "2_LSTM")], "'LSTM'"),
        (&[("custom_st.Transformer", "")], "'custom_st.Transformer'"),
        (&[transformer, ("sentence_transformers.models.Pooling", "../other")], "inside the model's"),
        (&[transformer, ("sentence_transformers.models.Pooling", "/tmp")], "inside the model's"),
        (&[transformer, ("sentence_transformers.models.Pooling", "5_None")], "does not exist"),
        // Two layers of 72 in, 20 out cannot follow each other.
        (&[transformer, pooling, dense, dense], "makes vectors of 20"),
    ] {
        let message = with(modules).expect_err(word);
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

#[test]
fn an_encoder_in_a_folder_of_its_own_is_found() {
    let dir = copy_of("bert");
    let inner = dir.path().join("0_Transformer");
    fs::create_dir(&inner).unwrap();
    for file in ["config.json", "sentence_bert_config.json", "tokenizer_config.json"] {
        fs::rename(dir.path().join(file), inner.join(file)).unwrap();
    }
    let modules = json!([
        {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]);
    fs::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
    let spec = ModelSpec::read(dir.path()).unwrap();
    assert_eq!((spec.encoder_folder, spec.max_tokens), (inner, 32));
}

#[test]
fn pooling_and_dense_settings_are_checked() {
    let file = "1_Pooling/config.json";
    check_refused("bert", file, "word_embedding_dimension", json!(384), &["vectors of 48"]);
    check_refused("bert", file, "pooling_mode_cls_token", json!("yes"), &["true or false"]);
    check_refused("bert", file, "pooling_mode", json!("median"), &["'median'", "weightedmean"]);
    let both = read_with("bert", file, "pooling_mode", json!(["mean", "cls"]));
    assert_eq!(embed(&both).pooling, [Pooling::Mean, Pooling::Cls]);
    assert_eq!(embed(&read_with("bert", file, "pooling_mode_mean_tokens", json!(false))).pooling, [Pooling::Mean]);

    let file = "2_Dense/config.json";
    check_refused("distilbert", file, "in_features", json!(36), &["vectors of 72"]);
    check_refused("distilbert", file, "out_features", json!(0), &["whole number"]);
    check_refused(
        "distilbert",
        file,
        "activation_function",
        json!("torch.nn.modules.activation.ELU"),
        &["ELU", "Tanh"],
    );
    check_refused("distilbert", file, "module_input_name", json!("token_embeddings"), &["token_embeddings"]);
    check_refused("distilbert", file, "use_residual", json!(true), &[]);
    let identity = json!("torch.nn.modules.linear.Identity");
    let plain = read_with("distilbert", file, "activation_function", identity);
    assert_eq!(embed(&plain).dense[0].activation, Activation::Identity);
}

#[test]
fn prompts_are_checked() {
    let file = "config_sentence_transformers.json";
    check_refused("bert", file, "default_prompt_name", json!("quarry"), &["passage, query"]);
    check_refused("bert", file, "prompts", json!({"query": 3}), &["a text to each name"]);
    let spec = read_with("bert", file, "default_prompt_name", json!("query"));
    assert_eq!(spec.default_prompt.as_deref(), Some("query"));
}

#[test]
fn labels_must_be_numbered_without_gaps() {
    check_refused("bert-classify", "config.json", "id2label", json!({"0": "a", "2": "b"}), &["each once"]);
    check_refused("bert-classify", "config.json", "id2label", json!({}), &["each once"]);
    let spec = read_with("bert-classify", "config.json", "id2label", Value::Null);
    assert!(matches!(spec.task, Task::Classify(classify) if classify.labels == ["LABEL_0", "LABEL_1"]));
}
