//! Checks the tokenizer against the ids that the Python library gave for the fixture models.

use std::path::Path;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::spec::ModelSpec;

#[derive(Deserialize)]
struct Reference {
    max_tokens: usize,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    pair: Option<String>,
    prompt: Option<String>,
    ids: Vec<u32>,
    type_ids: Vec<u32>,
    #[serde(default)]
    left_out: usize,
}

const FIXTURES: [&str; 10] = [
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "mpnet",
    "bert-classify",
    "roberta-classify",
    "xlm-roberta-classify",
    "distilbert-classify",
    "mpnet-classify",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn reference(name: &str) -> Reference {
    serde_json::from_slice(&std::fs::read(fixture(name).join("reference.json")).unwrap()).unwrap()
}

#[test]
fn ids_are_those_of_the_python_library() {
    for name in FIXTURES {
        let spec = ModelSpec::read(&fixture(name)).unwrap();
        let tokenizer = Tokenizer::for_model(&spec).unwrap();
        let reference = reference(name);
        assert_eq!(tokenizer.max_tokens(), reference.max_tokens, "{name}");
        for case in reference.cases {
            let prompt = case.prompt.as_ref().or(spec.default_prompt.as_ref()).map(|prompt| &spec.prompts[prompt]);
            let text = format!("{}{}", prompt.map_or("", String::as_str), case.text);
            let encoded = match &case.pair {
                Some(pair) => tokenizer.encode_pair(&text, pair).unwrap(),
                None => tokenizer.encode(&text).unwrap(),
            };
            assert_eq!(encoded.ids, case.ids, "{name}: {text:?} {:?}", case.pair);
            assert_eq!(encoded.type_ids, case.type_ids, "{name}: {text:?} {:?}", case.pair);
            assert!(!encoded.truncated || encoded.ids.len() == reference.max_tokens, "{name}: {text:?}");
            if case.left_out > 0 {
                assert_eq!(tokenizer.prompt_tokens(prompt.unwrap()).unwrap(), case.left_out, "{name}");
            }
        }
    }
}

#[test]
fn places_of_tokens_are_those_of_the_python_library() {
    #[derive(Deserialize)]
    struct Placed {
        text: String,
        ids: Vec<u32>,
        offsets: Vec<(usize, usize)>,
    }
    let file = std::fs::read(fixture("offsets.json")).unwrap();
    let by_model: std::collections::BTreeMap<String, Vec<Placed>> = serde_json::from_slice(&file).unwrap();
    for (name, cases) in by_model {
        let tokenizer = Tokenizer::open(&fixture(&name), 512).unwrap();
        for Placed { text, ids, offsets } in cases {
            let spelled = tokenizer.spell(&text, false).unwrap();
            assert_eq!(spelled.iter().map(|token| token.id).collect::<Vec<_>>(), ids, "{name}: {text:?}");
            let places: Vec<_> = spelled.iter().map(|token| token.place.clone().map(|at| (at.start, at.end))).collect();
            assert_eq!(places, offsets.into_iter().map(Some).collect::<Vec<_>>(), "{name}: {text:?}");
        }
    }
}

const EMBEDDERS: [&str; 5] = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"];

/// Texts far longer than any model reads, ordinary and hostile.
fn long_texts() -> Vec<String> {
    let words = "the quick brown fox, jumps over the lazy dog; le café est fermé. ";
    vec![
        words.repeat(8000),
        words.replace(' ', "").repeat(2000),
        words.replace(' ', "\n").repeat(4000),
        "a".repeat(200_000),
        "unbelievably".repeat(20_000),
        "日本語のテキスト".repeat(20_000),
        "😀🚀".repeat(20_000),
        "e\u{301}".repeat(50_000),
        format!("{}river", " ".repeat(300_000)),
        format!("{}river{}", "\0\u{7}".repeat(100_000), " ".repeat(100_000)),
        format!("river {}", "😀".repeat(60_000)),
        format!("{}the river", "[MASK] <mask>  ".repeat(10_000)),
        (0..40_000).map(|i| char::from_u32(0x20 + i * 7 % 0xd000).unwrap_or(' ')).collect(),
    ]
}

#[test]
fn a_long_text_gives_the_first_tokens_of_the_whole() {
    for name in EMBEDDERS {
        let tokenizer = Tokenizer::open(&fixture(name), 32).unwrap();
        let template = &tokenizer.pipeline.get_post_processor().single;
        for text in long_texts() {
            let start: String = text.chars().take(30).collect();
            let whole = tokenizer.all_tokens(&text).unwrap();
            let kept = whole.len().min(30);
            let expected = assemble(template, &whole[..kept], &[], whole.len() > 30);
            assert_eq!(tokenizer.encode(&text).unwrap(), expected, "{name}: {start:?}");
        }
    }
}

#[test]
fn a_pair_of_long_texts_is_cut_as_if_both_were_read_whole() {
    let tokenizer = Tokenizer::open(&fixture("bert-classify"), 33).unwrap();
    let template = &tokenizer.pipeline.get_post_processor().pair;
    for text in long_texts() {
        let (a, b) = (tokenizer.all_tokens(&text).unwrap(), tokenizer.all_tokens("the lazy dog").unwrap());
        let (kept_a, kept_b) = share_room(a.len(), b.len(), 30);
        let expected = assemble(template, &a[..kept_a], &b[..kept_b], kept_a < a.len());
        assert_eq!(tokenizer.encode_pair(&text, "the lazy dog").unwrap(), expected);
    }
}

#[test]
fn ten_megabytes_in_one_line_are_read_as_their_start() {
    let line = "the quick brown fox jumps over the lazy dog ".repeat(240_000);
    for name in EMBEDDERS {
        let tokenizer = Tokenizer::open(&fixture(name), 32).unwrap();
        assert_eq!(tokenizer.encode(&line).unwrap(), tokenizer.encode(&line[..4000]).unwrap(), "{name}");
    }
}

#[test]
fn a_megabyte_of_nothing_ends_the_search_for_tokens() {
    for name in EMBEDDERS {
        let tokenizer = Tokenizer::open(&fixture(name), 32).unwrap();
        let nothing = " ".repeat(5 << 20);
        let encoded = tokenizer.encode(&format!("{nothing}river")).unwrap();
        assert!(encoded.truncated && !encoded.ids.ends_with(&tokenizer.encode("river").unwrap().ids[1..]), "{name}");
        tokenizer.encode(&"😀".repeat(1 << 20)).unwrap();
    }
}

#[test]
fn truncation_is_reported_only_when_a_token_was_lost() {
    let tokenizer = Tokenizer::open(&fixture("bert"), 6).unwrap();
    let truncated = |text: &str| tokenizer.encode(text).unwrap().truncated;
    assert!(!truncated("the the the the"));
    assert!(!truncated(&format!("the the the the{}", " ".repeat(50_000))));
    assert!(truncated("the the the the the"));
    assert!(truncated(&format!("the the the the{}the", " ".repeat(50_000))));
    let pair = tokenizer.encode_pair("the the", "the").unwrap();
    assert!(!pair.truncated || pair.ids.len() == 6);
}

#[test]
fn the_longer_of_a_pair_is_cut_until_both_are_equal() {
    for (a, b, room, expected) in [
        (3, 4, 10, (3, 4)),
        (3, 40, 10, (3, 7)),
        (40, 3, 10, (7, 3)),
        (40, 30, 10, (5, 5)),
        (40, 30, 11, (6, 5)),
        (30, 40, 11, (5, 6)),
        (40, 40, 11, (5, 6)),
        (0, 40, 11, (0, 11)),
        (40, 0, 1, (1, 0)),
    ] {
        assert_eq!(share_room(a, b, room), expected, "{a} and {b} in {room}");
    }
}

#[test]
fn a_batch_on_many_threads_equals_its_texts_alone() {
    let tokenizer = Tokenizer::open(&fixture("roberta"), 40).unwrap();
    let texts: Vec<String> = (0..700).map(|i| format!("text {i} {}", "of a river ".repeat(i % 40))).collect();
    let pairs: Vec<(&str, &str)> = texts.iter().map(|text| (text.as_str(), "and a bridge")).collect();
    let single: Vec<_> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
    let pairs_alone: Vec<_> = pairs.iter().map(|(a, b)| tokenizer.encode_pair(a, b).unwrap()).collect();
    for threads in [0, 1, 2, 7] {
        assert_eq!(tokenizer.encode_batch(&texts, threads).unwrap(), single);
        assert_eq!(tokenizer.encode_pairs(&pairs, threads).unwrap(), pairs_alone);
    }
    assert!(tokenizer.encode_batch::<&str>(&[], 2).unwrap().is_empty());
}

/// A folder with a tokenizer in which one value was changed.
fn changed(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let mut json = serde_json::from_slice(&std::fs::read(fixture(name).join("tokenizer.json")).unwrap()).unwrap();
    change(&mut json);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    dir
}

#[test]
fn the_rewritten_file_is_the_one_that_the_crate_itself_would_write() {
    for name in FIXTURES {
        let file = fixture(name).join("tokenizer.json");
        let mut theirs: serde_json::Value =
            serde_json::from_str(&tokenizers::canonicalize_file(&file).unwrap()).unwrap();
        theirs.as_object_mut().unwrap().retain(|key, _| key != "truncation" && key != "padding");
        let ours = canonical::rewrite(&std::fs::read(&file).unwrap(), false).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&ours).unwrap(), theirs, "{name}");
        // What was rewritten once is left as it is.
        assert_eq!(canonical::rewrite(ours.as_bytes(), false).unwrap(), ours, "{name}");
    }
}

