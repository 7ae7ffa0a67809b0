//! Whatever a chat template says, it renders or is refused within its bounds; whatever a model answers, any pieces of it
//! are read as the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use magray_chat::{AnswerReader, ChatTemplate, Conversation, Message, Opening, Part, Role, TemplateSources, Tool};
use serde_json::json;

fuzz_target!(|bytes: &[u8]| {
    let Some((cuts, text)) = bytes.split_first_chunk::<4>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (source, answer) = text.split_once('\0').unwrap_or((text, text));
    // A text that is joined with itself grows without bound in a few steps, which only the size of memory ends.
    if source.matches(['~', '+']).count() > 8 {
        return;
    }
    let sources = TemplateSources { default: Some(source.to_owned()), ..TemplateSources::default() };
    let Ok(template) = ChatTemplate::compile(&sources) else { return };
    let _ = template.render(&conversation(), &Opening::default());
    let whole = read(&template, &[answer]);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| answer.floor_char_boundary(usize::from(*cut))).collect();
    cuts.extend([0, answer.len()]);
    cuts.sort_unstable();
    let pieces: Vec<&str> = cuts.windows(2).map(|ends| &answer[ends[0]..ends[1]]).collect();
    assert_eq!(read(&template, &pieces), whole);
});

fn conversation() -> Conversation {
    let tools = vec![Tool { name: "f".to_owned(), description: None, parameters: json!({"type": "object"}) }];
    let messages = vec![Message::new(Role::System, "Be brief."), Message::new(Role::User, "Hi?")];
    Conversation { messages, tools, ..Conversation::default() }
}

/// The parts, with neighbours of one kind joined.
fn read(template: &ChatTemplate, pieces: &[&str]) -> Vec<Part> {
    let mut reader = AnswerReader::new(template.format(), true, true);
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    parts.extend(reader.finish());
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Part::Text(last)), Part::Text(text)) | (Some(Part::Thinking(last)), Part::Thinking(text)) => {
                last.push_str(&text);
            }
            (_, part) => joined.push(part),
        }
    }
    joined
}
