//! The chat templates of a model, as its files have them: text, and the tokens that templates name.
//! Compiles and renders none.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    bounded_file,
    spec::{SpecError, settings::Settings},
};

/// The longest template that is read; real ones have up to some tens of kilobytes.
pub(crate) const TEMPLATE_BYTES_MAX: u64 = 1 << 20;
/// More named templates than any model has.
pub(crate) const TEMPLATES_MAX: usize = 32;

/// What a model's files say about chats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTemplates {
    /// The template of every chat.
    pub default: Option<String>,
    /// Others by name, such as "tool_use".
    pub named: BTreeMap<String, String>,
    /// The text of the token that begins a prompt.
    pub bos: Option<String>,
    /// The text of the token that ends an answer.
    pub eos: Option<String>,
    /// The text of the token for unknown text.
    pub unk: Option<String>,
    /// The text of the token that fills up batches.
    pub pad: Option<String>,
}

impl ChatTemplates {
    /// Those of a folder: `tokenizer_config.json`, `chat_template.json`, `chat_template.jinja` and
    /// `additional_chat_templates/NAME.jinja`, the later before the earlier.
    pub fn read(folder: &Path) -> Result<Self, SpecError> {
        let mut templates = Self::default();
        for name in ["special_tokens_map.json", "tokenizer_config.json", "chat_template.json"] {
            let Some(settings) = Settings::read(&folder.join(name))? else { continue };
            templates.take_tokens(&settings);
            templates.take_templates(&settings)?;
        }
        if let Some(source) = read_template(&folder.join("chat_template.jinja"))? {
            templates.default = Some(source);
        }
        for file in more_files(&folder.join("additional_chat_templates"))? {
            let name = file.file_stem().and_then(|stem| stem.to_str());
            if let (Some(name), Some(source)) = (name, read_template(&file)?) {
                templates.named.insert(name.to_owned(), source);
            }
        }
        Ok(templates)
    }

    /// Whether there is any template.
    pub fn has_any(&self) -> bool {
        self.default.is_some() || !self.named.is_empty()
    }

    fn take_tokens(&mut self, settings: &Settings) {
        let texts = [
            ("bos_token", &mut self.bos),
            ("eos_token", &mut self.eos),
            ("unk_token", &mut self.unk),
            ("pad_token", &mut self.pad),
        ];
        for (name, text) in texts {
            // A token is its text, or an object that holds it.
            let said = settings.value(name).and_then(|value| value.get("content").unwrap_or(value).as_str());
            if let Some(said) = said {
                *text = Some(said.to_owned());
            }
        }
    }

    fn take_templates(&mut self, settings: &Settings) -> Result<(), SpecError> {
        const FIELD: &str = "chat_template";
        match settings.value(FIELD) {
            None => {}
            Some(Value::String(source)) => self.default = Some(source.clone()),
            Some(Value::Array(list)) if list.len() <= TEMPLATES_MAX => {
                for one in list {
                    let (Some(name), Some(source)) = (one["name"].as_str(), one["template"].as_str()) else {
                        return Err(settings.invalid(FIELD, "each of them must have a name and a template"));
                    };
                    match name {
                        "default" => self.default = Some(source.to_owned()),
                        _ => _ = self.named.insert(name.to_owned(), source.to_owned()),
                    }
                }
            }
            Some(_) => {
                return Err(settings.invalid(FIELD, format!("it must be a text or a list of up to {TEMPLATES_MAX}")));
            }
        }
        Ok(())
    }
}

fn read_template(file: &Path) -> Result<Option<String>, SpecError> {
    let unreadable = |source| SpecError::Unreadable { file: file.to_owned(), source };
    match bounded_file::read(file, TEMPLATE_BYTES_MAX) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(source) => Ok(Some(source)),
            Err(error) => Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

/// The templates of a folder that may not be there, in the order of their names.
fn more_files(folder: &Path) -> Result<Vec<PathBuf>, SpecError> {
    let unreadable = |source| SpecError::Unreadable { file: folder.to_owned(), source };
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut files = Vec::new();
    for entry in entries.take(8 * TEMPLATES_MAX) {
        let file = entry.map_err(unreadable)?.path();
        if file.extension().is_some_and(|extension| extension == "jinja") {
            files.push(file);
        }
    }
    files.sort();
    files.truncate(TEMPLATES_MAX);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folder(files: &[(&str, String)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_without_templates_has_none() {
        let found = ChatTemplates::read(folder(&[]).path()).unwrap();
        assert!(!found.has_any());
    }

    #[test]
    fn templates_of_a_folder_are_found_in_every_place() {
        let config = json!({
            "bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>", "pad_token": null,
            "chat_template": [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}],
        });
        let files = [
            ("tokenizer_config.json", config.to_string()),
            ("special_tokens_map.json", json!({"unk_token": "<unk>", "eos_token": "<old>"}).to_string()),
            ("additional_chat_templates/rag.jinja", "three".to_owned()),
            ("additional_chat_templates/readme.txt", "no".to_owned()),
        ];
        let found = ChatTemplates::read(folder(&files).path()).unwrap();
        assert_eq!(found.default.as_deref(), Some("one"));
        let named: Vec<_> = found.named.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
        assert_eq!(named, [("rag", "three"), ("tool_use", "two")]);
        let tokens = [found.bos, found.eos, found.unk, found.pad];
        assert_eq!(tokens.map(|token| token.unwrap_or_default()), ["<s>", "</s>", "<unk>", ""]);
    }

    #[test]
    fn a_file_of_its_own_goes_before_the_settings() {
        let config = json!({"chat_template": "old"}).to_string();
        let files = [("tokenizer_config.json", config), ("chat_template.jinja", "new".to_owned())];
        assert_eq!(ChatTemplates::read(folder(&files).path()).unwrap().default.as_deref(), Some("new"));
    }

    #[test]
    fn templates_that_cannot_be_are_refused_by_name() {
        let check = |file: &str, text: String, words: &str| {
            let error = ChatTemplates::read(folder(&[(file, text)]).path()).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains(words), "{error}");
        };
        check("tokenizer_config.json", json!({"chat_template": 7}).to_string(), "a text or a list");
        check("tokenizer_config.json", json!({"chat_template": [{"name": "x"}]}).to_string(), "a name and a template");
        check("chat_template.jinja", "x".repeat((1 << 20) + 1), "1048576");
    }
}
