//! Writes a conversation to a file.
//! Replaces no file that it did not write whole.

use std::{io, path::Path};

use magray_chat::Message;
use serde_json::json;

/// As JSON where the name says so, else as Markdown. A file that is there is replaced at the end, or not at all.
pub(super) fn write(file: &Path, model: &str, messages: impl Iterator<Item = Message>) -> io::Result<()> {
    let is_json = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let text = if is_json { as_json(model, messages) } else { as_markdown(model, messages) };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let part = tempfile::NamedTempFile::new_in(folder)?;
    std::fs::write(part.path(), text)?;
    part.persist(file).map_err(|error| error.error)?;
    Ok(())
}

fn as_json(model: &str, messages: impl Iterator<Item = Message>) -> String {
    let message = |message: Message| {
        let mut object = json!({"role": message.role.name(), "content": message.content});
        if let Some(thinking) = message.thinking {
            object["thinking"] = thinking.into();
        }
        object
    };
    format!("{:#}\n", json!({"model": model, "messages": messages.map(message).collect::<Vec<_>>()}))
}

fn as_markdown(model: &str, messages: impl Iterator<Item = Message>) -> String {
    let mut text = format!("# {model}\n");
    for message in messages {
        text += &format!("\n## {}\n\n{}\n", message.role.name(), message.content.trim());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_chat::Role;

    #[test]
    fn a_conversation_is_written_by_the_ending_of_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let messages = || [Message::new(Role::User, "Hi?"), Message::new(Role::Assistant, "Yes.\n")].into_iter();
        let (markdown, json) = (folder.path().join("talk.md"), folder.path().join("talk.JSON"));
        write(&markdown, "tiny", messages()).unwrap();
        assert_eq!(std::fs::read_to_string(&markdown).unwrap(), "# tiny\n\n## user\n\nHi?\n\n## assistant\n\nYes.\n");
        write(&json, "tiny", messages()).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!((&read["model"], &read["messages"][1]["content"]), (&"tiny".into(), &"Yes.\n".into()));
        assert!(write(&folder.path().join("none/talk.md"), "tiny", messages()).is_err());
    }
}
