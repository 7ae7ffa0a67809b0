//! The models of the server by the names that clients use; models and names come and go while it runs.
//! Knows their names, what they do and their files; computes nothing.

use std::sync::{
    OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, Ordering},
};

use magray_chat::{ChatTemplate, TemplateError};
pub(crate) use magray_engine::spec::Does;
use magray_engine::{Roster, RosterFull, engine::Engine};

use super::{
    errors::{Kind, Problem},
    model_files::ModelFiles,
};
use crate::generation::chat_template;

/// All models that there have been, by their numbers in the engine.
#[derive(Debug, Default)]
pub(crate) struct Models {
    models: Roster<Model>,
    /// In lower case, with the number of the model that each means.
    aliases: RwLock<Vec<(String, usize)>>,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) does: Does,
    pub(crate) max_tokens: usize,
    /// Numbers of a vector, or labels.
    pub(crate) outputs: usize,
    pub(crate) files: ModelFiles,
    /// Compiled when it is needed first; `None` inside: it has none.
    chat_template: OnceLock<Result<Option<ChatTemplate>, TemplateError>>,
    /// It was unloaded or deleted.
    is_gone: AtomicBool,
}

fn next_best(wanted: Does) -> Does {
    match wanted {
        // Vectors can be compared, and a ranker's score is the score of its one class.
        Does::Rank => Does::Embed,
        Does::Classify => Does::Rank,
        Does::Embed => Does::Embed,
        Does::Generate => Does::Generate,
    }
}

impl Model {
    fn of(engine: &Engine, number: usize) -> Option<Self> {
        let (name, spec) = (engine.model_name(number)?.to_owned(), engine.spec(number)?);
        let (does, files) = (spec.does(), ModelFiles::of(engine.model_source(number)?, spec));
        let is_gone = AtomicBool::new(false);
        let chat_template = OnceLock::new();
        Some(Self { name, does, max_tokens: spec.max_tokens, outputs: spec.outputs(), files, chat_template, is_gone })
    }

    /// How it is given conversations; `None`: it is not made for them. `number` is its own.
    pub(crate) fn chat_template(&self, engine: &Engine, number: usize) -> Result<Option<&ChatTemplate>, Problem> {
        let broken = |error: &TemplateError| Problem::invalid("model", error.to_string());
        self.chat_template.get_or_init(|| chat_template(engine, number)).as_ref().map(Option::as_ref).map_err(broken)
    }

    pub(crate) fn check_dimensions(&self, dimensions: Option<usize>) -> Result<(), Problem> {
        match dimensions {
            Some(wanted) if wanted == 0 || wanted > self.outputs => {
                let message = format!("the vectors of '{}' have {} dimensions, not {wanted}", self.name, self.outputs);
                Err(Problem::invalid("dimensions", message))
            }
            _ => Ok(()),
        }
    }

    fn is_there(&self) -> bool {
        !self.is_gone.load(Ordering::Acquire)
    }
}

impl Models {
    /// The models of an engine. An alias that names none of them is an error: its text is given back.
    pub(crate) fn new(engine: &Engine, aliases: &[(String, String)]) -> Result<Self, String> {
        let models = (0..engine.models_len()).filter_map(|number| Model::of(engine, number)).collect();
        let all = Self { models, aliases: RwLock::default() };
        all.set_aliases(all.resolve(aliases)?);
        Ok(all)
    }

    /// The model that the engine got last.
    pub(crate) fn add(&self, engine: &Engine) -> Result<usize, RosterFull> {
        let number = self.models.len();
        let Some(model) = Model::of(engine, number) else { unreachable!("the engine has model {number}") };
        self.models.push(model)
    }

    /// A model is not there any more, nor are the aliases that mean it.
    pub(crate) fn remove(&self, number: usize) {
        self.get(number).is_gone.store(true, Ordering::Release);
        self.write_aliases().retain(|(_, known)| *known != number);
    }

