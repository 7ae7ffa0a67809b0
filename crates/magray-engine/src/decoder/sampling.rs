//! How tokens are to be chosen, as executors are told it, and what is told of them.
//! Chooses none.

use super::constraint::Constraint;
use super::logprobs::TOP_LOGPROBS_MAX;
use serde::{Deserialize, Serialize};

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Logits are divided by it; 0: the likeliest token is taken.
    pub temperature: f32,
    /// Only this many of the likeliest may be drawn; 0: all.
    pub top_k: u32,
    /// Only the likeliest that together have this probability may be drawn.
    pub top_p: f32,
    /// Only tokens with at least this part of the highest probability may be drawn.
    pub min_p: f32,
    /// Logits of tokens that the sequence has are divided by it, or multiplied where they are negative.
    pub repetition_penalty: f32,
    /// Taken from the logit of a new token for each time that it was chosen before.
    pub frequency_penalty: f32,
    /// Taken from the logit of a token that was chosen before.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Whether the model's end tokens end nothing.
    pub ignores_end: bool,
    /// What draws follow from.
    pub seed: u64,
    /// Tokens that the sequence began with; those after them were chosen.
    pub prompt_tokens: u32,
    /// Whether each token comes with its log probability, and with how many of the likeliest in its place.
    pub logprobs: Option<u8>,
    /// Tokens that are proposed for each pass from what the sequence has, and verified by it; 0: none; `None`: as the engine does by default.
    /// Changes no token that is chosen.
    pub speculate: Option<u8>,
    /// What the new tokens have to spell together.
    pub constraint: Option<Constraint>,
}

/// Why tokens cannot be chosen like this.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} must be {wanted}, and is {found}")]
pub struct SamplingError {
    /// The number.
    pub name: &'static str,
    /// What it must be.
    pub wanted: &'static str,
    /// What it is.
    pub found: String,
}

/// Tokens that are proposed for a pass at most: with more rows than this and one a CPU multiplies in another way.
pub const SPECULATE_MAX: u8 = 15;
/// More biases than any caller sends.
const BIASES_MAX: usize = 4096;

impl Default for Sampling {
    /// The likeliest token, whatever came before.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            ignores_end: false,
            seed: 0,
            prompt_tokens: 0,
            logprobs: None,
            speculate: None,
            constraint: None,
        }
    }
}

impl Sampling {
    /// Refuses what cannot be meant.
    pub fn check(&self) -> Result<(), SamplingError> {
        let error = |name, wanted, found: &dyn ToString| Err(SamplingError { name, wanted, found: found.to_string() });
        let is_in = |value: f32, least: f32, most: f32| (least..=most).contains(&value);
        if !is_in(self.temperature, 0.0, 100.0) {
            return error("temperature", "from 0 to 100", &self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return error("top_p", "above 0, up to 1", &self.top_p);
        }
        if !is_in(self.min_p, 0.0, 1.0) {
            return error("min_p", "from 0 to 1", &self.min_p);
        }
        if !is_in(self.repetition_penalty, 0.01, 100.0) {
            return error("repetition_penalty", "from 0.01 to 100", &self.repetition_penalty);
        }
        for (name, value) in
            [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)]
        {
            if !is_in(value, -100.0, 100.0) {
                return error(name, "from -100 to 100", &value);
            }
        }
        if self.logit_bias.len() > BIASES_MAX {
            return error("logit_bias", "of at most 4096 tokens", &self.logit_bias.len());
        }
        if self.logprobs.is_some_and(|top| top > TOP_LOGPROBS_MAX) {
            return error("logprobs", "from 0 to 20", &self.logprobs.unwrap_or_default());
        }
        if let Some(tokens) = self.speculate.filter(|tokens| *tokens > SPECULATE_MAX) {
            return error("speculate", "from 0 to 15", &tokens);
        }
        if self.ignores_end && self.constraint.is_some() {
            return error("ignores_end", "off where output is constrained", &"on");
        }
        match self.logit_bias.iter().find(|(_, bias)| !is_in(*bias, -1000.0, 1000.0)) {
            Some((_, bias)) => error("logit_bias", "from -1000 to 1000", bias),
            None => Ok(()),
        }
    }

    /// Whether more than the choice of a token is made of its logits: a device that chooses by itself cannot.
    pub(super) fn needs_logits(&self) -> bool {
        self.logprobs.is_some()
    }

    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let refused = |sampling: Sampling| sampling.check().unwrap_err().name;
        assert_eq!(Sampling::default().check(), Ok(()));
        assert_eq!(refused(Sampling { temperature: -1.0, ..Sampling::default() }), "temperature");
        assert_eq!(refused(Sampling { temperature: f32::NAN, ..Sampling::default() }), "temperature");
        assert_eq!(refused(Sampling { top_p: 0.0, ..Sampling::default() }), "top_p");
        assert_eq!(refused(Sampling { min_p: 1.5, ..Sampling::default() }), "min_p");
        assert_eq!(refused(Sampling { repetition_penalty: 0.0, ..Sampling::default() }), "repetition_penalty");
        assert_eq!(refused(Sampling { presence_penalty: 1e9, ..Sampling::default() }), "presence_penalty");
        assert_eq!(refused(Sampling { logit_bias: vec![(0, f32::NAN)], ..Sampling::default() }), "logit_bias");
        assert_eq!(refused(Sampling { logprobs: Some(21), ..Sampling::default() }), "logprobs");
        assert_eq!(refused(Sampling { speculate: Some(16), ..Sampling::default() }), "speculate");
        let constraint = Some(Constraint::Regex("a".to_owned()));
        assert_eq!(refused(Sampling { constraint, ignores_end: true, ..Sampling::default() }), "ignores_end");
    }
}
