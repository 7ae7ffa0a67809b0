//! One score of several critics, by their weights and vetoes.
//! Counts no critic that gave none, and says which it counted.

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a critic has to say in the whole.
#[derive(Clone, Debug)]
pub(super) struct Ballot<'a> {
    pub(super) name: &'a str,
    pub(super) weight: f64,
    pub(super) veto_below: Option<f64>,
    /// `None`: it gave no verdict.
    pub(super) score: Option<f64>,
}

/// What became of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
    Accepted,
    /// Its score is too low, or a critic vetoes it.
    Rejected,
    /// No critic that counts gave a verdict, or one that may veto gave none.
    Undecided,
}

/// What all critics say together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Aggregate {
    pub(crate) decision: Decision,
    /// The mean of the scores by their weights, from 0 to 1; null where no critic with a weight gave one.
    pub(crate) score: Option<f64>,
    /// The score from which a text is accepted.
    pub(crate) accept_from: f64,
    /// The critics that it was formed over.
    pub(crate) formed_over: Vec<String>,
    /// The critics that gave no verdict; each says why.
    pub(crate) missing: Vec<String>,
    /// The critics that veto the text.
    pub(crate) vetoed_by: Vec<String>,
}

impl Ballot<'_> {
    pub(super) fn is_veto(&self) -> bool {
        matches!((self.score, self.veto_below), (Some(score), Some(least)) if score < least)
    }
}

impl Decision {
    pub(crate) const ALL: [Self; 3] = [Self::Accepted, Self::Rejected, Self::Undecided];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Undecided => "undecided",
        }
    }
}

/// Four digits: sums of weights differ behind them by the order in which they are added.
fn rounded(score: f64) -> f64 {
    (score * 1e4).round() / 1e4
}

fn names<'a>(ballots: &[Ballot<'a>], is: impl Fn(&Ballot<'a>) -> bool) -> Vec<String> {
    ballots.iter().filter(|ballot| is(ballot)).map(|ballot| ballot.name.to_owned()).collect()
}

pub(super) fn aggregate(ballots: &[Ballot<'_>], accept_from: f64) -> Aggregate {
    let (mut sum, mut weights) = (0.0, 0.0);
    for ballot in ballots {
        if let Some(score) = ballot.score {
            sum += ballot.weight * score;
            weights += ballot.weight;
        }
    }
    let score = (weights > 0.0).then(|| rounded(sum / weights));
    let vetoed_by = names(ballots, Ballot::is_veto);
    let may_still_veto = ballots.iter().any(|ballot| ballot.score.is_none() && ballot.veto_below.is_some());
    let decision = match score {
        _ if !vetoed_by.is_empty() => Decision::Rejected,
        Some(score) if score < accept_from => Decision::Rejected,
        Some(_) if !may_still_veto => Decision::Accepted,
        _ => Decision::Undecided,
    };
    let formed_over = names(ballots, |ballot| ballot.score.is_some());
    let missing = names(ballots, |ballot| ballot.score.is_none());
    Aggregate { decision, score, accept_from, formed_over, missing, vetoed_by }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(name: &str, weight: f64, veto_below: Option<f64>, score: Option<f64>) -> Ballot<'_> {
        Ballot { name, weight, veto_below, score }
    }

    #[test]
    fn scores_count_by_their_weights() {
        let all =
            [ballot("a", 3.0, None, Some(1.0)), ballot("b", 1.0, None, Some(0.2)), ballot("c", 0.0, None, Some(0.0))];
        let whole = aggregate(&all, 0.5);
        assert_eq!((whole.decision, whole.score), (Decision::Accepted, Some(0.8)));
        assert_eq!(whole.formed_over, ["a", "b", "c"]);
        assert_eq!(aggregate(&all, 0.81).decision, Decision::Rejected);
        let thirds = [0.1, 0.1, 0.1].map(|score| ballot("a", 0.1, None, Some(score)));
        assert_eq!(aggregate(&thirds, 0.1).decision, Decision::Accepted, "rounding decides nothing");
    }

    #[test]
    fn a_veto_wins_over_any_score() {
        let all = [ballot("a", 9.0, None, Some(1.0)), ballot("b", 0.0, Some(0.4), Some(0.3))];
        let whole = aggregate(&all, 0.5);
        assert_eq!(
            (whole.decision, whole.score, whole.vetoed_by),
            (Decision::Rejected, Some(1.0), vec!["b".to_owned()])
        );
        let spared = [ballot("b", 1.0, Some(0.4), Some(0.4))];
        assert_eq!(aggregate(&spared, 0.4).decision, Decision::Accepted);
    }

    #[test]
    fn who_gave_no_verdict_is_named_and_not_counted() {
        let all = [ballot("a", 1.0, None, Some(0.9)), ballot("b", 1.0, None, None)];
        let whole = aggregate(&all, 0.5);
        assert_eq!((whole.decision, whole.score), (Decision::Accepted, Some(0.9)));
        assert_eq!((&whole.formed_over[..], &whole.missing[..]), (&["a".to_owned()][..], &["b".to_owned()][..]));
        // It might have vetoed the text.
        let guarded = [ballot("a", 1.0, None, Some(0.9)), ballot("b", 1.0, Some(0.1), None)];
        assert_eq!(aggregate(&guarded, 0.5).decision, Decision::Undecided);
        let low = [ballot("a", 1.0, None, Some(0.1)), ballot("b", 1.0, Some(0.1), None)];
        assert_eq!(aggregate(&low, 0.5).decision, Decision::Rejected);
        let none = [ballot("a", 0.0, None, Some(0.9)), ballot("b", 1.0, None, None)];
        assert_eq!((aggregate(&none, 0.5).decision, aggregate(&none, 0.5).score), (Decision::Undecided, None));
    }
}