    /// The models that are there, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Model)> {
        self.models.iter().enumerate().filter(|(_, model)| model.is_there())
    }

    /// A model by its number, there or not.
    pub(crate) fn get(&self, number: usize) -> &Model {
        &self.models[number]
    }

    /// The aliases, each with the model that it means.
    pub(crate) fn aliases(&self) -> Vec<(String, usize)> {
        self.read_aliases().clone()
    }

    /// The numbers that aliases of the settings mean, or what is wrong with one.
    pub(crate) fn resolve(&self, aliases: &[(String, String)]) -> Result<Vec<(String, usize)>, String> {
        let resolve = |(alias, name): &(String, String)| {
            let unknown = || format!("the alias '{alias}' means '{name}', which is no model");
            Ok((alias.to_ascii_lowercase(), self.number(name).ok_or_else(unknown)?))
        };
        aliases.iter().map(resolve).collect()
    }

    pub(crate) fn set_aliases(&self, aliases: Vec<(String, usize)>) {
        *self.write_aliases() = aliases;
    }

    /// Lets an alias mean another model, or nothing.
    pub(crate) fn set_alias(&self, alias: &str, number: Option<usize>) {
        let alias = alias.to_ascii_lowercase();
        let mut aliases = self.write_aliases();
        aliases.retain(|(known, _)| *known != alias);
        aliases.extend(number.map(|number| (alias, number)));
    }

    /// The number of the model of this name; without a name, of the first that does what is wanted, or the next best.
    pub(crate) fn find(&self, name: Option<&str>, wanted: Does) -> Result<usize, Problem> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let first = |wanted: Does| self.iter().find(|(_, model)| model.does == wanted).map(|(number, _)| number);
            let best = first(wanted).or_else(|| first(next_best(wanted)));
            return best.or_else(|| self.first()).ok_or_else(|| self.unknown("there is no model here"));
        };
        self.named(name)
    }

    /// The first model that is there.
    pub(crate) fn first(&self) -> Option<usize> {
        self.iter().next().map(|(number, _)| number)
    }

    /// The number of the model of this name, or of the first that embeds. A model that does not embed is refused.
    pub(crate) fn embedder(&self, name: Option<&str>) -> Result<usize, Problem> {
        let number = self.find(name, Does::Embed)?;
        match self.get(number).does {
            Does::Embed => Ok(number),
            Does::Rank | Does::Classify | Does::Generate => {
                Err(Problem::invalid("model", "this model makes no vectors: use one that embeds"))
            }
        }
    }

    pub(crate) fn named(&self, name: &str) -> Result<usize, Problem> {
        self.number(name).ok_or_else(|| self.missing(name))
    }

    /// The number of the model of just this name or alias, for what would be wrong with another of a like name.
    pub(crate) fn named_exactly(&self, name: &str) -> Result<usize, Problem> {
        self.exact(name).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> Problem {
        // A name is the client's own text, of any length.
        let shown: String = name.chars().take(100).collect();
        let was_here = self.models.iter().any(|model| !model.is_there() && is_meant(model, name));
        self.unknown(&match was_here {
            true => format!("the model '{shown}' was deleted or unloaded"),
            false => format!("there is no model '{shown}' here"),
        })
    }

    /// That there is no such model, and which there are.
    pub(crate) fn unknown(&self, what: &str) -> Problem {
        let known: Vec<&str> = self.iter().map(|(_, model)| model.name.as_str()).collect();
        let there =
            if known.is_empty() { "there is none".to_owned() } else { format!("there is {}", known.join(", ")) };
        Problem::new(Kind::NoSuchModel, format!("{what}; {there}")).about("model")
    }

    fn number(&self, name: &str) -> Option<usize> {
        // A model that went is not replaced by another of a like name.
        let has_gone = || self.models.iter().any(|model| !model.is_there() && model.name.eq_ignore_ascii_case(name));
        let alike = || self.iter().find(|(_, model)| is_meant(model, name)).map(|(number, _)| number);
        self.exact(name).or_else(|| if has_gone() { None } else { alike() })
    }

    fn exact(&self, name: &str) -> Option<usize> {
        let whole = self.iter().find(|(_, model)| model.name.eq_ignore_ascii_case(name)).map(|(number, _)| number);
        whole.or_else(|| {
            let aliases = self.read_aliases();
            aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name)).map(|(_, number)| *number)
        })
    }

    fn read_aliases(&self) -> RwLockReadGuard<'_, Vec<(String, usize)>> {
        self.aliases.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_aliases(&self) -> RwLockWriteGuard<'_, Vec<(String, usize)>> {
        self.aliases.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a name means a model: Ollama's clients put a tag behind it, hub clients an organisation before it.
