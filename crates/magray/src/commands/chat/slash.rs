//! Commands of a conversation: lines that begin with a slash.
//! Carries none of them out.

use std::path::PathBuf;

pub(super) const HELP: &str = "\
/model NAME     talk to another model; without a name, tell which one it is
/system TEXT    instructions before the conversation; without a text, none
/save FILE      write the conversation: to a .json file as JSON, else Markdown
/clear          forget what was said
/help           this list
/quit           leave; Ctrl-D does too

A line that ends with \\ goes on with the next one.
\"\"\" begins and ends a text of several lines.
Ctrl-C stops an answer.";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slash {
    Model(Option<String>),
    System(Option<String>),
    Save(PathBuf),
    Clear,
    Help,
    Quit,
    /// What is wrong with it.
    Mistake(String),
}

impl Slash {
    /// `None`: the line is something to say.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let rest = line.strip_prefix('/')?;
        let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let rest = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
        Some(match (name, rest) {
            ("model", name) => Self::Model(name),
            ("system", text) => Self::System(text),
            ("save", Some(file)) => Self::Save(file.into()),
            ("save", None) => Self::Mistake("name a file: /save talk.md".to_owned()),
            ("clear", None) => Self::Clear,
            ("help" | "?", _) => Self::Help,
            ("quit" | "exit" | "bye" | "q", _) => Self::Quit,
            ("clear", Some(_)) => Self::Mistake("/clear takes nothing".to_owned()),
            // A path or a regular expression is not meant as a command.
            (name, _) if !name.chars().all(|c| c.is_ascii_alphabetic()) || name.is_empty() => return None,
            (name, _) => Self::Mistake(format!("there is no command /{name}; /help lists them")),
        })
    }
}

/// Whether more lines have to come before this text is whole.
pub(super) fn is_unfinished(text: &str) -> bool {
    match text.trim_start().strip_prefix("\"\"\"") {
        Some(rest) => !rest.trim_end().ends_with("\"\"\""),
        None => text.ends_with('\\'),
    }
}

/// The text without what only held its lines together.
pub(super) fn joined(text: &str) -> String {
    let trimmed = text.trim();
    let quoted = trimmed.strip_prefix("\"\"\"").and_then(|rest| rest.strip_suffix("\"\"\""));
    match quoted {
        Some(quoted) => quoted.trim_matches('\n').to_owned(),
        None => text.replace("\\\n", "\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_what_is_said() {
        let some = |text: &str| Some(text.to_owned());
        let cases = [
            ("/model  a/b ", Slash::Model(some("a/b"))),
            ("/model", Slash::Model(None)),
            ("/system Be brief.", Slash::System(some("Be brief."))),
            ("/save a b.md", Slash::Save("a b.md".into())),
            ("/clear", Slash::Clear),
            ("/help", Slash::Help),
            (" /quit", Slash::Quit),
        ];
        for (line, expected) in cases {
            assert_eq!(Slash::parse(line), Some(expected), "{line}");
        }
        for mistake in ["/save", "/clear all", "/modle x"] {
            assert!(matches!(Slash::parse(mistake), Some(Slash::Mistake(_))), "{mistake}");
        }
        for said in ["hello", "/etc/passwd is what?", "/", "1/2", ""] {
            assert_eq!(Slash::parse(said), None, "{said}");
        }
    }

    #[test]
    fn several_lines_are_one_text() {
        assert!(is_unfinished("one\\") && !is_unfinished("one"));
        assert!(
            is_unfinished("\"\"\"one") && is_unfinished("\"\"\"one\ntwo") && !is_unfinished("\"\"\"one\ntwo\"\"\"")
        );
        assert_eq!(joined("one\\\ntwo"), "one\ntwo");
        assert_eq!(joined("\"\"\"\none\n two\n\"\"\""), "one\n two");
        assert_eq!(joined("say \"\"\""), "say \"\"\"");
    }
}