#[test]
fn merges_written_as_lines_are_read_too() {
    let dir = changed("roberta", |json| {
        let merges = json["model"]["merges"].as_array_mut().unwrap();
        for merge in merges {
            *merge = format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into();
        }
    });
    let (old, new) = (Tokenizer::open(dir.path(), 40).unwrap(), Tokenizer::open(&fixture("roberta"), 40).unwrap());
    let text = "the quick brown fox jumps over";
    assert_eq!(old.encode(text).unwrap(), new.encode(text).unwrap());
}

#[test]
fn lower_case_is_added_where_the_model_asks_for_it() {
    for name in EMBEDDERS {
        let lowering = Tokenizer::read(&fixture(name), 32, true, usize::MAX).unwrap();
        let plain = Tokenizer::open(&fixture(name), 32).unwrap();
        let (upper, lower) = ("The QUICK Fox", "the quick fox");
        assert_eq!(lowering.encode(upper).unwrap(), plain.encode(lower).unwrap(), "{name}");
        let lowers_anyway = ["bert", "mpnet"].contains(&name);
        assert_eq!(plain.encode(upper).unwrap() == plain.encode(lower).unwrap(), lowers_anyway, "{name}");
    }
}

#[test]
fn a_tokenizer_of_another_model_is_found_out() {
    let tokenizer = Tokenizer::read(&fixture("bert"), 32, false, 50).unwrap();
    assert!(tokenizer.encode("").is_ok());
    let error = tokenizer.encode("the river").unwrap_err();
    assert!(matches!(error, TokenizeError::BeyondVocabulary { vocab: 50, .. }), "{error}");
}

