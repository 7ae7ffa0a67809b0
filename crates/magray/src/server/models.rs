//! The models of the server by the names that clients use.
//! Knows their names and what they do; computes nothing.

use magray_engine::engine::Engine;
pub(crate) use magray_engine::spec::Does;

use super::errors::{Kind, Problem};

/// All models, in the order of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Models {
    models: Vec<Model>,
    /// In lower case, with the index of the model that each means.
    aliases: Vec<(String, usize)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) does: Does,
    pub(crate) max_tokens: usize,
    /// Numbers of a vector, or labels.
    pub(crate) outputs: usize,
}

fn next_best(wanted: Does) -> Does {
    match wanted {
        // Vectors can be compared, and a ranker's score is the score of its one class.
        Does::Rank => Does::Embed,
        Does::Classify => Does::Rank,
        Does::Embed => Does::Embed,
    }
}

impl Model {
    pub(crate) fn check_dimensions(&self, dimensions: Option<usize>) -> Result<(), Problem> {
        match dimensions {
            Some(wanted) if wanted == 0 || wanted > self.outputs => {
                let message = format!("the vectors of '{}' have {} dimensions, not {wanted}", self.name, self.outputs);
                Err(Problem::invalid("dimensions", message))
            }
            _ => Ok(()),
        }
    }
}

impl Models {
    /// The models of an engine. An alias that names none of them is an error: its text is given back.
    pub(crate) fn new(engine: &Engine, aliases: &[(String, String)]) -> Result<Self, String> {
        let model = |(at, name): (usize, &String)| {
            let spec = engine.spec(at)?;
            Some(Model { name: name.clone(), does: spec.does(), max_tokens: spec.max_tokens, outputs: spec.outputs() })
        };
        let models: Vec<Model> = engine.model_names().iter().enumerate().filter_map(model).collect();
        let mut all = Self { models, aliases: Vec::new() };
        for (alias, name) in aliases {
            let index =
                all.index(name).ok_or_else(|| format!("the alias '{alias}' means '{name}', which is no model"))?;
            all.aliases.push((alias.to_ascii_lowercase(), index));
        }
        Ok(all)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Model> {
        self.models.iter()
    }

    pub(crate) fn get(&self, index: usize) -> &Model {
        &self.models[index]
    }

    /// The index of the model of this name; without a name, of the first that does what is wanted, or the next best.
    pub(crate) fn find(&self, name: Option<&str>, wanted: Does) -> Result<usize, Problem> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let first = |wanted: Does| self.models.iter().position(|model| model.does == wanted);
            return Ok(first(wanted).or_else(|| first(next_best(wanted))).unwrap_or(0));
        };
        self.named(name)
    }

    /// The index of the model of this name, or of the first that embeds. A model that does not embed is refused.
    pub(crate) fn embedder(&self, name: Option<&str>) -> Result<usize, Problem> {
        let index = self.find(name, Does::Embed)?;
        match self.get(index).does {
            Does::Embed => Ok(index),
            Does::Rank | Does::Classify => {
                Err(Problem::invalid("model", "this model makes no vectors: use one that embeds"))
            }
        }
    }

    pub(crate) fn named(&self, name: &str) -> Result<usize, Problem> {
        self.index(name).ok_or_else(|| {
            let known: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
            // A name is the client's own text, of any length.
            let name: String = name.chars().take(100).collect();
            let message = format!("there is no model '{name}' here; there is {}", known.join(", "));
            Problem { param: Some("model"), ..Problem::new(Kind::NoSuchModel, message) }
        })
    }

    fn index(&self, name: &str) -> Option<usize> {
        let name = name.to_ascii_lowercase();
        // Ollama's clients put a tag behind the name, hub clients an organisation before it.
        let short = |name: &str| name.rsplit('/').next().unwrap_or(name).trim_end_matches(":latest").to_owned();
        let by_alias = || self.aliases.iter().find(|(alias, _)| *alias == name).map(|(_, index)| *index);
        let is_whole = |model: &Model| model.name.to_ascii_lowercase() == name;
        let is_short = |model: &Model| short(&model.name.to_ascii_lowercase()) == short(&name);
        let position = |is_meant: &dyn Fn(&Model) -> bool| self.models.iter().position(is_meant);
        position(&is_whole).or_else(by_alias).or_else(|| position(&is_short))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models() -> Models {
        let model = |name: &str, does| Model { name: name.to_owned(), does, max_tokens: 256, outputs: 384 };
        Models {
            models: vec![model("all-MiniLM-L6-v2", Does::Embed), model("cross/encoder", Does::Rank)],
            aliases: vec![("text-embedding-3-small".to_owned(), 0)],
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
}
