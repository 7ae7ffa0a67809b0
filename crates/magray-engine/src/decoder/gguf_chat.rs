//! The chat templates of a GGUF file.
//! Compiles and renders none.

use crate::{
    spec::decoder::{ChatTemplates, TEMPLATE_BYTES_MAX, TEMPLATES_MAX},
    weights::{WeightsError, gguf::Gguf},
};

/// The templates of a file.
pub(super) fn templates(file: &Gguf) -> Result<ChatTemplates, WeightsError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = ChatTemplates { default: bounded(file, KEY)?, ..ChatTemplates::default() };
    for name in file.texts("tokenizer.chat_templates")?.unwrap_or_default().into_iter().take(TEMPLATES_MAX) {
        if let Some(source) = bounded(file, &format!("{KEY}.{name}"))? {
            templates.named.insert(name.to_owned(), source);
        }
    }
    // Files may have one without listing it.
    if let Some(source) = bounded(file, &format!("{KEY}.tool_use"))? {
        templates.named.insert("tool_use".to_owned(), source);
    }
    let tokens = file.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let text = |name: &str| -> Result<Option<String>, WeightsError> {
        let id = file.number(&format!("tokenizer.ggml.{name}_token_id"))?;
        let token = id.and_then(|id| usize::try_from(id).ok()).and_then(|id| tokens.get(id));
        Ok(token.map(|token| (*token).to_owned()))
    };
    let (bos, eos, unk, pad) = (text("bos")?, text("eos")?, text("unknown")?, text("padding")?);
    Ok(ChatTemplates { bos, eos, unk, pad, ..templates })
}

fn bounded(file: &Gguf, key: &str) -> Result<Option<String>, WeightsError> {
    match file.text(key)? {
        Some(source) if source.len() as u64 > TEMPLATE_BYTES_MAX => {
            Err(file.invalid(format!("{key} has {} bytes, and {TEMPLATE_BYTES_MAX} is the most", source.len())))
        }
        source => Ok(source.map(str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::gguf::writer::Writer;

    #[test]
    fn templates_of_a_gguf_file_are_found() {
        let mut writer = Writer::default();
        writer
            .text("tokenizer.chat_template", "one")
            .text("tokenizer.chat_template.tool_use", "two")
            .texts("tokenizer.ggml.tokens", &["<s>", "</s>"])
            .number("tokenizer.ggml.bos_token_id", 0)
            .number("tokenizer.ggml.eos_token_id", 1)
            .number("tokenizer.ggml.padding_token_id", 9);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, writer.bytes()).unwrap();
        let found = templates(&Gguf::open(&path).unwrap()).unwrap();
        assert_eq!((found.default.as_deref(), found.named["tool_use"].as_str()), (Some("one"), "two"));
        assert_eq!((found.bos.as_deref(), found.eos.as_deref(), found.pad), (Some("<s>"), Some("</s>"), None));
        let mut writer = Writer::default();
        writer.text("tokenizer.chat_template", &"x".repeat((1 << 20) + 1));
        std::fs::write(&path, writer.bytes()).unwrap();
        let error = templates(&Gguf::open(&path).unwrap()).unwrap_err();
        assert!(error.to_string().contains("1048576"), "{error}");
    }
}
