//! Tests of answers in every family's way of writing, whole and in pieces.

use super::*;
use proptest::prelude::*;

const HERMES: &str = "<tool_call> </think>";
const LLAMA: &str = "<|python_tag|> </think>";
const MISTRAL: &str = "[TOOL_CALLS] </think>";

fn read_with(mut reader: AnswerReader, pieces: &[&str]) -> Vec<Part> {
    let mut parts = Vec::new();
    for piece in pieces {
        for part in reader.push(piece) {
            emit(&mut parts, part);
        }
    }
    for part in reader.finish() {
        emit(&mut parts, part);
    }
    parts
}

fn read(source: &str, pieces: &[&str]) -> Vec<Part> {
    read_with(AnswerReader::new(&AnswerFormat::of(source), true, true), pieces)
}

/// Reads whole and character by character, and writes the parts as text.
fn check(source: &str, answer: &str, expected: &str) {
    let mut pieces: Vec<&str> = answer.split("").collect();
    pieces.retain(|piece| !piece.is_empty());
    for pieces in [vec![answer], pieces] {
        let parts = read(source, &pieces);
        let shown: Vec<String> = parts
            .into_iter()
            .map(|part| match part {
                Part::Text(text) => format!("text {text:?}"),
                Part::Thinking(text) => format!("thinks {text:?}"),
                Part::CallBegins { index, name } => format!("{index} {name}"),
                Part::CallArguments { index, json } => format!("{index} {json}"),
            })
            .collect();
        assert_eq!(shown.join(" | "), expected, "{answer:?} in {} pieces", pieces.len());
    }
}

#[test]
fn text_and_thoughts() {
    check("", "Hello, wörld\n", "text \"Hello, wörld\\n\"");
    check("", "<think>a</think>b", "text \"<think>a</think>b\"");
    check(HERMES, "<think>\nfirst\n\nlast\n</think>\n\nHello", "thinks \"first\\n\\nlast\" | text \"Hello\"");
    check(HERMES, "\n<think></think>Hello", "text \"Hello\"");
    check(HERMES, "<think>never ends \n", "thinks \"never ends \\n\"");
    check(HERMES, "Hello <think>x</think>", "text \"Hello <think>x</think>\"");
    check(HERMES, "<thin", "text \"<thin\"");
    check(HERMES, "", "");
}

#[test]
fn thoughts_that_the_prompt_opened() {
    for answer in ["so</think>yes", "<think>\nso\n</think>\nyes", "\nso\n</think>\n\nyes"] {
        let mut reader = AnswerReader::new(&AnswerFormat::of(HERMES), true, true);
        reader.starts_after("<|assistant|><think>\n");
        assert_eq!(read_with(reader, &[answer]), [Part::Thinking("so".into()), Part::Text("yes".into())], "{answer}");
    }
    let mut reader = AnswerReader::new(&AnswerFormat::of(HERMES), true, true);
    reader.starts_after("<think>\n\n</think>\n\n");
    assert_eq!(read_with(reader, &["so</think>"]), [Part::Text("so</think>".into())]);
    let mut reader = AnswerReader::new(&AnswerFormat::of(HERMES), true, false);
    reader.starts_after("<think>\n");
    assert_eq!(read_with(reader, &["so</think>yes"]), [Part::Text("so</think>yes".into())]);
}

#[test]
fn calls_of_hermes_and_qwen() {
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"}\"}}\n</tool_call>";
    check(HERMES, one, "0 f | 0 {\"x\": \"}\"}");
    check(
        HERMES,
        &format!("I look.\n{one}\n{one}\n"),
        "text \"I look.\" | 0 f | 0 {\"x\": \"}\"} | 1 f | 1 {\"x\": \"}\"}",
    );
    check(
        HERMES,
        &format!("<think>hm</think>\n\n{one} done"),
        "thinks \"hm\" | 0 f | 0 {\"x\": \"}\"} | text \"done\"",
    );
    check(HERMES, "<tool_call>{\"name\": \"f\"}", "0 f | 0 {}");
    check(HERMES, "<tool_call>{\"name\": \"f\"}</tool", "0 f | 0 {}");
    check(HERMES, "<tool_call>{\"name\": \"f\"} so", "0 f | 0 {} | text \"so\"");
}

#[test]
fn broken_calls_stay_text() {
    for answer in [
        "a <tool_call>\n{\"name\": \"f\", \"arguments\": {",
        "<tool_call> {\"nam\": \"f\"} </tool_call>",
        "<tool_call>f()</tool_call>",
        "<tool_call>",
        " <tool_cal",
    ] {
        check(HERMES, answer, &format!("text {answer:?}"));
    }
    check(HERMES, "<tool_call>no <tool_call>{\"name\": \"f\"}", "text \"<tool_call>no\" | 0 f | 0 {}");
}

