//! The chat template of a model, from what its files say.
//! Renders nothing.

use magray_chat::{ChatTemplate, TemplateError, TemplateSources};
use magray_engine::engine::Engine;

/// Compiles it; `None`: the model is not made for conversations.
pub fn chat_template(engine: &Engine, model: usize) -> Result<Option<ChatTemplate>, TemplateError> {
    let compile = |told: &magray_engine::spec::decoder::ChatTemplates| {
        ChatTemplate::compile(&TemplateSources {
            default: told.default.clone(),
            named: told.named.clone(),
            bos: told.bos.clone(),
            eos: told.eos.clone(),
            unk: told.unk.clone(),
            pad: told.pad.clone(),
        })
    };
    engine.chat_templates(model).map(compile).transpose()
}