#[test]
fn broken_tokenizers_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Tokenizer::open(dir.path(), 32), Err(TokenizeError::Missing { .. })));
    for text in ["", "{", "[]", "{}", "{\"model\": null}", "{\"model\": {}}", "{\"model\": {\"vocab\": 3}}", "\u{0}"] {
        std::fs::write(dir.path().join("tokenizer.json"), text).unwrap();
        let error = Tokenizer::open(dir.path(), 32).expect_err(text);
        assert!(matches!(&error, TokenizeError::Unusable { .. }), "{text}: {error}");
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
    }
    let dir = changed("bert", |json| json["model"]["type"] = "Oracle".into());
    assert!(matches!(Tokenizer::open(dir.path(), 32), Err(TokenizeError::Unusable { .. })));
    let whole = std::fs::read(fixture("bert").join("tokenizer.json")).unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(Tokenizer::open(dir.path(), 32), Err(TokenizeError::Unusable { .. })));
}

#[test]
fn an_absurd_id_is_refused_before_a_table_is_made_for_it() {
    for name in ["bert", "roberta"] {
        let dir = changed(name, |json| json["model"]["vocab"]["the"] = 4_294_967_295u32.into());
        let message = Tokenizer::open(dir.path(), 32).unwrap_err().to_string();
        assert!(message.contains("the id 4294967295"), "{message}");
    }
}

