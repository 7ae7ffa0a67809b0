//! A file of settings to start from: every setting with its meaning and default, commented out.
//! Sets nothing.

use super::{
    setting::Setting,
    table::SETTINGS,
    value::{Kind, Value},
};

const HEAD: &str = "\
# Settings of magray. A line that begins with #name shows a default: remove the # and change the value.
# `magray config` shows what is in force and where it comes from.
";
const WIDTH: usize = 110;
/// Sections whose names are free.
const CRITICS: &str = r#"
# Critics of `magray evaluate` (docs/critics.md): a section each, in place of those that are built in.
# [critics.tone]
# prompt = "Is the text friendly to its reader?"
# weight = 1
# veto_below = 0.2
"#;

/// The text of the file, in TOML.
pub(crate) fn template() -> String {
    let section_of = |setting: &Setting| setting.key.rsplit_once('.').map_or("", |(section, _)| section);
    let used = || SETTINGS.iter();
    let mut sections: Vec<&str> = Vec::new();
    for section in used().map(section_of) {
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    let mut text = HEAD.to_owned();
    for section in sections {
        text.push_str(&format!("\n[{section}]\n"));
        for setting in used().filter(|setting| section_of(setting) == section) {
            wrapped(setting.help).iter().for_each(|line| text.push_str(&format!("# {line}\n")));
            text.push_str(&format!("#{} = {}\n", setting.name(), toml_default(setting)));
        }
    }
    text + CRITICS
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn toml_default(setting: &Setting) -> String {
    let quoted = |text: &str| format!("{text:?}");
    match (setting.kind, setting.read(setting.default)) {
        (Kind::NamedChoices(_) | Kind::NamedSeconds | Kind::Placement, _) => "{}".to_owned(),
        (Kind::Wholes, Some(Value::List(items))) => format!("[{}]", items.join(", ")),
        (_, Some(Value::List(items))) => {
            format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
        }
        (_, Some(Value::Whole(_) | Value::Number(_) | Value::Switch(_))) => setting.default.to_owned(),
        _ => quoted(setting.default),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn every_line_can_be_uncommented_and_changes_nothing() {
        let text = template();
        let is_setting = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
        assert_eq!(text.lines().filter(is_setting).count(), SETTINGS.len());
        let folder = tempfile::tempdir().unwrap();
        let settled = |content: &str| {
            let path = folder.path().join("config.toml");
            std::fs::write(&path, content).unwrap();
            let inputs = Inputs { file: Some(&path), flags: &[], env: &|_| None, folder: folder.path() };
            let config = Config::resolve(&inputs).unwrap();
            let shown = |entry: &Entry| entry.shown().replace("{}", "none");
            config.entries.iter().map(|entry| (entry.setting.key, shown(entry))).collect::<Vec<_>>()
        };
        let live: String =
            text.lines().map(|line| format!("{}\n", if is_setting(&line) { &line[1..] } else { line })).collect();
        assert_eq!(settled(&live), settled(&text));
    }
}
