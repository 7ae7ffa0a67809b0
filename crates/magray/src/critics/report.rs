//! An evaluation as every door tells it: each critic's verdict, the whole, and the precedents.
//! Types only: nothing here judges.

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::aggregate::Aggregate;

/// What critics say of a text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, utoipa::ToSchema)]
#[schema(as = Evaluation)]
#[schemars(crate = "rmcp::schemars", rename = "Evaluation")]
pub(crate) struct Report {
    /// What all of them say together.
    pub(crate) aggregate: Aggregate,
    /// One a critic, in the order of the settings.
    pub(crate) critics: Vec<CriticReport>,
    /// The earlier cases that the critics were shown, the nearest first.
    pub(crate) precedents: Vec<PrecedentReport>,
    /// The id of the case that the evaluation was stored as; null where it was not.
    pub(crate) stored: Option<String>,
}

/// Whether a critic gave a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(rename_all = "snake_case")]
#[schema(as = CriticStatus)]
pub(crate) enum Status {
    Judged,
    /// It had no verdict when its time was over.
    Late,
    /// It could not be asked, or what it said is no verdict.
    Failed,
}

impl Status {
    pub(crate) const ALL: [Self; 3] = [Self::Judged, Self::Late, Self::Failed];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Judged => "judged",
            Self::Late => "late",
            Self::Failed => "failed",
        }
    }
}

/// What a critic says of a text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = CriticVerdict)]
pub(crate) struct CriticReport {
    pub(crate) name: String,
    pub(crate) status: Status,
    /// From 0 to 1; null without a verdict.
    pub(crate) score: Option<f64>,
    pub(crate) reasons: Vec<String>,
    /// Ids of precedents that it follows.
    pub(crate) citations: Vec<Value>,
    /// The whole verdict, which fits the critic's schema; null where there is none.
    pub(crate) verdict: Option<Value>,
    /// Why there is no verdict.
    pub(crate) error: Option<String>,
    pub(crate) weight: f64,
    pub(crate) veto_below: Option<f64>,
    pub(crate) is_veto: bool,
    /// From the beginning of the evaluation to the verdict.
    pub(crate) latency_ms: f64,
    pub(crate) model: Option<String>,
    /// What computed the verdict.
    pub(crate) device: Option<String>,
    /// Why the CPU computed it in place of a GPU, where it did.
    pub(crate) fallback: Option<String>,
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt that were not computed: another critic had read them.
    pub(crate) cached_tokens: usize,
    pub(crate) tokens: usize,
}

/// An earlier case that critics were shown.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Precedent)]
pub(crate) struct PrecedentReport {
    /// Its id in the collection: a number or a UUID.
    pub(crate) id: Value,
    /// How near it is to the text.
    pub(crate) similarity: f64,
    /// Its text, as far as critics read it.
    pub(crate) text: String,
    /// What was decided of it, where it was evaluated.
    pub(crate) evaluation: Option<Value>,
    /// The critics that follow it.
    pub(crate) cited_by: Vec<String>,
}
