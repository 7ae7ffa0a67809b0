//! Critics in this process: one engine with all of their models.
//! A model that cannot be had is its critics' failure, and the whole command's only where there is no other.

use magray_chat::ChatTemplate;
use magray_engine::{
    DeviceName,
    engine::{Engine, ModelSource},
};

use super::{Context, EvaluateArgs};
use crate::{
    commands::compute_args::flag,
    critics::{Answered, FoundModel, Judging, Models, Panel, Precedent, Report},
    exit::Failure,
    generation::{Job, JobError, SideBySide, Urgency, WholeAnswer, chat_template},
    model,
    session::Session,
};

pub(super) fn judge(
    panel: &Panel,
    critics: Vec<usize>,
    (text, precedents): (&str, &[Precedent]),
    (args, context): (&EvaluateArgs, &Context),
) -> Result<Report, Failure> {
    let mut flags = args.compute.flags();
    let usual = match &args.compute.model {
        Some(model) => model.clone(),
        None => context.settle(&flags)?.chat_model(),
    };
    let mut names: Vec<&str> = Vec::new();
    for name in panel.models(&critics).map(|name| name.unwrap_or(&usual)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    flags.retain(|flag| flag.key != "model.name");
    flags.extend(flag("model.name", names.first().map(|name| (*name).to_owned()).as_ref()));
    let config = context.settle(&flags)?;
    let mut sources: Vec<(String, ModelSource)> = Vec::new();
    let mut missing: Vec<(String, Failure)> = Vec::new();
    for name in names {
        match model::source_named(name, &config, &context.console) {
            Ok(source) => sources.push((name.to_owned(), source)),
            Err(failure) => missing.push((name.to_owned(), failure)),
        }
    }
    if sources.is_empty() {
        let first = missing.into_iter().next().map(|(_, failure)| failure);
        return Err(first.unwrap_or_else(|| Failure::Usage("there is no critic to ask".to_owned())));
    }
    let found: Vec<String> = sources.iter().map(|(name, _)| name.clone()).collect();
    let session = Session::start_several(&config, model::encoder_options(&config), sources, &context.console)?;
    let models = OwnModels {
        templates: (0..found.len())
            .map(|number| chat_template(session.engine(), number).map_err(JobError::from))
            .collect(),
        engine: session.engine().clone(),
        usual,
        found,
        missing: missing.into_iter().map(|(name, failure)| (name, failure.to_string())).collect(),
    };
    let (bar, count) = (context.console.steps_bar(critics.len()), critics.len());
    let on_done = |done: usize| bar.set_position(done as u64);
    let judging = Judging { text, critics, precedents, model: None, on_done: &on_done };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(Failure::Thread)?;
    let (report, refusals) = runtime.block_on(panel.judge(&models, &judging));
    bar.finish_and_clear();
    session.leave();
    // Where all are refused, nothing was evaluated.
    if refusals.len() == count
        && let Some(first) = refusals.into_iter().next()
    {
        return Err(first);
    }
    Ok(report)
}

/// The models of an engine of this process.
struct OwnModels {
    engine: Engine,
    /// By number.
    found: Vec<String>,
    templates: Vec<Result<Option<ChatTemplate>, JobError>>,
    usual: String,
    /// Names that are no models here, and why.
    missing: Vec<(String, String)>,
}

impl Models for OwnModels {
    type Error = Failure;

    fn find(&self, name: Option<&str>) -> Result<FoundModel, Failure> {
        let name = name.unwrap_or(&self.usual);
        match self.found.iter().position(|known| known == name) {
            Some(number) => Ok(FoundModel { number, name: name.to_owned() }),
            None => {
                let reason = self.missing.iter().find(|(known, _)| known == name).map(|(_, reason)| reason.clone());
                Err(Failure::Usage(reason.unwrap_or_else(|| format!("there is no model '{name}'"))))
            }
        }
    }

    async fn answer(
        &self,
        job: Job,
        device: Option<DeviceName>,
        begun: impl FnOnce() + Send,
    ) -> Result<Answered, Failure> {
        let template = match &self.templates[job.model] {
            Ok(template) => template.as_ref(),
            Err(error) => return Err(Failure::Usage(error.to_string())),
        };
        let prepared = job.prepare(&self.engine, template)?.on(device);
        let mut stream = SideBySide::new(prepared.begin(&self.engine, Urgency::default())?);
        let (mut answer, mut begun) = (WholeAnswer::default(), Some(begun));
        while let Some((_, event)) = stream.next().await {
            answer.add(event?);
            if let Some(begun) = begun.take() {
                begun();
            }
        }
        Ok(Answered { answer, prompt_tokens: prepared.prompt_tokens() })
    }
}
