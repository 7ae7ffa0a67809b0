//! Cases that were judged before: as critics read them, and as they are kept in a collection.
//! Searches nothing and stores nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::report::Report;
use crate::{generation::new_seed, qdrant::texts};

/// An earlier case that is like the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Precedent {
    pub(crate) id: Value,
    /// How near it is to the text.
    pub(crate) similarity: f64,
    pub(crate) text: String,
    /// What was decided, where it was evaluated here.
    pub(crate) evaluation: Option<Value>,
}

/// How many are put before the critics where nothing is said, and at most.
pub(crate) const PRECEDENTS: usize = 3;
pub(crate) const PRECEDENTS_MAX: usize = 20;
/// As much of a case as critics read.
const EXCERPT_BYTES: usize = 600;
/// The field of a case that has its evaluation.
const EVALUATION: &str = "evaluation";

impl Precedent {
    /// A document that was found; its text is cut to what critics read.
    pub(crate) fn of(id: Value, similarity: f64, text: &str, fields: &Map<String, Value>) -> Self {
        let text = text.trim();
        let cut = text[..text.floor_char_boundary(EXCERPT_BYTES)].to_owned();
        let evaluation = fields.get(EVALUATION).filter(|evaluation| evaluation.is_object()).cloned();
        Self { id, similarity, text: cut, evaluation }
    }

    /// The id as it is cited.
    pub(super) fn shown_id(&self) -> String {
        self.id.as_str().map_or_else(|| self.id.to_string(), str::to_owned)
    }

    /// The case as critics read it.
    pub(super) fn told(&self) -> String {
        let evaluation = self.evaluation.as_ref();
        let decision = evaluation.and_then(|evaluation| evaluation["decision"].as_str());
        let decision = decision.map(|decision| format!(", {decision}")).unwrap_or_default();
        let score = evaluation.and_then(|evaluation| evaluation["score"].as_f64());
        let score = score.map(|score| format!(" with the score {score}")).unwrap_or_default();
        format!("Case {}{decision}{score}: {}\n", self.shown_id(), self.text)
    }
}

/// What was decided of a text, as the fields of its document in a collection.
pub(crate) fn case_fields(report: &Report) -> Map<String, Value> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let critics = report.critics.iter().filter(|critic| critic.score.is_some()).map(|critic| {
        (critic.name.clone(), json!({"score": critic.score, "reasons": critic.reasons, "model": critic.model}))
    });
    let critics: Map<String, Value> = critics.collect();
    let aggregate = &report.aggregate;
    let evaluation = json!({
        "decision": aggregate.decision.word(), "score": aggregate.score, "vetoed_by": aggregate.vetoed_by,
        "missing": aggregate.missing, "critics": critics, "unix_s": now_s,
    });
    Map::from_iter([(EVALUATION.to_owned(), evaluation)])
}

/// The id of a new case: another one each time, since a text may be judged again.
pub(crate) fn case_id(text: &str) -> Value {
    json!(texts::id_of(&format!("{:x} {text}", new_seed())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_told_with_its_id_and_what_was_decided() {
        let fields = json!({"evaluation": {"decision": "rejected", "score": 0.25}});
        let fields = fields.as_object().unwrap();
        let case = Precedent::of(json!(7), 0.9, " Buy now! ", fields);
        assert_eq!(case.told(), "Case 7, rejected with the score 0.25: Buy now!\n");
        let plain = Precedent::of(json!("a-b"), 0.9, &"\u{e9}".repeat(1000), &Map::new());
        assert_eq!((plain.shown_id(), plain.text.len()), ("a-b".to_owned(), EXCERPT_BYTES));
        assert!(plain.told().starts_with("Case a-b: \u{e9}"));
    }
}