#[test]
fn a_file_without_bounds_is_refused_by_what_is_too_much() {
    let refused = |dir: &Path| Tokenizer::open(dir, 32).unwrap_err().to_string();
    let added = |content: String| {
        serde_json::json!({"id": 5, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let many = changed("bert", |json| json["added_tokens"] = (0..20_000).map(|i| added(format!("<{i}>"))).collect());
    assert!(refused(many.path()).contains("it adds 20000 tokens"), "{}", refused(many.path()));
    let long = changed("bert", |json| json["added_tokens"] = vec![added("x".repeat(100_000))].into());
    assert!(refused(long.path()).contains("a token of 100000 bytes"), "{}", refused(long.path()));
    let stuffed = changed("bert", |json| json["comment"] = " ".repeat(9 << 20).into());
    assert!(refused(stuffed.path()).contains("bytes beside its vocabulary"), "{}", refused(stuffed.path()));
    let stuffed = changed("bert", |json| json["model"]["comment"] = " ".repeat(9 << 20).into());
    assert!(refused(stuffed.path()).contains("bytes beside its vocabulary"), "{}", refused(stuffed.path()));

    let whole = std::fs::read_to_string(fixture("bert").join("tokenizer.json")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), format!("{whole}{}", " ".repeat(65 << 20))).unwrap();
    let error = Tokenizer::open(dir.path(), 32).unwrap_err();
    assert!(matches!(error, TokenizeError::Unreadable { .. }), "{error}");
    assert!(error.to_string().contains("it has more than 67108864 bytes"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_tokenizer_that_is_a_pipe_or_a_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("tokenizer.json")).unwrap();
    let error = Tokenizer::open(dir.path(), 32).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn no_room_for_a_text_is_an_error() {
    assert!(matches!(Tokenizer::open(&fixture("bert"), 2), Err(TokenizeError::NoRoom { max_tokens: 2, added: 2 })));
    let tokenizer = Tokenizer::open(&fixture("roberta"), 4).unwrap();
    assert!(tokenizer.encode("river").is_ok());
    assert!(matches!(tokenizer.encode_pair("a", "b"), Err(TokenizeError::NoRoom { max_tokens: 4, added: 4 })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_flipped_byte_makes_it_panic(name in prop::sample::select(&EMBEDDERS[..]), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut json = std::fs::read(fixture(name).join("tokenizer.json")).unwrap();
        let at = at.index(json.len());
        json[at] = to;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
        if let Ok(tokenizer) = Tokenizer::open(dir.path(), 32) {
            drop(tokenizer.encode_pair("The quick brown fox, 日本語", "<mask> 😀\0"));
        }
    }

    #[test]
    fn no_text_makes_it_panic_or_overflow(name in prop::sample::select(&EMBEDDERS[..]), text in any::<String>()) {
        let tokenizer = Tokenizer::open(&fixture(name), 12).unwrap();
        let encoded = tokenizer.encode(&text).unwrap();
        prop_assert!((2..=12).contains(&encoded.ids.len()) && encoded.type_ids.len() == encoded.ids.len());
        let spelled = tokenizer.spell(&text, true).unwrap();
        prop_assert_eq!(spelled.iter().map(|token| token.id).collect::<Vec<_>>(), encoded.ids);
        for token in spelled {
            prop_assert!(token.place.is_none_or(|place| text[place] == token.text));
        }
    }
}

/// Those that have the fast path.
const PLAIN: [&str; 6] = ["bert", "distilbert", "mpnet", "bert-classify", "distilbert-classify", "mpnet-classify"];

fn assert_ways_agree(text: &str) {
    for name in PLAIN {
        let tokenizer = Tokenizer::open(&fixture(name), 512).unwrap();
        assert!(tokenizer.plain.is_some(), "{name}");
        assert_eq!(tokenizer.all_tokens(text).unwrap(), tokenizer.any_tokens(text).unwrap(), "{name}: {text:?}");
    }
}

#[test]
fn tokenizers_with_berts_words_have_the_short_way() {
    for name in FIXTURES {
        let tokenizer = Tokenizer::open(&fixture(name), 512).unwrap();
        assert_eq!(tokenizer.plain.is_some(), PLAIN.contains(&name), "{name}");
    }
}

#[test]
fn both_ways_read_hostile_texts_alike() {
    let long = "a".repeat(99) + " " + &"b".repeat(100) + " " + &"c".repeat(101) + " " + &"the".repeat(40);
    let all: String = (0..128u8).map(char::from).collect();
    let texts = [
        "",
        " ",
        "\t\n\r",
        "\u{b}\u{c}",
        "a\u{0}b",
        "don't!?",
        "[CLS] the [SEP]",
        "[ CLS ]",
        "##the ##s",
        "# #the",
        "THE Quick",
        "x\u{7f}y",
        "caf\u{e9}",
        "the \u{4e2d} fox",
        "e\u{301}",
        "\u{a0}the",
        "a$b^c`d|e~f",
        &long,
        &all,
    ];
    for text in texts {
        assert_ways_agree(text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_ways_read_all_texts_alike(text in "[ -~\\t\\n\\x00-\\x1f]{0,80}", words in "([a-zA-Z]{1,12}[ ,.'#]{0,2}){0,20}", any in ".{0,20}") {
        assert_ways_agree(&text);
        assert_ways_agree(&words);
        assert_ways_agree(&any);
    }
}