fn is_meant(model: &Model, name: &str) -> bool {
    fn short(name: &str) -> &str {
        let last = name.rsplit('/').next().unwrap_or(name);
        let (start, end) = last.split_at_checked(last.len().saturating_sub(":latest".len())).unwrap_or((last, ""));
        if end.eq_ignore_ascii_case(":latest") { start } else { last }
    }
    short(&model.name).eq_ignore_ascii_case(short(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models() -> Models {
        let model = |name: &str, does| Model {
            name: name.to_owned(),
            does,
            max_tokens: 256,
            outputs: 384,
            files: ModelFiles::default(),
            chat_template: OnceLock::new(),
            is_gone: AtomicBool::new(false),
        };
        Models {
            models: [model("all-MiniLM-L6-v2", Does::Embed), model("cross/encoder", Does::Rank)].into_iter().collect(),
            aliases: RwLock::new(vec![("text-embedding-3-small".to_owned(), 0)]),
        }
    }

    #[test]
    fn a_model_is_found_by_its_names() {
        let models = models();
        for name in [
            "all-MiniLM-L6-v2",
            "ALL-minilm-l6-v2",
            "sentence-transformers/all-MiniLM-L6-v2",
            "all-minilm-l6-v2:latest",
            "text-embedding-3-small",
        ] {
            assert_eq!(models.find(Some(name), Does::Rank).unwrap(), 0, "{name}");
        }
        assert_eq!(models.find(Some("encoder"), Does::Embed).unwrap(), 1);
    }

    #[test]
    fn without_a_name_the_task_decides() {
        let models = models();
        assert_eq!(models.find(None, Does::Embed).unwrap(), 0);
        assert_eq!(models.find(Some(""), Does::Rank).unwrap(), 1);
    }

    #[test]
    fn a_name_that_is_not_known_is_refused_with_those_that_are() {
        let problem = models().find(Some("gpt-4"), Does::Embed).unwrap_err();
        assert_eq!(problem.kind, Kind::NoSuchModel);
        assert_eq!(problem.message, "there is no model 'gpt-4' here; there is all-MiniLM-L6-v2, cross/encoder");
    }

    #[test]
    fn a_model_that_went_takes_its_aliases_along_and_is_told_apart() {
        let models = models();
        models.remove(0);
        for gone in ["all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2:latest"] {
            let problem = models.named(gone).unwrap_err();
            assert_eq!(problem.message, format!("the model '{gone}' was deleted or unloaded; there is cross/encoder"));
        }
        assert!(models.named("text-embedding-3-small").is_err() && models.aliases().is_empty());
        assert_eq!((models.find(None, Does::Embed).unwrap(), models.first()), (1, Some(1)));
        models.remove(1);
        assert_eq!(models.find(None, Does::Embed).unwrap_err().message, "there is no model here; there is none");
    }

    #[test]
    fn an_alias_is_moved_and_taken_away() {
        let models = models();
        models.set_alias("Text-Embedding-3-Small", Some(1));
        assert_eq!((models.named("text-embedding-3-small").unwrap(), models.aliases().len()), (1, 1));
        models.set_alias("text-embedding-3-small", None);
        assert!(models.named("text-embedding-3-small").is_err());
        assert!(models.resolve(&[("a".to_owned(), "nothing".to_owned())]).unwrap_err().contains("which is no model"));
    }
}