#[test]
fn calls_of_llama() {
    check(LLAMA, "{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "0 f | 0 {\"x\": 1}");
    check(LLAMA, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "0 f | 0 {}");
    let two = "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {}}";
    check(LLAMA, two, "0 f | 0 {} | 1 g | 1 {}");
    check(LLAMA, "{\"name\": \"Anna\"}", "text \"{\\\"name\\\": \\\"Anna\\\"}\"");
    check(LLAMA, "{\"name\": \"f\", \"par", "text \"{\\\"name\\\": \\\"f\\\", \\\"par\"");
    check(
        LLAMA,
        "Well {\"name\": \"f\", \"parameters\": {}}",
        "text \"Well {\\\"name\\\": \\\"f\\\", \\\"parameters\\\": {}}\"",
    );
    check(LLAMA, "<|python_tag|>print(1)", "text \"<|python_tag|>print(1)\"");
}

#[test]
fn calls_of_mistral() {
    let array = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"g\", \"arguments\": {}, \"id\": \"a\"}]";
    check(MISTRAL, array, "0 f | 0 {\"x\": 1} | 1 g | 1 {}");
    check(
        MISTRAL,
        "Yes.[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[CALL_ID]ab1[ARGS]{}",
        "text \"Yes.\" | 0 f | 0 {\"x\": 1} | 1 g | 1 {}",
    );
    check(MISTRAL, "[TOOL_CALLS]f{\"x\": 1}", "0 f | 0 {\"x\": 1}");
    for answer in [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][{\"name\": 1}]",
        "[TOOL_CALLS]f[ARGS]{",
        "[TOOL_CALLS]a b{}",
        "[TOOL_CALLS]a\nb{}",
    ] {
        check(MISTRAL, answer, &format!("text {answer:?}"));
    }
}

#[test]
fn what_is_not_asked_for_stays_text() {
    let answer = "<think>a</think><tool_call>{\"name\": \"f\"}</tool_call>";
    let reader = AnswerReader::new(&AnswerFormat::of(HERMES), false, false);
    assert_eq!(read_with(reader, &[answer]), [Part::Text(answer.to_owned())]);
}

#[test]
fn text_is_passed_on_at_once() {
    let mut reader = AnswerReader::new(&AnswerFormat::of(HERMES), true, true);
    assert_eq!(reader.push("Hello"), [Part::Text("Hello".into())]);
    assert_eq!(reader.push(" wor"), [Part::Text(" wor".into())]);
    assert_eq!(reader.push("ld <"), [Part::Text("ld".into())]);
    assert_eq!(reader.push("b>"), [Part::Text(" <b>".into())]);
}

#[test]
fn a_forced_call_is_read_with_its_opener() {
    let tool = crate::Tool { name: "f".into(), description: None, parameters: serde_json::json!({}) };
    for (source, rest) in [
        (HERMES, "{\"name\": \"f\", \"arguments\": {}}"),
        (LLAMA, "{\"name\": \"f\", \"parameters\": {}}"),
        (MISTRAL, "{}"),
    ] {
        let opener = AnswerFormat::of(source).forced_call(&[&tool]).opener;
        let parts = read(source, &[&opener, rest]);
        assert_eq!(parts.len(), 2, "{source}: {parts:?}");
    }
}

/// Pieces that answers are made of, with all marks and what breaks them.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\\\"\"]}}",
            "{\"name\": \"f\", \"parameters\": {}}",
            "[{\"name\": \"f\"}]",
            "{",
            "}",
            "[",
            "]",
            ";",
            "\"",
            "\\",
            "\n",
            " ",
            "<",
            "f",
            "ü",
            "日本",
            "\u{1F600}",
        ])
        .prop_map(str::to_owned),
        "[a-z <\\[\n]{0,6}",
    ]
}

proptest! {
    #[test]
    fn any_split_gives_the_same_parts(
        pieces in prop::collection::vec(piece(), 0..12),
        cuts in prop::collection::vec(0usize..200, 0..12),
        source in prop::sample::select(vec!["", HERMES, LLAMA, MISTRAL]),
        is_open: bool,
        (reads_calls, splits_thinking) in any::<(bool, bool)>(),
    ) {
        let answer = pieces.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| answer.is_char_boundary(*cut)).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort_unstable();
        let split: Vec<&str> = cuts.windows(2).map(|ends| &answer[ends[0]..ends[1]]).collect();
        let reader = || {
            let mut reader = AnswerReader::new(&AnswerFormat::of(source), reads_calls, splits_thinking);
            if is_open {
                reader.starts_after("<think>\n");
            }
            reader
        };
        let whole = read_with(reader(), &[&answer]);
        prop_assert_eq!(&read_with(reader(), &split), &whole);
        if !reads_calls && !splits_thinking {
            let expected: Vec<Part> = (!answer.is_empty()).then(|| Part::Text(answer.clone())).into_iter().collect();
            prop_assert_eq!(&whole, &expected);
        }
        // Nothing is lost but white space, marks and the JSON of calls.
        if !whole.iter().any(|part| matches!(part, Part::CallBegins { .. })) && !answer.contains("think>") {
            let said: String = whole.iter().map(|part| match part {
                Part::Text(text) | Part::Thinking(text) => text.as_str(),
                _ => "",
            }).collect();
            prop_assert_eq!(said.trim(), answer.trim());
        }
    }
}
