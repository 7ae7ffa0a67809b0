//! Passages of a collection that a question is answered from: found, numbered, cited.
//! Asks no language model.

use clap::Args;
use magray_engine::store::Store;
use serde_json::{Value, json};

use super::Context;
use crate::{
    commands::{
        index::PlaceArgs,
        search::{self, Found, RERANKER, Reranker, Retrieval},
    },
    exit::Failure,
    generation::{self, PASSAGES},
    model,
    output::{self, safe},
};

#[derive(Debug, Args)]
pub(super) struct PassageArgs {
    /// Answer from the passages of this collection that fit the question best, and cite them
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Folder of the collections [default: the setting search.folder]
    #[arg(long, value_name = "DIR", requires = "collection")]
    collections: Option<String>,
}

/// A collection to answer from.
pub(super) struct Passages {
    collection: String,
    place: PlaceArgs,
}

impl PassageArgs {
    pub(super) fn open(&self) -> Result<Option<Passages>, Failure> {
        let place = PlaceArgs::in_folder(self.collections.clone());
        Ok(self.collection.clone().map(|collection| Passages { collection, place }))
    }
}

impl Passages {
    /// The passages that fit a question best, of at most this many bytes together. They are reranked where a reranker is in the store.
    pub(super) fn find(&self, question: &str, bytes_max: usize, context: &Context) -> Result<Vec<Found>, Failure> {
        let config = context.settle(&self.place.flags())?;
        let store = Store::open(config.model()?.store);
        let has_reranker = matches!(store.find(&model::parse(RERANKER, &store)?), Ok(Some(_)));
        let retrieval = Retrieval {
            collection: &self.collection,
            query: question,
            is_hybrid: true,
            reranker: if has_reranker { Reranker::Usual } else { Reranker::None },
            filter: None,
            limit: PASSAGES,
        };
        let mut found = search::retrieve(retrieval, &self.place, context)?;
        found.retain(|one| !one.text.trim().is_empty());
        generation::cut(found.iter_mut().map(|one| &mut one.text), bytes_max);
        Ok(found)
    }
}

/// The question behind its passages, each with the number that it is cited by.
pub(super) fn with_question(found: &[Found], question: &str) -> String {
    generation::with_passages(found.iter().map(|one| one.text.as_str()), question)
}

/// Which passages the answer cites; all of them where it cites none.
fn cited(found: &[Found], answer: &str) -> Vec<usize> {
    let named: Vec<usize> = (1..=found.len()).filter(|number| answer.contains(&format!("[{number}]"))).collect();
    if named.is_empty() { (1..=found.len()).collect() } else { named }
}

pub(super) fn citations(found: &[Found], answer: &str) -> Value {
    let named = cited(found, answer);
    let one = |number: &usize| {
        let found = &found[number - 1];
        json!({"number": number, "id": found.id, "score": found.score, "text": found.text, "payload": found.payload})
    };
    named.iter().map(one).collect()
}

pub(super) fn print_citations(found: &[Found], answer: &str) -> Result<(), Failure> {
    const SHOWN_CHARS: usize = 60;
    if found.is_empty() {
        return Ok(());
    }
    let mut text = "\nSources:\n".to_owned();
    for number in cited(found, answer) {
        let one = &found[number - 1];
        let source = ["path", "source", "file", "url", "title", "id"].iter().find_map(|key| one.payload[*key].as_str());
        let source =
            source.map_or_else(|| one.id.as_str().map_or_else(|| one.id.to_string(), str::to_owned), str::to_owned);
        let words: Vec<&str> = one.text.split_whitespace().collect();
        let begins: String = words.join(" ").chars().take(SHOWN_CHARS).collect();
        text += &format!("[{number}] {}: {}\n", safe(&source), safe(&begins));
    }
    Ok(output::print(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Found {
        Found { score: 0.5, id: json!(7), text: text.to_owned(), payload: json!({}) }
    }

    #[test]
    fn passages_are_numbered_and_cited() {
        let all = [found("The sky is blue."), found("Grass is green.")];
        let text = with_question(&all, "Why?");
        assert!(text.contains("[2] Grass is green.\n") && text.ends_with("\nQuestion: Why?"), "{text}");
        assert_eq!(with_question(&[], "Why?"), "Why?");
        assert_eq!(cited(&all, "Because of [2]."), [2]);
        assert_eq!(cited(&all, "I do not know."), [1, 2]);
        assert_eq!(citations(&all, "[1]")[0]["text"], "The sky is blue.");
    }
}
